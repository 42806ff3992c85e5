"""Bad input is refused with an error that says what is wrong and what to do, and nothing is stored."""

import asyncio
import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import apsw
import psycopg
import pytest
from running_workers import EVERYWHERE, final, working

from databases import Postgres
from dutiful import (
    Dutiful,
    DutifulError,
    Event,
    MalformedId,
    PayloadInvalid,
    Retry,
    SchemaMismatch,
    State,
    StoreUnavailable,
    Unique,
    UnknownKind,
    UsageError,
)
from dutiful.core.job import Scope
from dutiful.kind import Kind
from dutiful.stores.postgres import PostgresStore, migrations, schema_files

NUL, LONE = "a\0b", "a\ud800b"


@pytest.fixture
def send(app: Dutiful) -> Kind[..., None]:
    @app.job(name="send")
    async def send(to: str, copies: int = 1, extra: dict[str, Any] | None = None) -> None: ...

    return send


async def stored(app: Dutiful) -> int:
    client = await app.client()
    return sum(q.ready + q.scheduled + q.blocked for q in await client.store.queries.queues())


PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong type": ({"to": 5}, "send: field 'to': Expected `str`, got `int`"),
    "a wrong type of a default": ({"to": "ada", "copies": "two"}, "send: field 'copies': Expected `int`, got `str`"),
    "a missing field": ({"copies": 1}, "send: field 'to': Object missing required field"),
    "an unknown field": ({"to": "ada", "cc": "bob"}, "send: field 'cc': Object contains unknown field"),
    "an option": (
        {"to": "ada", "delay": "5m"},
        "; the option is given by .options(delay=…)",
    ),
    "too much": ({"to": "x" * 300_000}, "300,009 bytes, more than the limit of 262,144; store it elsewhere"),
    "a NUL": ({"to": NUL}, "payload.to has a NUL character in it"),
    "a NUL in a key": ({"to": "ada", "extra": {NUL: 1}}, "has a NUL character in it"),
    "a lone surrogate": ({"to": LONE}, "lone surrogate"),
    "a lone surrogate in a key": ({"to": "ada", "extra": {LONE: 1}}, "lone surrogate"),
    "not a number": ({"to": "ada", "extra": {"x": float("nan")}}, "payload.extra.x is nan"),
    "an object": ({"to": "ada", "extra": {"x": object()}}, "cannot be written as JSON: builtins.object"),
}
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown scope": ({"unique": Unique("k", "bogus")}, "unique.scope 'bogus' must be one of: "),  # type: ignore[arg-type]
    "an unknown answer": ({"unique": Unique("k", on_conflict="x")}, "unique.on_conflict 'x' must be"),  # type: ignore[arg-type]
    "a negative priority": ({"priority": -1}, "priority -1 must be a whole number from 0"),
    "a huge priority": ({"priority": 2**31}, "priority 2147483648 must be"),
    "a truth for a priority": ({"priority": True}, "priority True must be"),
    "a fraction of a priority": ({"priority": 1.5}, "priority 1.5 must be"),
    "a time without a zone": ({"run_at": datetime(2030, 1, 1)}, "has no time zone; give one"),  # noqa: DTZ001
    "a time that is none": ({"run_at": "tomorrow"}, "must be a datetime"),
    "a time beyond time": ({"run_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=9)))}, "is no date in UTC"),
    "a negative delay": ({"delay": -5}, "delay -5 is not a length of time"),
    "a strange delay": ({"delay": "soon"}, "delay 'soon' is not a length of time"),
    "two times": ({"delay": 1, "run_at": datetime.now(UTC)}, "run_at or delay, not both"),
    "no attempts": ({"max_attempts": 0}, "max_attempts 0 must be a whole number from 1"),
    "an unknown option": ({"colour": "red"}, "there is no option 'colour'; there are: priority, queue"),
    "a NUL in the queue": ({"queue": NUL}, "queue 'a\\x00b' has a NUL or a lone surrogate"),
    "a lone surrogate in the queue": ({"queue": LONE}, "queue 'a\\ud800b' has a NUL or a lone surrogate"),
    "an empty queue": ({"queue": ""}, "queue '' must be a text of 1 to 200 characters"),
    "a NUL in the tenant": ({"tenant": NUL}, "tenant 'a\\x00b'"),
    "a number for a tenant": ({"tenant": 5}, "tenant 5 must be a text"),
    "a lone surrogate in the correlation": ({"correlation_id": LONE}, "correlation_id 'a\\ud800b'"),
    "a NUL in the author": ({"created_by": NUL}, "created_by 'a\\x00b'"),
    "a NUL in the key": ({"unique": NUL}, "unique 'a\\x00b' has a NUL"),
    "a lone surrogate in the key": ({"unique": Unique(LONE)}, "unique 'a\\ud800b' has a NUL or a lone surrogate"),
    "a long key": ({"unique": "k" * 501}, "1 to 500 characters"),
    "a number for a key": ({"unique": 5}, "unique 5 must be a text or a Unique"),
    "a window without length": ({"unique": Unique("k", Scope.WINDOW)}, "give a window with scope"),
    "a NUL in the subject": ({"subject": {"order": NUL}}, "subject.order has a NUL"),
    "a text for a subject": ({"subject": "order 5"}, "must be a small object"),
    "a malformed id": ({"id": "not-an-id"}, "is not a job's id"),
    "a malformed parent": ({"parent_id": 5}, "parent_id 5 must be a job's id"),
    "a need that is no id": ({"depends_on": ["x"]}, "is not a job's id"),
    "a need that never was": ({"depends_on": [uuid4()]}, "there is no job|does not exist"),
}


@pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
async def test_a_job_that_makes_no_sense_is_refused_with_an_explanation(app: Dutiful, send: Kind[..., None]) -> None:
    for name, (payload, expected) in PAYLOADS.items():
        with pytest.raises(PayloadInvalid) as refused:
            await app.enqueue("send", payload)
        assert expected in str(refused.value), name
    for name, (options, expected) in OPTIONS.items():
        with pytest.raises(UsageError) as wrong:
            await app.enqueue("send", {"to": "ada"}, **options)
        assert any(part in str(wrong.value) for part in expected.split("|")), name
        with pytest.raises(UsageError):
            await send.options(**options).enqueue(to="ada")
    assert await stored(app) == 0


async def test_the_bad_field_is_named_by_its_path(app: Dutiful) -> None:
    @app.job
    async def order(lines: list[dict[str, int]], by: str) -> None: ...

    with pytest.raises(PayloadInvalid) as refused:
        await order.enqueue([{"a": 1}, {"b": "x"}], "ada")  # type: ignore[dict-item]
    assert refused.value.field == "lines[1][...]"
    with pytest.raises(PayloadInvalid, match="takes 2 arguments, 3 were given"):
        await order.enqueue([], "ada", "too many")  # type: ignore[call-arg]
    with pytest.raises(PayloadInvalid, match="two values for by"):
        await order.enqueue([], "ada", by="bob")  # type: ignore[misc]


async def test_an_unknown_kind_is_refused_with_those_that_are_known(app: Dutiful, send: Kind[..., None]) -> None:
    with pytest.raises(UnknownKind, match="there is no kind 'sned'; this app has: send"):
        await app.enqueue("sned", {"to": "ada"})


@pytest.mark.parametrize(
    "text", ["", "x", "01JCPZ5-0000000-0000000-0000000", "O1JCPZ5", "89f6487d-d96e-41f2-953f-4d22dfc138c", NUL]
)
async def test_a_malformed_id_is_not_taken_for_a_missing_job(app: Dutiful, text: str) -> None:
    with pytest.raises(MalformedId, match=r"Copy the whole id|right spelling|not the exact spelling"):
        await app.find(text)
    with pytest.raises(MalformedId):
        await app.cancel(text)


async def test_a_text_that_is_no_id_is_refused(app: Dutiful) -> None:
    with pytest.raises(UsageError, match="job_id 5 must be a job's id"):
        await app.find(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="job_id None must be a job's id"):
        await app.cancel(None)  # type: ignore[arg-type]


async def test_an_id_in_another_spelling_is_refused_with_the_right_one(app: Dutiful, send: Kind[..., None]) -> None:
    job = await send.enqueue("ada")
    with pytest.raises(MalformedId, match=f"write it as {job.public_id}"):
        await app.find(job.public_id.lower())
    by_uuid = await app.find(str(job.id))
    assert by_uuid is not None and by_uuid.id == job.id


async def test_a_reason_of_any_text_can_be_stored(app: Dutiful) -> None:
    from dutiful import Cancel

    @app.job
    async def quits() -> None:
        raise Cancel(f"{NUL} and {LONE}")

    waiting = await quits.options(delay="1h").enqueue()
    assert await waiting.cancel(f"{NUL} and {LONE}")
    async with working(app):
        records = [await final(app, waiting), await final(app, await quits.enqueue())]
    for record in records:
        assert record.state is State.CANCELLED and record.errors is not None
        assert record.errors[0]["message"] == "a\N{REPLACEMENT CHARACTER}b and a?b"


# --- kinds


def positional(a: int, /) -> None: ...
def starred(*names: str) -> None: ...
def double_starred(**fields: str) -> None: ...
async def awaits() -> None: ...


async def greets(user: int) -> None: ...


def local() -> Callable[[], None]:
    def computes() -> None: ...

    return computes


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda app: app.job(positional), "declare each field by its name"),
        (lambda app: app.job(starred), "declare each field by its name"),
        (lambda app: app.job(double_starred), "declare each field by its name"),
        (lambda app: app.job(process=True)(awaits), "process=True is for plain functions"),
        (lambda app: app.job(name=NUL)(awaits), "kind 'a\\\\x00b' has a NUL"),
        (lambda app: app.job(queue=LONE)(awaits), "has a NUL or a lone surrogate"),
        (lambda app: app.job(priority=-1)(awaits), "priority -1 must be"),
        (lambda app: app.job(timeout="soon")(awaits), "timeout 'soon' is not a length of time"),
        (lambda app: app.job(on_crash="explode")(awaits), 'must be "retry" or "fail"'),
        (lambda app: (app.job(awaits), app.job(awaits)), "there is a kind 'awaits' already"),
        (lambda app: app.job(retry=Retry)(awaits), r"with parentheses, as in retry=Retry\(\)"),
        (lambda app: app.job(retry=5)(awaits), "retry 5 must be a Retry"),
        (lambda app: app.job(max_crashes="3")(awaits), "max_crashes '3' must be a whole number from 1"),
        (lambda app: app.job(max_crashes=0)(awaits), "max_crashes 0 must be"),
        (lambda app: app.job(timeout=0)(awaits), "timeout 0 leaves a job no time"),
        (lambda app: app.job(functools.partial(awaits)), "write a def that calls it"),
        (lambda app: app.job(name="partial")(functools.partial(awaits)), "write a def that calls it"),
        (lambda app: app.job(5), "5 is not a function"),
        (lambda app: app.job(dict), "is not a function"),
        (lambda app: app.pipeline("p", retry=Retry), "with parentheses"),
        (lambda app: app.pipeline("p").phase(retry=5)(awaits), "retry 5 must be a Retry"),
        (lambda app: app.pipeline("p").phase(timeout=0)(awaits), "timeout 0 leaves"),
        (lambda app: app.schedule("awaits", every="1m"), r"give app.schedule the kind itself, app.kind\('awaits'\)"),
        (lambda app: app.schedule(awaits, every="1m"), "what @app.job has made of your function"),
        (lambda app: app.job(unique=5)(awaits), "unique 5 must be a text or a Unique"),
        (lambda app: app.job(unique="user-{user}")(greets), "'{user}' .* is not filled in: all jobs .* one key"),
        (
            lambda app: app.job(retries=3),
            "there is no option 'retries' of a kind; there are: name, .*, retry, ",
        ),
        (lambda app: app.pipeline("p", retries=3), "there is no option 'retries' of a pipeline; there are: on_retry, "),
        (lambda app: app.job(lambda to: None), "a lambda has no name: write a def"),
        (lambda app: app.pipeline("p").phase(lambda to: None), "a lambda has no name: write a def"),
        (lambda app: app.job(process=True)(local()), "kind computes: process=True .* at module level"),
        (lambda app: app.schedule(Dutiful().job(awaits), every="1m"), "kind awaits is of another app"),
    ],
)
def test_a_kind_that_cannot_work_is_refused_when_it_is_declared(
    declare: Callable[[Any], object], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        declare(Dutiful())


# --- databases


async def refusal(app: Dutiful, error: type[DutifulError]) -> str:
    """The error message of an enqueue to a database that cannot be used."""

    @app.job
    async def greet() -> None: ...

    with pytest.raises(error) as refused:
        await greet.enqueue()
    return str(refused.value)


async def test_a_database_that_is_not_migrated_is_refused_with_the_remedy(postgres18: Postgres) -> None:
    url = postgres18.create_database("not_migrated")
    try:
        assert "run `dutiful migrate`" in await refusal(Dutiful(url), SchemaMismatch)
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from pg_namespace where nspname = 'dutiful'").fetchone() == (0,)
    finally:
        postgres18.drop_database("not_migrated")


async def test_a_database_of_an_older_release_is_refused_with_the_remedy(pg18_url: str) -> None:
    newest = migrations.SCHEMA_VERSION
    assert newest >= int(schema_files.migrations()[-1].name[:4]), "raised with every migration"
    with psycopg.connect(pg18_url, autocommit=True) as connection:
        connection.execute("update dutiful.meta set value = %s where key = 'schema_version'", [str(newest - 1)])

    message = await refusal(Dutiful(pg18_url), SchemaMismatch)
    assert f"version {newest - 1}, this release needs {newest}; run `dutiful migrate`" in message

    assert await PostgresStore(pg18_url).migrate() == []
    async with Dutiful(pg18_url) as app:
        assert list(await app.jobs()) == []


async def test_a_database_of_a_newer_release_is_left_alone(app: Dutiful, app_url: str) -> None:
    async with app:
        pass
    newer = "update {}meta set value = '99' || value where key in ('schema_version', 'oldest_version')"
    as_before = "update {}meta set value = substr(value, 3) where key in ('schema_version', 'oldest_version')"

    def run(statement: str) -> None:
        if app_url.startswith("sqlite"):
            apsw.Connection(app_url.removeprefix("sqlite:///")).execute(statement.format("dutiful_"))
        else:
            with psycopg.connect(app_url, autocommit=True) as connection:
                connection.execute(statement.format("dutiful."))

    run(newer)
    try:
        message = await refusal(app, SchemaMismatch)
    finally:
        run(as_before)
    assert "upgrade dutiful" in message and "99" in message


async def test_an_unreachable_database_is_reported_without_its_password() -> None:
    message = await refusal(Dutiful("postgresql://ada:secret@127.0.0.1:1/jobs"), StoreUnavailable)
    assert "postgresql://ada@127.0.0.1:1/jobs cannot serve this now" in message
    assert "check that it runs, then try again" in message and "secret" not in message


async def test_an_unknown_role_is_reported(pg18_url: str) -> None:
    parts = urlsplit(pg18_url)
    stranger = parts._replace(netloc=f"stranger@{parts.netloc.rpartition('@')[2]}").geturl()
    message = await refusal(Dutiful(stranger), StoreUnavailable)
    assert "does not let this role in" in message and "check the role and its password" in message
    assert "stranger" in message and "check that it runs" not in message


async def test_an_unknown_database_is_reported(pg18_url: str) -> None:
    elsewhere = pg18_url.rsplit("/", 1)[0] + "/nowhere"
    assert "/nowhere does not exist: create it" in await refusal(Dutiful(elsewhere), StoreUnavailable)


def test_a_url_of_several_hosts_is_shown_without_its_secrets() -> None:
    several = "postgresql://ada:secret@db1:5432,[::1]:5433,db3/shop?target_session_attrs=read-write"
    assert Dutiful(several).make_store().url == "postgresql://ada@db1:5432,[::1]:5433,db3/shop"


async def test_each_path_that_is_no_database_has_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is not a database, it only looks like one to those who do not open it")
    expected = {
        f"sqlite:///{tmp_path}/missing/jobs.db": "does not exist: make it",
        f"sqlite:///{tmp_path}": "is a directory",
        f"sqlite:///{tmp_path}/text.db": "is not an SQLite database",
        "sqlite:///:memory:": "is not a path",
        "sqlite://": "sqlite:///jobs.db",
        "mysql://localhost/jobs": "scheme 'mysql'; write postgresql://",
    }
    for url, text in expected.items():
        assert text in await refusal(Dutiful(url), UsageError), url


async def test_the_schema_must_be_a_plain_name(pg18_url: str) -> None:
    message = await refusal(Dutiful(pg18_url, schema='jobs"; drop table orders; --'), UsageError)
    assert "must be a plain lower-case name" in message


EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no kinds": ({"kinds": []}, "kinds is empty"),
    "a kind that is none": ({"kinds": [None]}, "kinds has None"),
    "a kind alone": ({"kinds": "send"}, "give a list, as in kinds=['send']"),
    "a number for queues": ({"queues": 5}, "queues is 5: give a list"),
    "a number for a tenant": ({"tenant": 5}, "tenant has 5"),
    "an empty tenant": ({"tenant": ""}, "tenant has ''"),
    "an empty correlation": ({"correlation_id": ""}, "correlation_id has ''"),
    "a text for a time": ({"since": "2030-01-01"}, "since '2030-01-01' must be a datetime"),
    "a time without a zone": ({"since": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    "the beginning of time": ({"since": datetime.min.replace(tzinfo=UTC)}, "is out of range"),
    "the end of time": ({"since": datetime.max.replace(tzinfo=UTC)}, "is out of range"),
    "a number for a job": ({"job": 42}, "job_id 42 must be a job's id"),
    "nothing among jobs": ({"job": [None]}, "job_id None must be a job's id"),
}


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_events_that_make_no_sense_are_refused_with_an_explanation(app: Dutiful) -> None:
    for name, (arguments, expected) in EVENTS.items():
        with pytest.raises(UsageError) as refused:
            async with app.events(**arguments):
                pass
        assert expected in str(refused.value), name
    for limit in (-1, 0, True, "x", 10_001):
        with pytest.raises(UsageError, match=f"limit {limit!r} must be a whole number from 1 to 10,000"):
            await app.jobs(limit=limit)  # type: ignore[arg-type]


async def test_a_kind_stands_for_its_name(app: Dutiful, send: Kind[..., None]) -> None:
    async with app.events(kinds=[send]) as stream:
        job = await send.enqueue("ada")
        event = await asyncio.wait_for(anext(stream), 20)
    assert isinstance(event, Event) and event.job_id == job.id
    for page in (await app.jobs(kind=send), await app.jobs(kinds=[send])):
        assert [record.id for record in page.jobs] == [job.id]


async def test_a_delay_of_a_century_is_still_a_date(app: Dutiful, send: Kind[..., None]) -> None:
    job = await send.options(delay=timedelta(days=36_525)).enqueue("ada")
    record = await app.find(job.id)
    assert record is not None and record.run_at is not None and record.run_at.year > 2120
