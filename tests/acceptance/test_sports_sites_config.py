"""The register's configuration: time limits, threads and profiles."""

from datetime import timedelta
from pathlib import Path

import pytest

from dutiful import UsageError
from examples.sports_sites.config import Config
from examples.sports_sites.service import sports_app

FAST = {"email", "produce-reminders", "cleanup-jobs", "integration", "webhook"}
SLOW = {"analysis", "elevation"}


@pytest.mark.req("L4", "L64")
def test_quick_types_end_after_half_a_minute_unless_a_profile_gives_them_longer(tmp_path: Path) -> None:
    def timeouts(**settings: str | None) -> dict[str, timedelta | None]:
        app = sports_app(Config(folder=tmp_path), **settings)
        return {name: kind.timeout for name, kind in app.kinds.items()}

    slow = {"analysis": timedelta(minutes=10), "elevation": timedelta(minutes=5)}
    quick = {**dict.fromkeys(FAST, timedelta(seconds=30)), **slow}
    assert timeouts() == timeouts(profile=None) == timeouts(profile="development") == quick
    assert timeouts(profile="production") == {**dict.fromkeys(FAST, timedelta(minutes=2)), **slow}
    asked = sports_app(Config.read({"SPORTS_FOLDER": str(tmp_path), "DUTIFUL_PROFILE": "production"}))
    assert asked.kinds["email"].timeout == timedelta(minutes=2)
    started = sports_app(Config(folder=tmp_path))
    started.configure(profile="production")  # as `dutiful worker --profile production` does
    assert started.kinds["email"].timeout == timedelta(minutes=2)


@pytest.mark.req("L2", "L3", "L61", "L62", "L63", "L64", "L65", "L66", "L67", "L70")
def test_threads_come_from_the_environment_and_the_rest_from_a_profile(tmp_path: Path) -> None:
    def lanes(*, profile: str | None = None, **environ: str) -> dict[str, int]:
        app = sports_app(Config.read({"SPORTS_FOLDER": str(tmp_path), **environ}), profile=profile)
        return {lane.name: lane.slots for lane in app.settings.lanes}

    assert lanes() == lanes(profile="production") == {"fast": 3, "general": 5}
    assert lanes(profile="development") == {"fast": 1, "general": 2}
    assert lanes(WORKER_FAST_THREADS="4") == {"fast": 4, "general": 5}
    assert lanes(profile="development", WORKER_FAST_THREADS="2", WORKER_GENERAL_THREADS="7") == {
        "fast": 2,
        "general": 7,
    }
    with pytest.raises(UsageError, match="WORKER_FAST_THREADS is 'many'"):
        lanes(WORKER_FAST_THREADS="many")

    development = sports_app(Config(folder=tmp_path), profile="development")
    settings, retry = development.settings, development.kinds["email"].policy.retry
    assert settings.kinds == ("email", "analysis", "elevation")
    assert (settings.batch, settings.poll) == (5, timedelta(seconds=2))
    assert [retry.delay_after(n, None, lambda low, _: low, max_attempts=4) for n in (1, 2, 3)] == [
        timedelta(seconds=s) for s in (1, 2, 4)
    ]
    assert retry.delay_after(99, None, lambda _, high: high, max_attempts=100) == timedelta(seconds=60)
    policy = development.breaker_policies()["email-service"]
    assert (policy.failures, policy.open_for) == (3, timedelta(seconds=30))

    production = sports_app(Config(folder=tmp_path), profile="production")
    settings, retry = production.settings, production.kinds["email"].policy.retry
    assert (settings.kinds, set(production.kinds)) == ((), FAST | SLOW), "all of them"
    assert (settings.batch, settings.poll) == (20, timedelta(seconds=1))
    assert retry.delay_after(1, None, lambda _, high: high) == timedelta(seconds=1.1)
    assert retry.delay_after(99, None, lambda _, high: high, max_attempts=100) == timedelta(minutes=5)
    policy = production.breaker_policies()["email-service"]
    assert (policy.failures, policy.open_for) == (5, timedelta(seconds=60))
