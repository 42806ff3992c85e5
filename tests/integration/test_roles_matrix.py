"""The rights of every group to every table, view, sequence and function: those in the catalog are those documented.

A table or function that is added fails these tests until its rights are written down, so none is granted by accident.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from role_logins import Roles, made

PAGE = Path(__file__).parents[2] / "docs/reference/rights.md"
GROUPS = ("client", "operator", "worker", "reader", "member")
RIGHTS = {
    "SELECT": "r",
    "INSERT": "a",
    "UPDATE": "w",
    "DELETE": "d",
    "TRUNCATE": "D",
    "REFERENCES": "x",
    "TRIGGER": "t",
}
WITHOUT_TABLES = ("sql_worker", "nobody")
# Rights by table, and those to columns alone as in `w(id)`.
HELD = """
    select c.relname,
           coalesce((select string_agg(p.letter, '' order by p.ord)
                     from unnest(%(rights)s::text[], %(letters)s::text[]) with ordinality p (name, letter, ord)
                     where has_table_privilege(%(role)s, c.oid, p.name)), '')
           || coalesce((select string_agg(p.letter || '(' || a.attname || ')', ' ' order by p.ord, a.attnum)
                        from pg_attribute a,
                             unnest(%(rights)s::text[], %(letters)s::text[]) with ordinality p (name, letter, ord)
                        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                          and p.name in ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
                          and not has_table_privilege(%(role)s, c.oid, p.name)
                          and has_column_privilege(%(role)s, c.oid, a.attnum, p.name)), '')
    from pg_class c
    where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
"""
ISOLATED = """
    select c.relname, c.relkind = 'v', coalesce(r.rule, ''), c.relrowsecurity and c.relforcerowsecurity,
           coalesce('security_invoker=true' = any (c.reloptions), false)
    from pg_class c left join {s}.tenant_rules() r on r.name = c.relname
    where c.relnamespace = %s::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
    order by c.relkind = 'v', c.relname
"""
FUNCTIONS = """
    select p.proname, p.prosecdef, p.provolatile, p.prorettype = 'trigger'::regtype,
           array(select g from unnest(%s::text[], %s::text[]) u (g, role)
                 where has_function_privilege(u.role, p.oid, 'execute'))
    from pg_proc p where p.pronamespace = %s::regnamespace order by p.proname
"""
RULES = {"column": "its tenant", "job": "its job's tenant", "json": "its job's tenant", "fleet": "", "": ""}


@pytest.fixture(scope="module", params=["18 with tenants", "16 with tenants"])
def roles(request: pytest.FixtureRequest) -> Iterator[Roles]:
    version = str(request.param).split()[0]
    with made(request.getfixturevalue(f"postgres{version}"), tenants=True) as found:
        yield found


def held(roles: Roles, group: str) -> dict[str, str]:
    role = roles.logins.name(group)
    given = {"rights": list(RIGHTS), "letters": list(RIGHTS.values()), "role": role, "schema": roles.schema}
    with roles.superuser() as session:
        return dict(session.execute(HELD, given).fetchall())


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") for cells in rows]
    names = list(head)
    return "\n".join([f"| {' | '.join(names)} |", "|" + "---|" * len(names), *lines])


def documented(heading: str) -> str:
    """The table below a heading of the page."""
    part = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return "\n".join(line for line in part.splitlines() if line.startswith("|"))


@pytest.mark.req("S79")
def test_tables_and_views_are_granted_as_documented_and_isolated_by_tenant(roles: Roles) -> None:
    rights = {group: held(roles, group) for group in GROUPS}
    with roles.superuser() as session:
        relations = session.execute(ISOLATED.replace("{s}", roles.schema).encode(), [roles.schema]).fetchall()
    rows = []
    for name, is_view, rule, isolated, invoker in relations:
        assert invoker if is_view else isolated is (rule != "fleet"), name
        rows.append([f"`{name}`", *(rights[group][name] for group in GROUPS), RULES[rule]])

    found = table(["table or view", *GROUPS, "rows are seen by"], rows)

    assert found == documented("Tables and views"), f"write this into {PAGE}:\n{found}"
    for group in WITHOUT_TABLES:
        assert set(held(roles, group).values()) == {""}, group


@pytest.mark.req("S76", "S79")
def test_functions_with_their_owners_rights_are_granted_as_documented(roles: Roles) -> None:
    groups = [*GROUPS, "sql_worker", "nobody"]
    with roles.superuser() as session:
        found = session.execute(FUNCTIONS, [groups, [roles.logins.name(g) for g in groups], roles.schema]).fetchall()
    rows: dict[str, list[str]] = {}
    for name, definer, volatility, is_trigger, may in found:
        assert "nobody" not in may, name
        if is_trigger:
            continue  # only a trigger can call it
        if definer:
            rows[name] = [f"`{name}`", *("x" if group in may else "" for group in groups[:-1])]
        else:
            expected = {"client", "operator", "worker"} | ({"reader"} if volatility != "v" else set())
            expected |= {"sql_worker"} if name == "run_function" else set()
            assert set(may) == expected, f"{name} has its caller's rights, and another group than these may execute it"

    text = table(["function", *groups[:-1]], rows.values())

    assert text == documented("Functions with their owner's rights"), f"write this into {PAGE}:\n{text}"


def test_no_group_but_operators_and_workers_may_use_a_sequence(roles: Roles) -> None:
    statement = """
        select c.relname from pg_class c where c.relnamespace = %s::regnamespace and c.relkind = 'S'
          and (has_sequence_privilege(%s, c.oid, 'USAGE') or has_sequence_privilege(%s, c.oid, 'SELECT')
               or has_sequence_privilege(%s, c.oid, 'UPDATE'))
    """
    for group in ("client", "reader", "member", "sql_worker", "nobody"):
        assert roles.as_superuser(statement, roles.schema, *[roles.logins.name(group)] * 3) == [], group
