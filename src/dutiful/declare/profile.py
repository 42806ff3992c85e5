"""Profiles: named sets of settings for workers; the setting `profile` chooses one."""

from collections.abc import Mapping, Sequence
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.core.json import check_name

# A profile must not choose the database, because a command without the profile would use another one than the worker.
NOT_IN_PROFILES = ("profile", "app", "database_url", "direct_url", "schema")

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


def check_profile(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A profile with its `base`, its names checked."""
    check_name(name, "profile")
    for misplaced in NOT_IN_PROFILES:
        if misplaced in values:
            raise UsageError(
                f"profile {name!r} has the setting {misplaced}, which no profile may have: set it in the file, in the "
                "environment or as an argument"
            )
    base = values.get("base")
    if base is not None and not isinstance(base, str):
        raise UsageError(f"profile {name!r} has the base {base!r:.80}: it must be the name of one profile")
    return {key: value for key, value in values.items() if value is not None}


def merge_profiles(*declared: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """All profiles by name; one that is declared again, built-in or not, extends the earlier declaration."""
    profiles: dict[str, list[Mapping[str, Any]]] = {}
    for some in (PROFILES, *declared):
        for name, values in some.items():
            profiles.setdefault(name, []).append(values)
    return profiles


def resolve(name: str, profiles: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The settings of a profile, its bases first, each with the name of the profile they come from."""
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
