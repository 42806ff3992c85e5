"""run_function: a name out of a payload calls what was granted to the role."""

from collections.abc import Iterator

import psycopg
import pytest
from sql_shop import Shop

from databases import CleanDatabase

pytestmark = pytest.mark.parametrize("server", ["clean18", "clean16"], indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> CleanDatabase:
    found: CleanDatabase = request.getfixturevalue(request.param)
    found.reset()
    return found


@pytest.fixture
def shop(server: CleanDatabase) -> Iterator[Shop]:
    made = Shop(server.url)
    yield made
    made.close()


@pytest.mark.req("S20")
def test_a_granted_function_gets_the_whole_payload_and_its_answer_is_returned(shop: Shop) -> None:
    payload = {"what": "a; drop table shop.fact", "deep": [1, {"a": None}]}

    assert shop.run("shop.note", payload) == {"status": "succeeded", "got": payload}
    assert shop.run("shop.nothing", {}) is None
    assert shop.facts() == ["a; drop table shop.fact"]


@pytest.mark.parametrize("name", ["shop.note", "SHOP.Note", '"shop"."note"', ' shop . "note" '])
def test_names_are_read_as_postgres_reads_them(shop: Shop, name: str) -> None:
    assert shop.run(name, {"what": "x"})["status"] == "succeeded"
    assert shop.run('shop."Odd; name""()"') == "odd"


@pytest.mark.req("S78")
def test_it_has_its_callers_rights(shop: Shop) -> None:
    assert shop.run("shop.who") == shop.role
    shop.owner.execute("revoke execute on function shop.who(jsonb) from public, " + shop.role)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        shop.run("shop.who")


def test_an_error_of_the_function_is_its_own(shop: Shop) -> None:
    with pytest.raises(psycopg.Error, match="no such order") as raised:
        shop.run("shop.fails")

    assert raised.value.sqlstate == "P0007"
    assert "shop.fails" in str(raised.value.diag.context)
