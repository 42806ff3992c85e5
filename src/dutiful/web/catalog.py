"""Categories, which the code knows and the database does not: filters by them become filters by kinds."""

from collections.abc import Sequence

from dutiful.app import Dutiful
from dutiful.web.problems import field_problem


def category_of(app: Dutiful, kind: str) -> str | None:
    known = app.kinds.get(kind)
    return None if known is None else known.category


def kinds_of(app: Dutiful, category: str | None, kinds: Sequence[str]) -> list[str]:
    """The kinds that both filters admit, never none of them; [] if there is no filter.

    Jobs may be of kinds that this process does not know, so any of `kinds` will do by itself.
    """
    if category is None:
        return list(kinds)
    members = sorted(name for name, known in app.kinds.items() if known.category == category)
    if not members:
        there = ", ".join(sorted({k.category for k in app.kinds.values() if k.category})) or "none"
        raise field_problem("category", f"no kind of this app has it; categories with kinds are: {there}")
    if strange := [kind for kind in kinds if kind not in members]:
        told = f"{strange[0]!r} is not of that category, whose job types are: {', '.join(members)}"
        raise field_problem("job_type", told)
    return list(kinds) or members
