"""Channels and bad input: each job is completed once, with a message that names what is wrong, and nothing loops."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from channel_world import HANDLERS, ChannelWorld, Row, channel_world, serving
from psycopg import sql

from databases import Postgres
from dutiful.channels import Channels
from dutiful.channels.database import ChannelDatabase, FunctionFailed
from faults import until

NAMES = dict(zip(("before_handler", "success_handler", "error_handler"), HANDLERS, strict=True))


@pytest.fixture(scope="module")
def made(postgres18: Postgres) -> Iterator[ChannelWorld]:
    with channel_world(postgres18) as world:
        world.define("raises", "raise exception 'boom: password=hunter2';")
        world.define("denied", "return '{}';", grant=False)
        world.define("missing_id", "return jsonb_build_object('status', 'missing_attempt_id');")
        yield world


@pytest.fixture
def world(made: ChannelWorld) -> ChannelWorld:
    made.reset()
    return made


class Push(msgspec.Struct):
    n: int


class Provider:
    def __init__(self) -> None:
        self.channels = Channels()
        self.requests: list[Push] = []
        self.channels.channel("push")(self.push)

    def push(self, request: Push) -> None:
        self.requests.append(request)


def check(world: ChannelWorld, jobs: list[tuple[UUID, str]], rows: list[Row]) -> None:
    for (_, message), row in zip(jobs, rows, strict=True):
        messages = " / ".join(error["message"] for error in row["errors"] or [])
        assert row["state"] == "completed_with_errors", (message, row)
        assert message in messages
        assert "hunter2" not in str(row)
    # Each was claimed once, and nothing is left to do.
    assert {row["attempt"] for row in rows} == {1}
    assert world.run("select count(*) as n from {s}.attempt") == [{"n": 0}]
    assert world.run("select state, count(*) as n from {s}.jobs group by state") == [
        {"state": "completed_with_errors", "n": len(jobs)}
    ]


@pytest.mark.req("S20", "S22", "S24", "S25", "S31", "S34")
async def test_functions_that_cannot_be_run_or_answer_wrongly_are_recorded_with_their_names(
    world: ChannelWorld,
) -> None:
    def answering(answer: Any, message: str) -> tuple[UUID, str]:
        return world.call("comms.answer", answer=answer), f"db_function comms.answer{message}"

    jobs = [
        (world.enqueue("db_function", {}), "the payload has no db_function"),
        (world.enqueue("db_function", {"db_function": 7}), "db_function of the payload must be a text"),
        (world.enqueue("db_function", {"db_function": ["comms.answer"]}), "db_function of the payload must be a text"),
        (world.call("comms.nowhere"), "db_function comms.nowhere failed: the role"),
        (world.call("comms.denied"), "may not run the function 'comms.denied'; name it with its schema"),
        (world.call("answer"), "may not run the function 'answer'"),
        (world.call("comms.answer(); drop table comms.seen"), "may not run the function"),
        (world.call(f"{world.schema}.enqueue"), "may not run the function"),
        (world.call("comms.raises"), "db_function comms.raises failed: boom"),
        (world.call("vault.secret"), "db_function vault.secret failed: the role"),
        answering(None, " returned null"),
        answering([1], " returned an array, and no object"),
        answering("succeeded", " returned a text, and no object"),
        answering({"ok": True}, " returned an object without a status"),
        answering({"status": 5}, " returned an envelope whose status is no text"),
        answering({"success": "yes"}, " returned an envelope whose success is neither true nor false"),
        answering({"success": False, "error": "no row"}, " failed: no row"),
        answering({"success": False, "validation_failure_message": "no id"}, " failed: no id"),
    ]

    async with serving(world):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    # A function that returned was not taken back for what it returned.
    assert len(world.payloads("answer")) == 8
    assert {row["result"]["status"] for row in rows} == {"failed", "invalid"}


@pytest.mark.req("S32")
async def test_a_status_other_than_succeeded_is_logged_and_no_error(
    world: ChannelWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dutiful.channels")
    async with serving(world):
        job_id = world.call("comms.answer", answer={"status": "max_attempts_reached"})
        (row,) = await world.ended(job_id)

    assert (row["state"], row["result"], row["errors"]) == ("completed", {"status": "max_attempts_reached"}, None)
    assert 'db_function comms.answer answered "max_attempts_reached"' in caplog.text


@pytest.mark.req("S24", "S25", "S36", "S37", "S40", "S41")
async def test_what_goes_wrong_before_the_provider_goes_to_the_error_handler(world: ChannelWorld) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("before_handler comms.nowhere failed: the role", {"before_handler": "comms.nowhere"}),
        ("before_handler comms.raises failed: boom", {"before_handler": "comms.raises"}),
        ('before_handler comms.missing_id answered "missing_attempt_id"', {"before_handler": "comms.missing_id"}),
        ("the payload has no before_handler", {"before_handler": None}),
        ("before_handler of the payload must be a text", {"before_handler": {}}),
        ("the payload has no success_handler", {"success_handler": None}),
        ("before_handler comms.get_request returned an object without a status", {"answer": {}}),
        ("before_handler comms.get_request returned an array", {"answer": []}),
        ("before_handler comms.get_request failed: no number", {"answer": {"validation_failure_message": "no number"}}),
        ("comms.get_request returned a payload that is no request of the channel push", {"request": {"n": "x"}}),
        ("missing required field `n`", {"answer": {"status": "succeeded"}}),
    ]
    jobs = [(world.send("push", n, **more), message) for n, (message, more) in enumerate(cases, start=1)]

    provider = Provider()
    async with serving(world, provider.channels):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert provider.requests == [] and world.payloads("success") == []
    assert world.facts() == ([], list(range(1, len(jobs) + 1)))
    reported = {p["original_payload"]["attempt_id"]: p["error"] for p in world.payloads("error")}
    assert all(message in reported[n] for n, (_, message) in enumerate(jobs, start=1))
    assert {row["result"]["accepted"] for row in rows} == {False}
    assert rows[2]["result"]["status"] == "missing_attempt_id"


@pytest.mark.req("S24", "S25", "S40")
async def test_a_failure_is_recorded_even_if_no_error_handler_records_it(world: ChannelWorld) -> None:
    first = {"answer": {"status": "attempt_not_found"}}
    jobs = [
        (world.enqueue("push", {"task_type": "push"}), "the payload has no before_handler"),
        (world.send("push", 1, error_handler=None, **first), "the payload has no error_handler"),
        (world.send("push", 2, error_handler="comms.raises", **first), "error_handler comms.raises failed: boom"),
        (world.send("push", 3, error_handler="comms.nowhere", **first), "error_handler comms.nowhere failed: the role"),
        (world.send("push", 4, error_handler="comms.answer", **first), "error_handler comms.answer returned null"),
    ]

    provider = Provider()
    async with serving(world, provider.channels):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert provider.requests == []
    assert [len(row["errors"]) for row in rows] == [1, 1, 2, 2, 2]


@pytest.mark.req("S25", "S38")
async def test_a_success_that_cannot_be_recorded_is_not_passed_for_a_failure(world: ChannelWorld) -> None:
    handlers = {
        "comms.raises": "success_handler comms.raises failed: boom",
        "comms.nowhere": "success_handler comms.nowhere failed: the role",
        "comms.answer": "success_handler comms.answer returned null",
        "comms.missing_id": 'success_handler comms.missing_id answered "missing_attempt_id"',
    }
    jobs = [
        (world.send("push", n, success_handler=name), message) for n, (name, message) in enumerate(handlers.items())
    ]

    provider = Provider()
    async with serving(world, provider.channels):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert sorted(request.n for request in provider.requests) == [0, 1, 2, 3]
    assert world.payloads("error") == []
    assert [row["result"] for row in rows] == [
        {"status": "failed", "accepted": True},
        {"status": "failed", "accepted": True},
        {"status": "failed", "accepted": True},
        {"status": "missing_attempt_id", "accepted": True},
    ]


@pytest.mark.req("S39")
async def test_a_success_handler_that_meets_a_conflict_is_tried_again_and_its_provider_is_not(
    world: ChannelWorld,
) -> None:
    world.run("drop sequence if exists comms.tries")
    world.run("create sequence comms.tries")  # a rollback does not take its numbers back
    fails = "if nextval('comms.tries') < {n} then raise exception 'conflict' using errcode = '40001'; end if;"
    recovers = world.define("recovers", fails.format(n=3) + "return comms.record_success(p);")
    never = world.define("never", fails.format(n=1000))

    provider = Provider()
    async with serving(world, provider.channels):
        first, second = world.send("push", 1, success_handler=recovers), None
        (row,) = await world.ended(first)
        world.run("alter sequence comms.tries restart")
        second = world.send("push", 2, success_handler=never)
        (other,) = await world.ended(second)

    assert (row["state"], row["result"]) == ("completed", {"status": "succeeded", "accepted": True})
    assert (other["state"], other["result"]["accepted"]) == ("completed_with_errors", True)
    assert world.run("select last_value as n from comms.tries") == [{"n": 3}]
    assert [request.n for request in provider.requests] == [1, 2] and world.facts() == ([1], [])


@pytest.mark.req("S39", "S80")
async def test_a_success_is_recorded_however_long_another_transaction_keeps_its_lease(world: ChannelWorld) -> None:
    """As a person or a migration does: that is no fault of the handler, and what was sent must not go unrecorded."""
    world.run("drop sequence if exists comms.tries")
    world.run("create sequence comms.tries")  # a rollback does not take its numbers back
    counted = world.define("counted", "perform nextval('comms.tries'); return comms.record_success(p);")
    world.run("alter function {s}.complete_job set lock_timeout = '10ms'")
    channels = Channels()
    try:
        with psycopg.connect(world.logins.superuser_url) as holder:

            @channels.channel("push")
            def push(request: Push) -> None:
                holder.execute(f"select 1 from {world.schema}.lease for update")

            async with serving(world, channels):
                job_id = world.send("push", 1, success_handler=counted)

                async def tried() -> bool:
                    return bool(world.run("select last_value as n from comms.tries")[0]["n"] > 4)

                await until(tried, "its success was tried more often than a handler may fail")
                holder.rollback()
                (row,) = await world.ended(job_id)
    finally:
        world.run("alter function {s}.complete_job set lock_timeout = '2s'")

    assert (row["state"], row["result"]) == ("completed", {"status": "succeeded", "accepted": True})
    assert world.facts() == ([1], [])


async def test_a_function_that_ends_its_sessions_fails_after_three_of_them(world: ChannelWorld) -> None:
    """As the server's limits and the system's lack of memory do: a session that has ended reports no error."""
    world.run("drop sequence if exists comms.tries")
    world.run("create sequence comms.tries")
    ends = "perform nextval('comms.tries'), set_config('transaction_timeout', '1ms', true); perform pg_sleep(60);"
    fatal = world.define("fatal", f"{ends} return '{{}}';")
    jobs = [
        (world.call(fatal), "db_function comms.fatal failed: its connection ended"),
        (world.send("push", 1, before_handler=fatal), "before_handler comms.fatal failed: its connection ended"),
        (world.send("push", 2, success_handler=fatal), "success_handler comms.fatal failed: its connection ended"),
        (
            world.send("push", 3, error_handler=fatal, answer={}),
            "error_handler comms.fatal failed: its connection ended",
        ),
    ]

    provider = Provider()
    async with serving(world, provider.channels):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert world.run("select last_value as n from comms.tries") == [{"n": 3 * len(jobs)}]
    assert [request.n for request in provider.requests] == [2] and world.facts() == ([], [1])
    assert [row["result"].get("accepted") for row in rows] == [None, False, True, False]


@pytest.mark.parametrize(
    "left",
    [
        "perform set_config('default_transaction_read_only', 'on', false)",
        "perform set_config('client_encoding', 'latin1', false)",
        "perform set_config('statement_timeout', '1', false)",
        "perform pg_advisory_lock(7)",
        "create temp table leftover (n int)",
        "execute 'deallocate all'",  # also what the worker has prepared
        "execute 'prepare leftover as select 1'",
    ],
)
async def test_what_a_function_leaves_in_its_session_is_gone_for_the_next(world: ChannelWorld, left: str) -> None:
    leaves = world.define("leaves", f"{left}; return comms.answer(p);")
    answer = {"status": "succeeded", "text": "€"}
    async with serving(world, concurrency=1):
        await world.ended(world.call(leaves, answer=answer))
        rows = await world.ended(*(world.call("comms.answer", answer=answer) for _ in range(2)))
        if "set_config" not in left:
            rows += await world.ended(world.call(leaves, answer=answer))
        locks = world.run("select count(*) as n from pg_locks where locktype = 'advisory'")
    assert {(row["state"], row["attempt"]) for row in rows} == {("completed", 1)}
    assert locks == [{"n": 0}]


async def test_a_function_that_fails_leaves_no_lock_in_its_session(world: ChannelWorld) -> None:
    """Asked before the session is used again, by which its locks would end anyway."""
    world.run("create table comms.checked (n int check (n > 0), unique (n) deferrable initially deferred)")
    raises = world.define("raises_locked", "perform pg_advisory_lock(7); raise exception 'no';")
    unfit = "perform pg_advisory_lock(7); insert into comms.checked values (1), (1);"
    commits = world.define("commits_locked", f"{unfit} return '{{}}';")
    database = ChannelDatabase(
        world.url, world.schema, direct_dsn=None, pool_size=1, statement_timeout=timedelta(seconds=10)
    )
    await database.open()
    try:
        for function in (raises, commits):
            with pytest.raises(FunctionFailed):
                async with database.transaction() as transaction:
                    await transaction.run(function, "{}")
            assert world.run("select count(*) as n from pg_locks where locktype = 'advisory'") == [{"n": 0}]
    finally:
        await database.close()


@pytest.mark.parametrize(("encoding", "message"), [("sql_ascii", "'ascii' codec"), ("euc_jp", "client_encoding")])
async def test_an_answer_in_an_encoding_of_the_functions_own_is_its_failure(
    world: ChannelWorld, encoding: str, message: str
) -> None:
    recodes = world.define("recodes", f"perform set_config('client_encoding', '{encoding}', true); return p -> 'as';")
    answer = {"status": "日本"}
    jobs = [
        (world.call(recodes, **{"as": answer}), message),
        (world.send("push", 1, before_handler=recodes, **{"as": answer}), "before_handler comms.recodes"),
    ]

    async with serving(world, Provider().channels):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert world.facts() == ([], [1])


async def test_a_function_that_settles_its_own_job_is_a_failure_and_does_not_run_again(world: ChannelWorld) -> None:
    settles = [
        world.define(name, f"perform {world.schema}.{call} from {world.schema}.lease l; return '{{}}';")
        for name, call in (
            ("completes", "complete_job(l.job_id, l.claim_id)"),
            ("fails", "fail_job(l.job_id, l.claim_id, 'mine')"),
            ("releases", "release_job(l.job_id, l.claim_id)"),
        )
    ]
    provider = Provider()
    jobs, rows = [], []
    async with serving(world, provider.channels):
        for n, settle in enumerate(settles):  # one at a time, because each settles all that run
            for job in (world.call(settle), world.send("push", n, success_handler=settle)):
                jobs.append((job, f"{settle} failed: it has settled its own job"))
                rows += await world.ended(job)

    check(world, jobs, rows)
    assert [request.n for request in provider.requests] == [0, 1, 2] and world.facts() == ([], [])
    assert [row["result"].get("accepted") for row in rows] == [None, True] * 3


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_functions_run_at_read_committed_whatever_the_default_is(world: ChannelWorld, level: str) -> None:
    asks = world.define("asks", "return jsonb_build_object('status', current_setting('transaction_isolation'));")
    role = world.logins.name("sql_worker")
    world.logins.run(f"ALTER ROLE {{}} SET default_transaction_isolation = '{level}'", role)
    try:
        async with serving(world):
            (row,) = await world.ended(world.call(asks))
    finally:
        world.logins.run("ALTER ROLE {} RESET default_transaction_isolation", role)
    assert row["result"] == {"status": "read committed"}


@pytest.mark.req("S39", "S80")
async def test_a_success_waits_for_a_server_that_takes_no_writes(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover, until its sessions reach the new primary: what was sent must not go unrecorded."""
    began: list[None] = []
    transaction = ChannelDatabase.transaction

    def counted(self: ChannelDatabase) -> Any:
        began.append(None)
        return transaction(self)

    monkeypatch.setattr(ChannelDatabase, "transaction", counted)
    role, channels = world.logins.name("sql_worker"), Channels()

    @channels.channel("push")
    def push(request: Push) -> None:
        world.logins.run("ALTER ROLE {} SET default_transaction_read_only = on", role)
        end = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = {}"
        world.logins.run(end, sql.Literal(role))

    try:
        async with serving(world, channels):
            job_id = world.send("push", 1)

            async def tried() -> bool:
                return len(began) > 6

            await until(tried, "its success was tried more often than a handler may fail")
            world.logins.run("ALTER ROLE {} RESET default_transaction_read_only", role)
            world.logins.run(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = {}", sql.Literal(role)
            )
            (row,) = await world.ended(job_id)
    finally:
        world.logins.run("ALTER ROLE {} RESET default_transaction_read_only", role)

    assert (row["state"], row["result"]) == ("completed", {"status": "succeeded", "accepted": True})
    assert world.facts() == ([1], [])


