"""Categories, which the code knows and the database does not: filters by them become filters by kinds."""

from dutiful.app import Dutiful
from dutiful.web.problems import field_problem


def category_of(app: Dutiful, kind: str) -> str | None:
    known = app.kinds.get(kind)
    return None if known is None else known.category


def kinds_of(app: Dutiful, category: str | None, kind: str | None) -> list[str]:
    """The kinds that both filters admit, never none of them; [] if there is no filter.

    Jobs may be of kinds that this process does not know, so any `kind` will do by itself.
    """
    if category is None:
        return [] if kind is None else [kind]
    members = sorted(name for name, known in app.kinds.items() if known.category == category)
    if not members:
        there = ", ".join(sorted({k.category for k in app.kinds.values() if k.category})) or "none"
        raise field_problem("category", f"no kind of this app has it; categories with kinds are: {there}")
    if kind is None:
        return members
    if kind not in members:
        raise field_problem("job_type", f"it is not of that category, whose job types are: {', '.join(members)}")
    return [kind]
