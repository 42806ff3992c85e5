"""An attacker's names, payloads, settings and objects: run_function runs nothing that is not granted.

Every function of the shop that must not run records in shop.fact that it did.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sql_shop import Shop

from databases import CleanDatabase

pytestmark = pytest.mark.parametrize("server", ["clean18", "clean16"], indirect=True)

OK = "'1'::jsonb"
RECORDS = "returns {1} language sql security definer as $$ insert into shop.fact values ('{0}') returning {2} $$"
# Granted, each of a shape that is not one jsonb in, one jsonb out; and what stands beside a granted name.
SHAPES = {
    "json_in(p json)": ("jsonb", OK),
    "json_out(p jsonb)": ("json", "'1'::json"),
    "text_in(p text)": ("jsonb", OK),
    "text_out(p jsonb)": ("text", "'1'::text"),
    "void_out(p jsonb)": ("void", "null"),
    "any_in(p anyelement)": ("jsonb", OK),
    "array_in(p jsonb[])": ("jsonb", OK),
    "domain_in(p shop.doc)": ("jsonb", OK),
    "domain_out(p jsonb)": ("shop.doc", "'1'::shop.doc"),
    "row_in(p shop.fact)": ("jsonb", OK),
    "record_out(p jsonb, out a jsonb, out b jsonb)": ("record", "'1'::jsonb, '2'::jsonb"),
    "nothing_in()": ("jsonb", OK),
    "default_in(p jsonb default '1')": ("jsonb", OK),
    "defaults_in(p jsonb default '1', q int default 2)": ("jsonb", OK),
    "table_out(p jsonb)": ("table (a jsonb)", OK),
    "set_out(p jsonb)": ("setof jsonb", OK),
    "variadic_in(variadic p jsonb[])": ("jsonb", OK),
    "note(p json)": ("jsonb", OK),
    "note(p text)": ("jsonb", OK),
    "note(p anyelement)": ("jsonb", OK),
    "note(variadic p jsonb[])": ("jsonb", OK),
}
# It takes and returns what it should, so it may run: a default changes nothing.
FITTING = {"default_in"}
NAMES: list[str | None] = [
    # not granted, or granted to everyone
    "shop.unlisted", "shop.everyones", "hidden.note", "shop.missing", "missing.note",
    # of another shape
    "shop.texts", "shop.two", "shop.many", "shop.variadic_", "shop.proceed", "shop.total", "shop.fact", "shop.place",
    "shop.fact_what", "shop.on_fact",
    # the server's and Dutiful's own
    "pg_catalog.jsonb_pretty", "pg_catalog.jsonb_strip_nulls", "pg_catalog.to_jsonb", "pg_catalog.pg_sleep",
    "pg_catalog.pg_read_file", "pg_catalog.set_config", "pg_catalog.query_to_xml", "pg_catalog.lo_import",
    "information_schema._pg_truetypid", "dutiful.apply_rules", "dutiful.enqueue", "dutiful.run_function",
    "DUTIFUL.run_function", '"dutiful"."complete_job"',
    # without a schema, with a database, or no name at all
    "note", "unlisted", "dutiful_test.shop.note", "shop.note.note", "a.b.c.d", "", " ", ".", "shop.", ".note",
    "shop..note", None,
    '"".""', '"shop".""', '""."note"', '"', '""', "\t", "\n",
    # more than a name
    "shop.note()", "shop.note(jsonb)", "shop.note('{}')", "shop.note;", "shop.note; select shop.unlisted('{}')",
    "shop.note($1), shop.unlisted", "shop.note --", "shop.note/**/", "shop.note($1)||shop.unlisted", "1", "$1",
    "shop.note where exists (select shop.unlisted('1'))", "(select shop.unlisted('1'))", "shop.note\x0bunlisted",
    "shop.note'; drop table shop.fact; --", '"shop.note"', '"shop"."note', "'shop'.'note'", "$$shop$$.note",
    'shop."note""; drop table shop.fact; --"', 'shop."unlisted""(jsonb)"', 'U&"\\0073hop".note', "E'shop.note'",
    '"shop"".""note"', "shop.%I", "shop.%1$I", "%s.%s", "shop.note\n;select 1", "operator(pg_catalog.+)",
    "shop.note::text", "shop.note as x", "cast(shop.unlisted('1') as jsonb)", "shop . note ( )", "*", "shop.*",
    "shop.note\\'; select shop.unlisted('1'); --", 'shop."note\\"; select shop.unlisted(1); --"', "shop/**/.note",
    "shop.note union select shop.unlisted('1')", "shop.note,shop.unlisted", "shop.note|shop.unlisted",
    "{shop,note}", '["shop", "note"]', "shop->note", "shop:note", "shop/note", "${shop.unlisted}", "{{shop.unlisted}}",
    # other spellings
    '"SHOP".note', 'shop."NOTE"', 'shop."note "', 'shop." note"', "shop.note\u200b", "shop.note\u00a0",
    "shop.note\u2028",
    "sh\u043ep.note", "shop.\uff4eote", "shop.n\u00f6te", "shop.no\u0074\u0323e", "shop\u3002note", "shop\uff0enote",
    "\ufeffshop.note", "shop.\u202eeton", "shop.note\x01", "shop." + "n" * 5000, "shop.note" + "x" * 63,
    "shop." + "y" * 64, '"' + "s" * 10_000 + '".note', "shop." * 500 + "note",
    # by number, and schemas of the session
    "16384.16385", "pg_temp.note", "pg_temp_1.note", "pg_toast.note", "pg_toast_temp_1.note", "pg_TEMP.note",
]  # fmt: skip
TEXTS = [
    "'); drop table shop.fact; --", "$1", "$$; select shop.unlisted('1'); $$", "\\'; select 1; --", '"; select 1; --',
    "%s %I %L %1$s", "${jndi:ldap://x}", "{{7*7}}", "shop.unlisted('1')", "\u202e\u0000".replace("\u0000", ""), "é" * 9,
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "'" * 10_000, "\\u0000", "null", "",
]  # fmt: skip


@pytest.fixture
def server(request: pytest.FixtureRequest) -> CleanDatabase:
    found: CleanDatabase = request.getfixturevalue(request.param)
    found.reset()
    return found


@pytest.fixture
def shop(server: CleanDatabase) -> Iterator[Shop]:
    made = Shop(server.url)
    made.owner.execute("create domain shop.doc as jsonb")
    for signature, (answer, value) in SHAPES.items():
        name = signature.partition("(")[0]
        made.owner.execute(f"create function shop.{signature} {RECORDS.format(name, answer, value)}".encode())
    made.owner.execute(
        "create procedure shop.place(p jsonb, inout q jsonb default '1') language sql as 'select ''1''::jsonb'"
    )
    made.owner.execute("create function shop.on_fact() returns trigger language plpgsql as 'begin return new; end'")
    made.owner.execute(
        "create function shop.fact_what(f shop.fact) returns jsonb language sql as 'select ''1''::jsonb'"
    )
    role = sql.Identifier(made.role)
    made.owner.execute("revoke execute on all functions in schema shop from public")
    made.owner.execute("grant execute on function shop.everyones(jsonb) to public")
    made.owner.execute(sql.SQL("grant execute on all routines in schema shop to {}").format(role))
    made.owner.execute(sql.SQL("revoke execute on function shop.unlisted(jsonb) from {}").format(role))
    yield made
    made.close()


def assert_refused(shop: Shop, names: Iterable[str | None]) -> None:
    for name in names:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not run the function") as raised:
            pytest.fail(f"{ascii(name)[:80]} ran, and answered {shop.run(name, {'what': 'attack'})}")
        assert "revoked from public" in (raised.value.diag.message_hint or "")


def run_sql(connection: psycopg.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())


@pytest.mark.req("S78")
def test_a_name_that_is_not_one_granted_function_runs_nothing(shop: Shop) -> None:
    assert_refused(shop, NAMES)
    assert_refused(
        shop,
        {f"shop.{signature.partition('(')[0]}" for signature in SHAPES}
        - {f"shop.{name}" for name in {*FITTING, "note"}},
    )

    assert shop.facts() == []
    assert shop.run("shop.default_in", {}) == 1 and shop.facts() == ["default_in"]


@pytest.mark.req("S78")
def test_functions_of_dutiful_are_not_run_by_name_even_if_they_are_granted(shop: Shop) -> None:
    function = "function dutiful.errors_info(jsonb)"
    run_sql(shop.owner, f"revoke execute on {function} from public", f"grant execute on {function} to {shop.role}")
    try:
        assert_refused(shop, ["dutiful.errors_info"])
    finally:
        run_sql(shop.owner, f"revoke execute on {function} from {shop.role}", f"grant execute on {function} to public")


@pytest.mark.req("S20", "S78")
def test_beside_overloads_the_function_of_one_jsonb_runs(shop: Shop) -> None:
    assert shop.run("shop.note", {"what": "x"})["status"] == "succeeded"
    assert shop.facts() == ["x"]

    # A second one to which one jsonb may be given: Postgres cannot choose, and says so.
    run_sql(shop.owner, f"create function shop.note(p jsonb, q int default 1) {RECORDS.format('two', 'jsonb', OK)}")
    with pytest.raises(psycopg.errors.AmbiguousFunction):
        shop.run("shop.note", {"what": "y"})
    run_sql(shop.owner, "drop function shop.note(jsonb, int)")

    run_sql(shop.owner, f"revoke execute on function shop.note(jsonb) from {shop.role}")
    assert_refused(shop, ["shop.note"])
    run_sql(shop.owner, "drop function shop.note(jsonb)")
    assert_refused(shop, ["shop.note"])
    assert shop.facts() == ["x"]


@pytest.mark.req("S20")
def test_payloads_are_values_whatever_is_written_in_them(shop: Shop) -> None:
    for text in TEXTS:
        payload = {"what": text, text or "-": [text, {"db_function": "shop.unlisted"}], "task_type": "shop.unlisted"}
        assert shop.run("shop.note", payload)["got"] == payload
    others: list[Any] = [None, [], 1, "shop.unlisted", True, [[[[]]]]]
    for other in others:
        shop.run("shop.nothing", other)

    assert shop.facts() == TEXTS


@pytest.mark.req("S78")
def test_temporary_objects_of_the_same_names_are_not_used(shop: Shop) -> None:
    """Any role that may make temporary objects can shadow names, if a function lets it."""
    run_sql(
        shop.worker,
        "create temp table pg_proc as select * from pg_catalog.pg_proc",
        "update pg_temp.pg_proc set proacl = '{}' where proname in ('everyones', 'unlisted')",
        "create temp table pg_namespace as select * from pg_catalog.pg_namespace",
        "create temp view pg_roles as select 1 as x",
        "create type pg_temp.jsonb as (a int)",
        "create domain pg_temp.regtype as text",
        "create function pg_temp.note(p pg_catalog.jsonb) returns pg_catalog.jsonb language sql "
        "as 'select ''1''::pg_catalog.jsonb'",
        "revoke execute on function pg_temp.note(pg_catalog.jsonb) from public",
        "create function pg_temp.parse_ident(text, boolean default true) returns text[] language sql "
        "as 'select array[''shop'', ''unlisted'']'",
        "create function pg_temp.has_function_privilege(oid, text) returns boolean language sql as 'select true'",
        "create function pg_temp.has_schema_privilege(oid, text) returns boolean language sql as 'select true'",
        "create function pg_temp.aclexplode(aclitem[]) returns setof record language sql as 'select 1, 2 where false'",
        "create function pg_temp.format(text, variadic text[]) returns text language sql as 'select ''select 1'''",
        "create function pg_temp.same(name, text) returns boolean language sql as 'select true'",
        "create operator pg_temp.= (leftarg = name, rightarg = text, function = pg_temp.same)",
        "create operator pg_temp.<> (leftarg = name, rightarg = text, function = pg_temp.same)",
        "create aggregate pg_temp.exists_(boolean) (sfunc = booland_statefunc, stype = boolean)",
        "set search_path = pg_temp, shop, pg_catalog",
    )
    own = shop.worker.execute("select nspname from pg_catalog.pg_namespace where oid = pg_my_temp_schema()").fetchone()
    assert own is not None

    assert shop.run("shop.note", {"what": "x"})["status"] == "succeeded"
    assert_refused(shop, [*NAMES, "pg_temp.note", f"{own[0]}.note", f'"{own[0]}"."note"'])
    assert shop.facts() == ["x"]


@pytest.mark.req("S78")
def test_settings_of_the_session_change_nothing(shop: Shop) -> None:
    run_sql(
        shop.worker, "set plpgsql.variable_conflict = 'use_column'",
        "set quote_all_identifiers = on", "set standard_conforming_strings = off",
        "set backslash_quote = on", "set search_path = ''", "set row_security = off", "set transform_null_equals = on",
        "set check_function_bodies = off", "set plpgsql.extra_errors = 'all'",
    )  # fmt: skip

    assert shop.run("shop.note", {"what": "x"})["status"] == "succeeded"
    assert shop.run('shop."Odd; name""()"') == "odd"
    assert_refused(shop, NAMES)
    assert shop.facts() == ["x"]


@pytest.mark.req("S77", "S78")
def test_a_role_with_a_schema_of_its_own_gains_nothing_by_it(shop: Shop) -> None:
    """It may run what it owns, with the rights that it has anyway, once that is not everyone's."""
    schema = f"own_{uuid4().hex[:8]}"
    run_sql(shop.owner, f"create schema {schema} authorization {shop.role}")
    body = "language sql {0} as $$ insert into shop.fact values ('own') returning '1'::jsonb $$"
    run_sql(
        shop.worker,
        "set check_function_bodies = off",
        f"create function {schema}.invoking(p jsonb) returns jsonb {body.format('')}",
        f"create function {schema}.defining(p jsonb) returns jsonb {body.format('security definer')}",
        f"create function {schema}.who(p jsonb) returns jsonb language sql as 'select to_jsonb(current_user::text)'",
        f"create function {schema}.note(p jsonb) returns jsonb language sql as 'select shop.unlisted(p)'",
    )
    try:
        own = [f"{schema}.{name}" for name in ("invoking", "defining", "who", "note")]
        assert_refused(shop, own)
        run_sql(shop.worker, f"revoke execute on all functions in schema {schema} from public")

        for name in own:
            if name.endswith("who"):
                assert shop.run(name) == shop.role
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for"):
                shop.run(name)
        assert shop.facts() == []
    finally:
        run_sql(shop.owner, f"drop schema {schema} cascade")


