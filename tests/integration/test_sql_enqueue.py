"""The SQL function enqueue has every option of the client, and stores the same rows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from dutiful import Dutiful, OnConflict, Retry, Scope, Unique
from dutiful.options import Options

pytestmark = pytest.mark.parametrize("app_url", ["postgres18", "pg16_url"], indirect=True)

Row = dict[str, Any]
DUE = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = {"id", "created_at", "created_by", "correlation_id"}  # differ between any two jobs


class Session:
    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def enqueue(self, kind: str = "bill", **options: Any) -> UUID:
        named = "".join(f", p_{name} => %s" for name in options)
        row = self.connection.execute(f"select dutiful.enqueue(%s{named}) as id", [kind, *options.values()]).fetchone()
        assert row is not None
        found: UUID = row["id"]
        return found

    def rows(self, statement: str, *args: Any) -> list[Row]:
        return self.connection.execute(statement, args).fetchall()

    def job(self, job_id: UUID) -> Row:
        (row,) = self.rows("select * from dutiful.jobs where id = %s", job_id)
        return row

    def keys(self) -> list[Row]:
        return self.rows("select tenant, kind, key, scope, expires_at is null as lasts from dutiful.unique_key")


@pytest.fixture
def session(app_url: str) -> Iterator[Session]:
    opened = Session(app_url)
    yield opened
    opened.connection.close()


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"priority": 3, "queue": "fast", "max_attempts": 2}, {"priority": 3, "queue": "fast", "max_attempts": 2}),
    ({"run_at": DUE, "tenant": "acme"}, {"run_at": DUE, "tenant": "acme"}),
    ({"subject": {"order": 42}}, {"subject": '{"order": 42}'}),
    ({"unique": "u", "tenant": "acme"}, {"unique": "u", "tenant": "acme"}),
    ({"unique": Unique("u", Scope.QUEUED)}, {"unique": "u", "unique_scope": "queued"}),
    ({"unique": Unique("u", Scope.FOREVER, across_kinds=True)},
     {"unique": "u", "unique_scope": "forever", "across_kinds": True}),
    ({"unique": Unique("u", Scope.WINDOW, window=timedelta(hours=1))},
     {"unique": "u", "unique_scope": "window", "unique_window": timedelta(hours=1)}),
]  # fmt: skip


@pytest.mark.parametrize(("client", "sql"), SAME, ids=lambda options: " ".join(options))
async def test_a_job_is_stored_as_the_client_stores_it(
    app: Dutiful, session: Session, client: dict[str, Any], sql: dict[str, Any]
) -> None:
    @app.job
    async def bill(order: int) -> None: ...

    first = await bill.options(**client).enqueue(order=7)
    by_client, keys = session.job(first.id), session.keys()
    session.rows("delete from dutiful.unique_key returning key")
    by_sql = session.job(session.enqueue("bill", payload='{"order": 7}', **sql))

    assert {k: v for k, v in by_sql.items() if k not in OWN} == {k: v for k, v in by_client.items() if k not in OWN}
    assert session.keys() == keys


async def test_every_option_of_the_client_has_a_parameter(session: Session) -> None:
    (row,) = session.rows(
        "select proargnames as names from pg_proc where oid = 'dutiful.enqueue'::regproc and proargnames is not null"
    )

    # The transaction is the caller's own, and who enqueues is the session's user.
    assert {f"p_{name}" for name in Options.__slots__} - {"p_within", "p_created_by"} <= set(row["names"])


async def test_what_is_left_out_is_what_the_kind_declares(app: Dutiful, session: Session) -> None:
    only_one = Unique("nightly", on_conflict=OnConflict.REJECT)

    @app.job(queue="mail", priority=7, retry=Retry(max_attempts=3))
    async def bill(order: int = 1) -> None: ...

    @app.job(queue="night", unique=only_one)
    def close_month() -> None: ...

    def stored(job_id: UUID) -> tuple[Any, ...]:
        job = session.job(job_id)
        return job["queue"], job["priority"], job["max_attempts"]

    before = stored(session.enqueue("bill"))
    await app.migrate()
    many = session.rows(
        "select job_id from dutiful.insert_jobs(jsonb_build_array(jsonb_build_object("
        "'id', dutiful.new_id(), 'kind', 'bill', 'priority', 8, 'queue', null)))"
    )

    assert before == ("default", 100, 5), "SQL knows nothing of a kind before its app has migrated or run"
    assert stored(session.enqueue("bill")) == ("mail", 7, 3)
    assert stored(session.enqueue("bill", unique="u")) == ("mail", 7, 3)
    assert stored(session.enqueue("bill", queue="other", priority=0, max_attempts=1)) == ("other", 0, 1)
    assert stored(many[0]["job_id"]) == ("mail", 8, 3)
    assert stored(session.enqueue("unknown")) == ("default", 100, 5)
    held = session.enqueue("close_month")
    assert session.job(held)["options"]["unique"] == "nightly"
    with pytest.raises(psycopg.errors.UniqueViolation, match="holds the unique key"):
        session.enqueue("close_month")


async def test_a_worker_that_starts_tells_sql_what_its_kinds_declare(app: Dutiful, session: Session) -> None:
    @app.job(queue="mail", retry=Retry(max_attempts=3))
    async def bill() -> None: ...

    async with app.embedded():
        job = session.job(session.enqueue("bill"))

    assert (job["queue"], job["max_attempts"]) == ("mail", 3)


async def test_an_id_that_exists_stores_nothing(session: Session) -> None:
    first = session.enqueue(queue="one")

    assert session.enqueue(id=first, queue="two") == first
    assert [row["queue"] for row in session.rows("select queue from dutiful.jobs")] == ["one"]


async def test_a_job_waits_for_its_delay_and_for_other_jobs(session: Session) -> None:
    first = session.enqueue()
    later = session.job(session.enqueue(delay=timedelta(hours=1)))
    dependent = session.job(session.enqueue(depends_on=[first], parent_id=first, retry_of=first))

    assert (later["state"], later["run_at"] - later["created_at"]) == ("scheduled", timedelta(hours=1))
    assert (dependent["state"], dependent["gate"]) == ("blocked", "dependency")
    assert (dependent["parent_id"], dependent["retry_of"]) == (first, first)
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="no job has the id"):
        session.enqueue(depends_on=[UUID(int=7)])


async def test_a_dependent_job_has_the_policy_that_is_given(session: Session) -> None:
    first = session.enqueue()
    policies = ("cancel", "run", "fail")
    dependents = {policy: session.enqueue(depends_on=[first], on_failure=policy) for policy in policies}

    rows = session.rows("select job_id, policy from dutiful.dependency")
    assert {row["policy"]: row["job_id"] for row in rows} == dependents
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="p_on_failure perhaps must be one of: cancel, run"):
        session.enqueue(depends_on=[first], on_failure="perhaps")


async def test_a_conflict_returns_the_holder_rejects_or_replaces(session: Session) -> None:
    holder = session.enqueue(unique="u")

    assert session.enqueue(unique="u") == holder
    with pytest.raises(psycopg.errors.UniqueViolation, match="holds the unique key"):
        session.enqueue(unique="u", on_conflict=OnConflict.REJECT.value)
    new = session.enqueue(unique="u", on_conflict=OnConflict.REPLACE.value)

    assert new != holder and session.job(holder)["state"] == "cancelled"
    assert session.job(new)["options"] == {"unique": "u"}


async def test_the_end_of_a_job_is_posted_to_its_own_webhook(session: Session) -> None:
    url = "https://example.org/hook"
    job = session.enqueue(webhook=url, webhook_states=["completed"], traceparent=TRACE)
    ignored = session.enqueue(webhook=url, webhook_states=["failed"])
    everything = session.enqueue(webhook=url)

    session.rows("select dutiful.complete_job(job_id, claim_id) from dutiful.dequeue(array['bill'], p_limit => 9)")

    assert session.job(job)["options"]["trace"]["traceparent"] == TRACE
    posts = session.rows("select job_id, url from dutiful.webhook_post order by job_id")
    assert posts == [{"job_id": job_id, "url": url} for job_id in sorted((job, everything))]
    assert session.job(ignored)["state"] == "completed"


@pytest.mark.req("S10")
async def test_a_job_is_part_of_its_callers_transaction(session: Session) -> None:
    with session.connection.transaction(force_rollback=True):
        job_id = session.enqueue()
        assert session.job(job_id)["state"] == "ready"

    assert session.rows("select id from dutiful.jobs") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": ""}, "1 to 500"),
        ({"unique": "u" * 501}, "1 to 500"),
        ({"unique": "u", "on_conflict": "ignore"}, "reject, return, replace"),
        ({"unique": "u", "on_conflict": None}, "reject, return, replace"),
        ({"unique": "u", "unique_scope": "window"}, "only then"),
        ({"unique": "u", "unique_window": timedelta(1)}, "only then"),
        ({"unique": "u", "unique_scope": None}, "only then"),
        ({"unique": "u", "unique_scope": "always"}, "p_unique_scope always must be one of: queued, active, window"),
        ({"unique": "u", "unique_scope": "window", "unique_window": timedelta(-1)}, "p_unique_window must be from 0"),
        ({"unique": "u", "unique_scope": "window", "unique_window": timedelta(36_526)}, "from 0 to 36525"),
        ({"depends_on": [None]}, "p_depends_on has a null in it"),
        ({"webhook": "ftp://example.org"}, "https://"),
        ({"webhook": "https://a b"}, "https://"),
        ({"webhook": "https://a", "webhook_states": ["ready"]}, "some of"),
        ({"webhook": "https://a", "webhook_states": []}, "some of"),
        ({"run_at": DUE, "delay": timedelta(1)}, "not both"),
        ({"delay": timedelta(-1)}, "from 0 to"),
        ({"delay": timedelta(36_526)}, "from 0 to"),
    ],
)
async def test_a_wrong_option_is_refused(session: Session, options: dict[str, Any], message: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        session.enqueue(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": ""}, "queue_has_1_to_200_characters"),
        ({"tenant": "*"}, "tenant_is_not_a_star"),
        ({"priority": -1}, "priority_is_0_or_more"),
        ({"max_attempts": 0}, "max_attempts_is_1_or_more"),
        ({"payload": "[]"}, "payload_is_an_object"),
        ({"run_at": "infinity"}, "run_at_is_in_the_years_1_to_9999"),
    ],
)
async def test_a_value_that_no_job_can_have_is_refused_by_a_check_that_says_what_it_can(
    session: Session, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=message):
        session.enqueue(**options)


async def test_names_are_not_looked_up_in_the_callers_schemas(session: Session) -> None:
    trap = "create function pg_temp.uuid_send(uuid) returns bytea language sql as 'select null::bytea'"
    session.connection.execute(trap)
    session.connection.execute("set search_path = pg_temp, pg_catalog, public")

    assert session.job(session.enqueue())["state"] == "ready"