async def test_what_fails_the_commit_is_a_failure_of_the_function(world: ChannelWorld) -> None:
    """A deferred constraint: the function has returned, and its reply is not what is recorded."""
    world.run("create table comms.parent (id int primary key)")
    world.run("create table comms.child (id int references comms.parent deferrable initially deferred)")
    orphan = world.define("orphan", 'insert into comms.child values (1); return \'{"status": "succeeded"}\';')
    jobs = [
        (world.call(orphan), 'db_function comms.orphan failed: insert or update on table "child" violates'),
        (world.send("push", 1, before_handler=orphan), "before_handler comms.orphan failed: insert or update"),
        (world.send("push", 2, success_handler=orphan), "success_handler comms.orphan failed: insert or update"),
        (world.send("push", 3, error_handler=orphan, answer={}), "error_handler comms.orphan failed: insert or update"),
    ]

    provider = Provider()
    async with serving(world, provider.channels):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert [request.n for request in provider.requests] == [2] and world.facts() == ([], [1])
    assert [row["result"].get("accepted") for row in rows] == [None, False, True, False]


async def test_a_function_may_raise_any_code_and_is_not_taken_for_a_server_that_is_away(world: ChannelWorld) -> None:
    codes = ("57P01", "08006", "53300", "25006", "XX000", "57014", "P0001", "42501")
    jobs = [
        (
            world.call(world.define(f"code_{code.lower()}", f"raise exception 'mine' using errcode = '{code}';")),
            f"db_function comms.code_{code.lower()} failed: ",
        )
        for code in codes
    ]

    async with serving(world):
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)


