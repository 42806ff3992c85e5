"""Addresses of Redis: read exactly, and never shown with their passwords."""

import pytest

from dutiful import UsageError
from dutiful.delivery.redis_url import read_redis_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://", "redis://localhost:6379/0"),
        ("redis://cache", "redis://cache:6379/0"),
        (" redis://cache:7000/3\n", "redis://cache:7000/3"),
        ("rediss://ada:pass%40word@cache/1", "rediss://ada@cache:6379/1"),
        ("redis://:pass%2Fword@[::1]:7000", "redis://[::1]:7000/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    address = read_redis_url(url)

    assert str(address) == shown
    assert "word" not in repr(address)


def test_a_password_is_unescaped() -> None:
    address = read_redis_url("redis://ada:a%3Ab%2F%40@cache")

    assert (address.username, address.password) == ("ada", "a:b/@")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache:6379",
        "http://cache",
        "redis://:s3cret/word@cache/0",
        "redis://:s3cret@cache:port/0",
        "redis://:s3cret@cache:99999999/0",
        "redis://:s3cret@cache/name",
        "redis://:s3cret@cache/0#1",
        "redis://:s3cret@cache/0?ssl=true",
        "redis://[s3cret",
        "unix://",
    ],
)
def test_a_malformed_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="redis_url") as refused:
        read_redis_url(url)

    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__context__ is None
