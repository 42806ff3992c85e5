"""The platform's names for audited actions."""

_OUTCOMES = {"requested": "requested", "succeeded": "success", "failed": "failed", "refused": "refused"}


def audit_name(action: str, outcome: str) -> str:
    """Maps `dead_letter.reprocess`, requested, to `job_dlq_reprocess_requested`."""
    return f"{action.replace('dead_letter', 'job_dlq').replace('.', '_')}_{_OUTCOMES[outcome]}"
