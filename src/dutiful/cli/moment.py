"""Moments as people write them: how long ago, or a time."""

from datetime import datetime

from dutiful.cli.output import now
from dutiful.core.duration import duration
from dutiful.core.errors import UsageError


def moment(text: str | None, option: str) -> datetime | None:
    """ "2h" is two hours ago; "2030-01-31T09:00+02:00" is that time, for which a zone has to be given."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now() - duration(text, option)
        except UsageError:
            raise UsageError(
                f"{option} {text!r:.80} is neither a length of time like 2h nor a time like 2030-01-31T09:00Z"
            ) from None
    if found.tzinfo is None:
        raise UsageError(f"{option} {text!r:.80} has no time zone; add one, as in {found.isoformat()}+02:00 or …Z")
    return found