async def test_a_statement_that_hangs_is_ended_before_its_lease(world: ChannelWorld) -> None:
    hangs = world.define("hangs", 'perform pg_sleep(3600); return \'{"status": "succeeded"}\';')
    provider = Provider()
    async with serving(world, provider.channels, lease=timedelta(seconds=1)):
        jobs = [
            (
                world.call(hangs),
                "db_function comms.hangs failed: was cancelled: canceling statement due to statement timeout",
            ),
            (world.send("push", 1, before_handler=hangs), "before_handler comms.hangs failed: was cancelled"),
            (world.send("push", 2, success_handler=hangs), "success_handler comms.hangs failed: was cancelled"),
        ]
        rows = await world.ended(*(job_id for job_id, _ in jobs))

    check(world, jobs, rows)
    assert world.facts() == ([], [1])


async def test_a_function_that_catches_its_cancellation_fails_after_three_tries(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.channels.database.ANSWER_MARGIN", 0.1)
    catching = "loop begin perform pg_sleep(3600); exception when query_canceled then null; end; end loop;"
    job_id = world.call(world.define("stubborn", catching))
    async with serving(world, Provider().channels, lease=timedelta(seconds=1)):
        rows = await world.ended(job_id)

    message = "db_function comms.stubborn failed: it gave no answer, not even when it was cancelled"
    check(world, [(job_id, message)], rows)
