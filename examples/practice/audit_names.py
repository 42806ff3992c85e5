"""The platform's names for what the audit trail tells."""

_ACTIONS = {"dead_letter.reprocess": "job_dlq_reprocess", "dead_letter.discard": "job_dlq_discard"}
_OUTCOMES = {"requested": "requested", "succeeded": "success", "failed": "failed", "refused": "refused"}


def audit_name(action: str, outcome: str) -> str:
    """`dead_letter.reprocess`, requested, is `job_dlq_reprocess_requested` here."""
    return f"{_ACTIONS.get(action, action.replace('.', '_'))}_{_OUTCOMES[outcome]}"
