import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dutiful import Dutiful, LaneSettings, Settings, UsageError
from dutiful.declare.lane import DEFAULT_LANES
from dutiful.settings import load, without_secrets


def read(folder: Path, file: str = "", environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
    if file:
        (folder / "dutiful.toml").write_text(file)
    return load(overrides, environ=environ or {}, folder=folder)


def test_without_anything_there_are_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings.database_url == "sqlite:///dutiful.db" and settings.lanes == DEFAULT_LANES
    assert (settings.lease, settings.retention) == (timedelta(seconds=30), timedelta(days=7))


def test_the_environment_wins_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    file = 'lease = "10s"\npoll = "10s"\ngrace = "10s"\nbatch = 10'
    environ = {"DUTIFUL_POLL": "20s", "DUTIFUL_GRACE": "20s", "DUTIFUL_BATCH": "20"}
    settings = read(tmp_path, file, environ, grace="30s", lease=None)
    assert [settings.lease, settings.poll, settings.grace] == [timedelta(seconds=n) for n in (10, 20, 30)]
    assert settings.batch == 20


def test_a_projects_own_file_serves_where_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dutiful]\ndatabase_url = "sqlite:///project.db"')
    assert read(tmp_path).database_url == "sqlite:///project.db"
    assert read(tmp_path, 'database_url = "sqlite:///own.db"').database_url == "sqlite:///own.db"


def test_the_common_name_for_a_database_is_used_unless_dutiful_has_its_own(tmp_path: Path) -> None:
    common = {"DATABASE_URL": "postgresql://common/db"}
    assert read(tmp_path, environ=common).database_url == "postgresql://common/db"
    own = {**common, "DUTIFUL_DATABASE_URL": "postgresql://own/db"}
    assert read(tmp_path, environ=own).database_url == "postgresql://own/db"
    assert read(tmp_path, environ={"DUTIFUL_LEASE": ""}).lease == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("text", "lanes"),
    [
        ("fast=3:fast; general=5:*", (LaneSettings("fast", 3, ("fast",)), LaneSettings("general", 5, ("*",)))),
        ("one=1", (LaneSettings("one", 1, ("*",)),)),
        ("one=4:*:fair, reserve=2", (LaneSettings("one", 4, ("*",), fair=True, reserve=2),)),
        (
            "one=4:a:kind=x,kind=y,tag=gpu,tenant=acme",
            (LaneSettings("one", 4, ("a",), kinds=("x", "y"), tags=("gpu",), tenants=("acme",)),),
        ),
        (" reports = 2 : reports , exports ;", (LaneSettings("reports", 2, ("reports", "exports")),)),
    ],
)
def test_lanes_are_read_from_text(tmp_path: Path, text: str, lanes: tuple[LaneSettings, ...]) -> None:
    assert read(tmp_path, environ={"DUTIFUL_LANES": text}).lanes == lanes
    assert read(tmp_path, lanes=text).lanes == lanes


def test_lanes_are_read_from_tables(tmp_path: Path) -> None:
    settings = read(tmp_path, '[lanes.fast]\nslots = 2\nqueues = ["fast", "mail"]\n[lanes.rest]\nslots = 1')
    assert settings.lanes == (LaneSettings("fast", 2, ("fast", "mail")), LaneSettings("rest", 1))


@pytest.mark.parametrize("text", ["true", "Yes", "ON", "1"])
def test_booleans_are_read_as_people_write_them(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, environ={"DUTIFUL_NOTIFY_IN_TRANSACTION": text}).notify_in_transaction
    assert not read(tmp_path, "notify_in_transaction = false").notify_in_transaction
    assert not read(tmp_path, environ={"DUTIFUL_NOTIFY_IN_TRANSACTION": "off"}).notify_in_transaction


