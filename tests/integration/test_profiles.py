"""Profiles: one name sets lanes, batch, poll, retries, timeouts and breakers; explicit settings override it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from running_workers import eventually, final, working

from dutiful import Dutiful, LaneSettings, Settings, State, UsageError
from dutiful.core.errors import UnknownKind
from dutiful.core.retry.backoff import Exponential, Jitter
from dutiful.core.retry.policy import Retry
from dutiful.settings import load

SEVEN = ["email", "produce-reminders", "cleanup-jobs", "integration", "webhook", "analysis", "elevation"]


def read(folder: Path, file: str = "", environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
    (folder / "dutiful.toml").write_text(file)
    return load(overrides, environ=environ or {}, folder=folder)


def lanes(fast: int, general: int) -> tuple[LaneSettings, ...]:
    return LaneSettings("fast", fast, ("fast",)), LaneSettings("general", general)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.req("L61", "L62", "L63")
def test_the_development_profile_is_small_and_fast(tmp_path: Path) -> None:
    chosen = read(tmp_path, profile="development")
    assert chosen.lanes == lanes(fast=1, general=2)
    assert (chosen.batch, chosen.poll) == (5, seconds(2))
    tenth = Jitter(1.0, 1.1)
    assert chosen.retry == Retry(backoff=Exponential(seconds(1), cap=seconds(60), jitter=tenth))
    assert (chosen.breaker_failures, chosen.breaker_open_for) == (3, seconds(30))


@pytest.mark.req("L64", "L65", "L66")
def test_the_production_profile_has_all_slots_and_time_limits(tmp_path: Path) -> None:
    chosen = read(tmp_path, profile="production")
    assert chosen.lanes == lanes(fast=3, general=5)
    assert (chosen.batch, chosen.poll, chosen.kinds) == (20, seconds(1), ())
    assert chosen.timeout_of("fast") == timedelta(minutes=2)
    assert chosen.timeout_of("default") == chosen.timeout_of("slow") == timedelta(minutes=20)
    tenth = Jitter(1.0, 1.1)
    assert chosen.retry == Retry(backoff=Exponential(seconds(1), cap=seconds(300), jitter=tenth))
    assert (chosen.breaker_failures, chosen.breaker_open_for) == (5, seconds(60))


def test_explicit_settings_override_the_profile(tmp_path: Path) -> None:
    file = 'profile = "production"\nbatch = 7\nlease = "10s"'
    chosen = read(tmp_path, file, {"DUTIFUL_POLL": "5s"}, retry_max="10s")
    assert (chosen.batch, chosen.poll, chosen.retry_max) == (7, seconds(5), seconds(10))
    assert chosen.lanes == lanes(fast=3, general=5)
    # The name itself can be set in three places, too.
    assert read(tmp_path, file, {"DUTIFUL_PROFILE": "development"}).lanes == lanes(fast=1, general=2)
    assert read(tmp_path, file, {"DUTIFUL_PROFILE": "development"}, profile="production").poll == seconds(1)
    assert read(tmp_path, file, profile="").profile is None


@pytest.mark.req("L64")
def test_a_timeout_of_one_queue_leaves_those_of_the_others(tmp_path: Path) -> None:
    file = '[profiles.production.timeouts]\nslow = "1h"\n[profiles.staging]\nbase = "production"\ntimeouts = "fast=1m"'
    chosen = read(tmp_path, file, {"DUTIFUL_TIMEOUTS": "fast=5m; mail=none"}, profile="staging")
    limits = [chosen.timeout_of(queue) for queue in ("fast", "slow", "mail", "default")]
    assert limits == [seconds(300), seconds(3600), None, seconds(1200)]
    unlimited = read(tmp_path, 'profile = "production"\ntimeouts = "*=none"')
    assert (unlimited.timeout_of("fast"), unlimited.timeout_of("default")) == (seconds(120), None)


@pytest.mark.req("L61", "L67")
def test_a_file_has_profiles_of_its_own_and_adds_to_those_there_are(tmp_path: Path) -> None:
    file = """
[profiles.development]
kinds = ["email", "analysis", "elevation"]

[profiles.staging]
base = "production"
batch = 10

