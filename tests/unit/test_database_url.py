"""Addresses of databases: what is malformed is refused, and no part of it that may be a password is shown."""

import logging
import traceback
from pathlib import Path

import pytest

from dutiful import Dutiful, UsageError
from dutiful.settings import Settings
from dutiful.stores.database_url import redacted_url

PASSWORD = "hunter2zz"

# Each has the password in a place where a parser may take it for something else.
MALFORMED = [
    "postgresql://ada:hun[ter2zz@db/shop",
    "postgresql://ada:hunter2zz\u2100@db/shop",  # of which the parser's error repeats the password
    "postgresql://ada:hunter2zz",  # would be a port
    "postgresql://ada:hunter2zz/shop",
    "postgresql://ada:hunter2zz#x@db/shop",
    "postgresql://ada:1#hunter2zz@db/shop",
    "postgresql://ada:1?hunter2zz@db/shop",
    "postgresql://ada:1/hunter2zz@db/shop",
    "postgresql://ada:hunter2zz@db:port/shop",
    "postgresql://ada@acme:hunter2zz@db:5432/shop",  # as some clouds name users
    "postgresql://ada:hunter2zz@db /shop",
    "postgresql://ada:hunter2zz@[::1/shop",
    "postgresql://ada:hunter2zz@[nowhere]/shop",
    "postgresql:///ada:hunter2zz@db/shop",
    "postgresql:/ada:hunter2zz@db/shop",
    "postgresql:ada:hunter2zz@db/shop",
    "postgres//ada:hunter2zz@db/shop",
    "postgresql ://ada:hunter2zz@db/shop",
    "postgresql;//ada:hunter2zz@db/shop",
    "postgresql+asyncpg://ada:hunter2zz@db/shop",
    "mysql://ada:hunter2zz@db/shop",
    "hunter2zz://db/shop",
    "sqlite:ada:hunter2zz@db",
    "sqlite://ada:hunter2zz@db/shop",
    "sqlite:///ada:hunter2zz@db/shop",
    "sqlite:///postgresql://ada:hunter2zz@db/shop",
    "sqlite:hunter2zz",
    "//ada:hunter2zz@db/shop",
    "ada:hunter2zz@db/shop",
    "ada:hunter2zz",
    ":hunter2zz@db",
    "hunter2zz@db",
    "/ada:hunter2zz@db/shop",
    "./ada:hunter2zz@db/shop",
    "host=db user=ada password=hunter2zz",
    "password=hunter2zz",
    "ada\x00:hunter2zz",
    "ghp_" + "16C7e42F292c6912E7710c838347Aehunter2zz",
    "=postgresql://ada:hunter2zz@db/shop",
    "'postgresql://ada:hunter2zz@db/shop'",
]


@pytest.mark.req("W8")
@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_address_is_refused_and_its_password_shown_nowhere(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UsageError) as refused:
        Dutiful(url).make_store()
    error: BaseException | None = refused.value
    printed = "".join(traceback.format_exception(refused.value, chain=True)).replace(f"{url!r}", "")
    assert "hunter2zz" not in str(error) and "ter2zz" not in str(error)
    while error is not None:  # also those that a traceback leaves out, because other tools print them
        assert "ter2zz" not in str(error), repr(error)
        error = error.__cause__ or error.__context__
    assert "ter2zz" not in printed and "ter2zz" not in caplog.text
    assert "write" in str(refused.value), "the error says what to do"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:hunter2zz@db:5432/shop", "postgresql://ada@db:5432/shop"),
        ("postgres://ada:hun%5Bter2zz@db/shop?sslmode=require", "postgres://ada@db/shop"),
        ("  postgresql://ada:hunter2zz@db/shop\n", "postgresql://ada@db/shop"),
        ("postgresql://ada:hunt%40er2zz@db/shop", "postgresql://ada@db/shop"),
        ("postgresql://db:5432/shop?user=ada@server&password=hunter2zz", "postgresql://db:5432/shop"),
        ("postgresql:///shop?host=/run/postgresql", "postgresql://localhost/shop"),
        ("postgresql://db1:5432,[::1]:5433,db3/shop", "postgresql://db1:5432,[::1]:5433,db3/shop"),
        ("sqlite:///jobs.db", "sqlite:///{here}/jobs.db"),
        ("sqlite:////srv/My Files/jobs.db", "sqlite:////srv/My Files/jobs.db"),
        ("sqlite:////srv/12:30/jobs.db", "sqlite:////srv/12:30/jobs.db"),
        ("sqlite:////home/ada@corp/jobs.db", "sqlite:////home/ada@corp/jobs.db"),
        ("jobs.db", "sqlite:///{here}/jobs.db"),
        ("data/jobs.db", "sqlite:///{here}/data/jobs.db"),
        ("./a b/jobs.db", "sqlite:///{here}/a b/jobs.db"),
        ("/srv/jobs.db", "sqlite:////srv/jobs.db"),
        ("/home/ada@corp/jobs.db", "sqlite:////home/ada@corp/jobs.db"),
        ("/srv/12:30/jobs.db", "sqlite:////srv/12:30/jobs.db"),
    ],
)
def test_a_good_address_is_shown_without_its_password(
    url: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Dutiful(url).make_store().url == shown.replace("{here}", str(Path.cwd()))


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_direct_url_is_refused_in_the_same_way(url: str) -> None:
    with pytest.raises(UsageError, match="direct_url") as refused:
        Dutiful("postgresql://ada@db/shop", direct_url=url).make_store()
    assert "ter2zz" not in str(refused.value)


def test_settings_are_printed_without_addresses() -> None:
    settings = Settings(
        database_url=f"postgresql://ada:{PASSWORD}@db/shop", direct_url=f"postgresql://ada:{PASSWORD}@x/"
    )
    assert PASSWORD not in repr(settings) and PASSWORD not in str(settings)


def test_the_remedy_for_the_wrong_scheme_names_it() -> None:
    with pytest.raises(UsageError, match=r"scheme 'mysql'; write postgresql://user@host/database, sqlite:///jobs\.db"):
        Dutiful("mysql://localhost/jobs").make_store()
    with pytest.raises(UsageError, match=r"scheme 'postgresql\+psycopg'"):
        Dutiful("postgresql+psycopg://localhost/jobs").make_store()


def test_an_address_is_redacted_even_if_it_is_malformed() -> None:
    assert redacted_url("postgresql://ada:hunter2zz@db/shop") == "postgresql://ada@db/shop"
    with pytest.raises(UsageError):
        redacted_url("postgresql://ada:1#hunter2zz@db/shop")