def test_retention_can_be_turned_off_and_kinds_named(tmp_path: Path) -> None:
    assert read(tmp_path, environ={"DUTIFUL_RETENTION": "never"}).retention is None
    assert read(tmp_path, environ={"DUTIFUL_KINDS": "email, analysis,"}).kinds == ("email", "analysis")
    assert read(tmp_path, 'kinds = ["email"]').kinds == ("email",)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lease": "soon"}, "lease 'soon' is not a length of time"),
        ({"lease": "10ms"}, "setting lease is 0:00:00.010000: a lease shorter than 1s"),
        ({"poll": 0}, "setting poll is 0:00:00: less than 50ms"),
        ({"pool_size": "many"}, r"setting pool_size is 'many' \(argument\): it must be a whole number"),
        ({"pool_size": 1.5}, "setting pool_size is 1.5"),
        ({"pool_size": True}, "setting pool_size is True"),
        ({"batch": 0}, "setting batch is 0: it must be at least 1"),
        ({"payload_limit": -1}, "setting payload_limit is -1"),
        ({"sqlite_driver": "other"}, 'setting sqlite_driver is \'other\': it must be "apsw" or "sqlite3"'),
        ({"notify_in_transaction": "maybe"}, "setting notify_in_transaction is 'maybe'"),
        ({"heartbeat": 0}, "setting heartbeat is 0:00:00: less than 100ms"),
        ({"lanes": ""}, "setting lanes is empty"),
        ({"lanes": "fast"}, "lane 'fast' is not of the form name=slots:queue"),
        ({"lanes": "fast=0:fast"}, "lane 'fast' has slots 0: it must be a whole number from 1"),
        ({"lanes": "a=1;a=2"}, "setting lanes names a lane twice: a, a"),
        ({"lanes": "*=1"}, r"setting lanes names a lane '\*', which means all lanes in a pause"),
        ({"lanes": {"fast": 3}}, "setting lanes: lane 'fast' is 3; write"),
        ({"lanes": {"fast": {"queues": ["fast"]}}}, "setting lanes: lane 'fast' is"),
        ({"lanes": {"fast": {"slots": 0}}}, "lane 'fast' has slots 0"),
        ({"lanes": "fast=2:*:reserve=1"}, "only a fair lane keeps"),
        ({"lanes": "fast=2:*:unfair"}, "an option 'unfair'; there are: fair, reserve=NUMBER, lend=NUMBER, kind=NAME"),
        (
            {"lanes": {"fast": {"slots": 2, "just": True}}},
            "an unknown 'just'; there are: fair, kinds, lend, queues, reserve",
        ),
        ({"lanes": {"fast": {"slots": 2, "kinds": "render"}}}, "lane 'fast' has kinds 'render': write names"),
        ({"lanes": {"fast": {"slots": 2, "fair": "yes"}}}, "lane 'fast' has fair 'yes': it must be True or False"),
        ({"lanes": 3}, "setting lanes is 3: write it as"),
        ({"colour": "red"}, r"there is no setting 'colour' \(argument\); there are: app, database_url"),
    ],
)
def test_an_error_names_the_setting_and_what_it_may_be(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(tmp_path, **given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slots": 0}, "slots 0: it must be a whole number from 1"),
        ({"slots": "3"}, "slots '3': it must be a whole number"),
        ({"slots": True}, "slots True: it must be a whole number"),
        ({"fair": 1}, "fair 1: it must be True or False"),
        ({"reserve": 1}, "has a reserve, which only a fair lane keeps: add fair"),
        ({"fair": True, "reserve": 2}, "reserves 2 of its 2 slots: it must be fewer"),
        ({"fair": True, "reserve": -1}, "reserve -1: it must be a whole number from 0"),
        ({"lend": 3}, "lends 3 of its 2 slots"),
        ({"lend": -1}, "lend -1: it must be a whole number from 0"),
        ({"fair": True, "lend": 1}, "is fair, and lends no slots"),
        ({"queues": ()}, "has no queues: name some"),
        ({"queues": "fast"}, r"queues 'fast': write names, as in queues=\('one',\)"),
        ({"kinds": (1,)}, r"kinds \(1,\): write names"),
        ({"tenants": ("",)}, "tenants .*: write names"),
        ({"name": ""}, "the name ''"),
    ],
)
def test_a_lane_is_refused_where_it_is_declared(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LaneSettings(**{"name": "wide", "slots": 2, **options})


def test_a_setting_is_refused_where_code_gives_it() -> None:
    with pytest.raises(UsageError, match="setting batch is 0"):
        Dutiful(batch=0)
    with pytest.raises(UsageError, match="names a lane twice"):
        Dutiful(lanes="a=1; a=2")
    app = Dutiful()
    with pytest.raises(UsageError, match="there is no setting 'lanse'"):
        app.configure(lanse="a=1")
    app.configure(retry_base="2h")  # the environment may set a retry_max to go with it


def test_tenants_are_set_as_people_write_them(tmp_path: Path) -> None:
    plain = read(tmp_path)
    assert (plain.tenants, plain.claim_tenants) == (False, ())
    settings = read(tmp_path, "tenants = true", {"DUTIFUL_CLAIM_TENANTS": "acme, globex"})
    assert (settings.tenants, settings.claim_tenants) == (True, ("acme", "globex"))


def test_an_error_says_where_the_setting_came_from(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pool_size is 'x' \(environment\)"):
        read(tmp_path, environ={"DUTIFUL_POOL_SIZE": "x"})
    with pytest.raises(UsageError, match=r"there is no setting 'leese' \(file\)"):
        read(tmp_path, 'leese = "1s"')
    with pytest.raises(UsageError, match="not valid TOML") as caught:
        read(tmp_path, "lease =")
    assert isinstance(caught.value.__cause__, tomllib.TOMLDecodeError)


def test_an_app_reads_its_settings_late_and_can_be_given_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    app = Dutiful()
    monkeypatch.setenv("DUTIFUL_DATABASE_URL", "sqlite:///late.db")
    assert app.settings.database_url == "sqlite:///late.db"
    app.configure(database_url="sqlite:///given.db", lease=None)
    assert app.settings.database_url == "sqlite:///given.db"


@pytest.mark.parametrize("given", ["edition=1; project = 2", {"edition": 1, "project": "2"}])
def test_lock_classes_are_numbers_by_namespace(tmp_path: Path, given: Any) -> None:
    assert read(tmp_path, lock_classes=given).lock_classes == {"edition": 1, "project": 2}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("edition", "from 1 to 2147483647"),
        ("edition=0", "from 1 to 2147483647"),
        ({"edition": 2**31}, "from 1 to 2147483647"),
        ({"edition": True}, "from 1 to 2147483647"),
        ("edition=1; project=1", "the class 1 to two namespaces"),
        ("=1", "edition=1; project=2"),
        ([1], "edition=1; project=2"),
    ],
)
def test_lock_classes_that_cannot_work_are_refused(tmp_path: Path, given: Any, reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        read(tmp_path, lock_classes=given)


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Settings().lease = timedelta(0)  # type: ignore[misc]


def test_a_worker_may_wait_for_its_database_without_limit_or_not_at_all(tmp_path: Path) -> None:
    waits = [
        load({"startup_timeout": value}, environ={}, folder=tmp_path).startup_timeout for value in ("never", "0s", "1m")
    ]

    assert waits == [None, timedelta(0), timedelta(minutes=1)]


def test_addresses_and_tokens_of_providers_are_neither_shown_nor_passed_on(tmp_path: Path) -> None:
    environ = {
        f"DUTIFUL_{name}": f"smtp://hunter2@{name}.example"
        for name in ("SMTP_URL", "SMS_URL", "SMS_TOKEN", "FILES_URL", "FILES_TOKEN")
    }
    settings = read(tmp_path, environ=environ)
    assert settings.smtp_url == "smtp://hunter2@SMTP_URL.example" and settings.files_token is not None
    assert "hunter2" not in repr(settings)
    withheld = without_secrets(environ)
    assert withheld.keys() == environ.keys() and "hunter2" not in str(withheld)
    assert read(tmp_path, environ=withheld).sms_token == "withheld:"