[profiles.staging.lanes.fast]
slots = 2
queues = ["fast"]
"""
    small = read(tmp_path, file, profile="development")
    assert small.kinds == ("email", "analysis", "elevation") and small.lanes == lanes(fast=1, general=2)
    staging = read(tmp_path, file, profile="staging")
    assert (staging.batch, staging.poll) == (10, seconds(1))
    assert staging.lanes == (LaneSettings("fast", 2, ("fast",)),)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("", r"there is no profile 'staging'; there are: development, production\. Those of your own"),
        ('[profiles.staging]\nbase = "prod"', "there is no profile 'prod', the base of 'staging'"),
        (
            '[profiles.staging]\nbase = ["production"]',
            r"profile 'staging' has the base \['production'\]: it must be the",
        ),
        ("[profiles.never-chosen]\nbatchh = 3", r"there is no setting 'batchh' \(profile never-chosen\)"),
        ('[profiles.staging]\nbase = "staging"', "profile 'staging' is built upon itself: staging on staging"),
        ("[profiles.staging]\nbatch = 0", "setting batch is 0"),
        ("[profiles.staging]\ncolour = 1", r"there is no setting 'colour' \(profile staging\)"),
        ('[profiles.staging]\ndatabase_url = "x"', "has the setting database_url, which no profile may have"),
        ("[profiles]\nstaging = 1", r"no table of tables: write \[profiles.staging\]"),
        ('[profiles.staging]\nretry_base = "10m"', "setting retry_base is 0:10:00: it must be from 1ms to retry_max"),
        ("[profiles.staging]\nretry_jitter = 2", "setting retry_jitter is 2.0: it must be from 0 to 1"),
        ('[profiles.staging]\nretry_jitter = "x"', "setting retry_jitter is 'x'"),
        ('[profiles.staging]\ntimeouts = "fast"', "timeouts of queue fast '' is not a length of time"),
        ("[profiles.staging]\ntimeouts = 3", "setting timeouts is 3: write it as"),
        ('[profiles.staging.timeouts]\nfast = "0s"', "setting timeouts leaves jobs of queue 'fast' no time"),
    ],
)
def test_a_bad_profile_is_refused_with_an_explanation(tmp_path: Path, file: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read(tmp_path, file, profile="staging")


def test_an_app_declares_profiles_before_it_is_opened(app: Dutiful) -> None:
    app.profile("staging", base="development", batch=3)
    app.profile("staging", poll="1s")
    with pytest.raises(UsageError, match="no setting 'colour'"):
        app.profile("other", colour="red")
    app.configure(profile="staging")
    assert (app.settings.batch, app.settings.poll, app.settings.breaker_failures) == (3, seconds(1), 3)


@pytest.mark.req("L64", "L59")
async def test_kinds_without_a_timeout_or_retry_have_those_of_the_settings(app: Dutiful) -> None:
    app.configure(timeouts={"fast": "2m", "*": "20m"}, retry_base="2s", retry_max="3s", retry_jitter=0)

    @app.job(queue="fast")
    async def email() -> None: ...
    @app.job
    async def analysis() -> None: ...
    @app.job(timeout="5m", retry=Retry(max_attempts=2))
    async def elevation() -> None: ...
    @app.job(timeout="never")
    async def archive() -> None: ...

    limits = [kind.timeout for kind in (email, analysis, elevation, archive)]
    assert limits == [timedelta(minutes=2), timedelta(minutes=20), timedelta(minutes=5), None]

    def delay(kind: Any, attempt: int) -> timedelta | None:
        found: timedelta | None = kind.policy.retry.delay_after(attempt, None, lambda low, high: high)
        return found

    assert [delay(email, attempt) for attempt in (1, 2, 3)] == [seconds(2), seconds(3), seconds(3)]
    assert [delay(elevation, attempt) for attempt in (1, 2)] == [seconds(1.1), None]


@pytest.mark.req("L59", "L64")
async def test_a_job_that_outlives_the_timeout_of_its_queue_is_ended(app: Dutiful) -> None:
    app.configure(timeouts={"fast": "200ms"}, retry_base="1ms", retry_max="1ms")

    @app.job(queue="fast")
    async def email() -> None:
        await asyncio.sleep(60)

    async with working(app):
        record = await final(app, await email.options(max_attempts=2).enqueue())
    assert (record.state, record.attempt) == (State.FAILED, 2)
    assert record.errors and record.errors[0]["type"] == "TimeoutExceeded"


@pytest.mark.req("L61", "L67")
async def test_a_profiles_worker_takes_its_kinds_and_leaves_the_others(app: Dutiful) -> None:
    ran: list[str] = []
    for name in SEVEN:

        @app.job(name=name)
        async def note_it(name: str = name) -> None:
            ran.append(name)

    app.profile("development", kinds=["email", "analysis", "elevation"])
    app.configure(profile="development")
    for name in SEVEN:
        await app.kind(name).enqueue()

    async with working(app):

        async def all_three() -> bool:
            return len(ran) == 3

        await eventually(all_three)
    assert sorted(ran) == ["analysis", "elevation", "email"]
    assert len(await app.jobs(state=State.READY)) == 4

    await app.close()
    app.profile("development", kinds=["mail"])
    with pytest.raises(UnknownKind, match="'mail'"):
        async with working(app):
            pass


async def test_a_worker_declares_the_schedules_of_kinds_that_it_takes_and_leaves_those_of_others(app: Dutiful) -> None:
    for name in ("email", "cleanup-jobs"):
        app.job(name=name)(_nothing)
        app.schedule(app.kind(name), "0 3 * * *", name=f"nightly {name}")
    app.profile("development", kinds=["email"])
    app.configure(profile="development")

    async def declared() -> list[str]:
        return sorted(record.name for record in await (await app.client()).store.schedules.all())

    async with working(app):
        await eventually(declared)
        assert await declared() == ["nightly email"], "otherwise jobs would pile up that no worker takes"
    await app.close()
    app.configure(profile="")
    everything = app.schedule_records(datetime.now(UTC))
    app.configure(profile="development")
    store = (await app.client()).store
    await store.schedules.put(everything)  # by a worker that takes all kinds
    await store.schedules.put(app.schedule_records(datetime.now(UTC)))
    assert await declared() == ["nightly cleanup-jobs", "nightly email"]


async def _nothing() -> None: ...


@pytest.mark.req("L64")
async def test_a_lane_claims_no_more_at_once_than_its_batch(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    app.configure(batch=5, lanes="general=8:*")
    done: list[int] = []

    @app.job
    async def analysis(number: int) -> None:
        done.append(number)

    await analysis.enqueue_many({"number": number} for number in range(40))
    limits: list[int] = []
    make_store = app.make_store

    def noting() -> Any:
        store = make_store()
        claim = store.claims.claim

        async def noted(ask: Any, **more: Any) -> Any:
            limits.append(ask.limit)
            return await claim(ask, **more)

        monkeypatch.setattr(store.claims, "claim", noted)
        return store

    monkeypatch.setattr(app, "make_store", noting)
    async with working(app):

        async def all_done() -> bool:
            return len(done) == 40

        await eventually(all_done)
    assert limits and max(limits) == 5
