"""The platform's names for audited actions."""

_ACTIONS = {"dead_letter.reprocess": "job_dlq_reprocess", "dead_letter.discard": "job_dlq_discard"}
_OUTCOMES = {"requested": "requested", "succeeded": "success", "failed": "failed", "refused": "refused"}


def audit_name(action: str, outcome: str) -> str:
    """Maps `dead_letter.reprocess`, requested, to `job_dlq_reprocess_requested`."""
    return f"{_ACTIONS.get(action, action.replace('.', '_'))}_{_OUTCOMES[outcome]}"
