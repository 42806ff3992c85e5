"""Profiles: settings for workers by name, each with one word to choose them all."""

from collections.abc import Mapping, Sequence
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.core.payload import check_name

# Where jobs are kept is no matter of a profile: a worker and a command beside it, which has none, must not look into
# two databases.
ELSEWHERE = ("profile", "app", "database_url", "direct_url", "schema")

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "development": {
        "lanes": "fast=1:fast; general=2:*",
        "batch": 5,
        "poll": "2s",
        "retry_base": "1s",
        "retry_max": "60s",
        "retry_jitter": 0.1,
        "breaker_failures": 3,
        "breaker_open_for": "30s",
    },
    "production": {
        "lanes": "fast=3:fast; general=5:*",
        "batch": 20,
        "poll": "1s",
        "timeouts": "fast=2m; *=20m",
        "retry_base": "1s",
        "retry_max": "5m",
        "retry_jitter": 0.1,
        "breaker_failures": 5,
        "breaker_open_for": "60s",
    },
}


def declare(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A profile as it is kept, `base` and all, its names checked."""
    check_name(name, "profile")
    for misplaced in ELSEWHERE:
        if misplaced in values:
            raise UsageError(
                f"profile {name!r} has the setting {misplaced}, which no profile may have: set it in the file, in the "
                "environment or as an argument"
            )
    base = values.get("base")
    if base is not None and not isinstance(base, str):
        raise UsageError(f"profile {name!r} has the base {base!r:.80}: it must be the name of one profile")
    return {key: value for key, value in values.items() if value is not None}


def joined(*declared: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """All profiles by name; one that is declared again, as those that are built in may be, adds to what it was."""
    profiles: dict[str, list[Mapping[str, Any]]] = {}
    for some in (PROFILES, *declared):
        for name, values in some.items():
            profiles.setdefault(name, []).append(values)
    return profiles


def resolve(name: str, profiles: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """What one profile sets, beginning with its base's base: the name of who says it, and the settings."""
    chain: list[str] = []
    following: str | None = name
    while following is not None:
        if following in chain:
            raise UsageError(f"profile {name!r} is built upon itself: {' on '.join([*chain, following])}")
        if following not in profiles:
            of = "" if following == name else f", the base of {chain[-1]!r}"
            raise UsageError(
                f"there is no profile {following!r:.80}{of}; there are: {', '.join(profiles)}. Those of your own are "
                "declared first of all: app.profile(…) right below the app, or a table [profiles.NAME] in dutiful.toml"
            )
        chain.append(following)
        following = next((one["base"] for one in reversed(profiles[following]) if "base" in one), None)
    return [
        (link, {key: value for key, value in values.items() if key != "base"})
        for link in reversed(chain)
        for values in profiles[link]
    ]
