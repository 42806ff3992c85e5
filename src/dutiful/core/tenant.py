"""What a tenant may be called."""

from dutiful.core.errors import UsageError

EVERYONE = "*"  # to the database: of no tenant in particular


def check_tenant(tenant: str) -> str:
    """Refuse a name that would mean everybody, or nobody, or that no database can store."""
    if tenant in ("", EVERYONE) or "\0" in tenant:
        raise UsageError(f"tenant {tenant!r} is not a name: give one that is not empty, not * and without NUL")
    return tenant