@pytest.mark.req("S78")
def test_rights_of_a_group_count_only_while_they_are_the_roles_own(shop: Shop) -> None:
    group = f"group_{uuid4().hex[:8]}"
    run_sql(shop.owner, f"create role {group}", f"grant execute on function shop.unlisted(jsonb) to {group}")
    try:
        run_sql(shop.owner, f"grant {group} to {shop.role} with inherit false")
        assert_refused(shop, ["shop.unlisted"])
        run_sql(shop.owner, f"grant {group} to {shop.role} with inherit true")
        assert shop.run("shop.unlisted", {}) == 1
        run_sql(shop.owner, f"revoke {group} from {shop.role}")
        assert_refused(shop, ["shop.unlisted"])
    finally:
        run_sql(shop.owner, f"drop owned by {group}", f"drop role {group}")


def test_the_path_of_the_caller_does_not_reach_a_function_that_pins_none(shop: Shop) -> None:
    """A temporary table still does, so functions with their owner's rights have to pin their own; see the guide."""
    run_sql(
        shop.owner,
        "create function shop.unpinned(p jsonb) returns jsonb language plpgsql security definer "
        "as $$ begin insert into fact values ('unpinned'); return '1'; end $$",
        "revoke execute on function shop.unpinned(jsonb) from public",
        f"grant execute on function shop.unpinned(jsonb) to {shop.role}",
    )
    run_sql(shop.worker, "set search_path = shop")

    with pytest.raises(psycopg.errors.UndefinedTable):
        shop.run("shop.unpinned")
    assert shop.facts() == []
