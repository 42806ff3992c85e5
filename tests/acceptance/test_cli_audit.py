"""`audit`: what was done, and whether the trail is whole, on both stores."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import Project
from dead_letters import CommandLine

from dutiful.core.review.audit import Seal
from dutiful.maintenance.sealer import Sealer
from dutiful.store import Store
from old_events import any_date
from suite.audit import event


@pytest.fixture
def cli(
    tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    cli = CommandLine(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)
    cli.make_dead_letters(0)  # makes the database
    return cli


async def seal(store: Store) -> None:
    await Sealer(store.audit).seal_batch()


def test_every_act_of_the_command_line_is_on_record(cli: CommandLine) -> None:
    assert cli.run("pause", "queue", "mail", "--reason", "incident 12").code == 0
    assert cli.run("resume", "queue", "mail").code == 0
    assert cli.run("schedules", "disable", "nothing").code == 1

    events = cli.run("audit", "list", "--json").json["events"]
    paused = cli.run("audit", "list", "--action", "queue.", "--outcome", "succeeded", "--json").json["events"]

    assert [f"{e['action']} {e['outcome']}" for e in events[::-1]] == [
        "queue.pause requested",
        "queue.pause succeeded",
        "queue.resume requested",
        "queue.resume succeeded",
        "schedule.disable requested",
        "schedule.disable failed",
    ]
    assert [e["action"] for e in paused] == ["queue.resume", "queue.pause"]
    assert (paused[1]["reason"], paused[1]["origin"], paused[1]["target"]) == ("incident 12", "cli", "mail")
    assert "incident 12" in cli.run("audit", "list", "--since", "1h").out
    page = cli.run("audit", "list", "--limit", "2", "--json").json
    assert cli.run("audit", "list", "--before", page["next_before"], "--json").json["events"] == events[2:]
    wrong = cli.run("audit", "list", "--before", "nonsense")
    assert (wrong.code, "not a UUID" in wrong.err) == (2, True)


def test_an_intact_trail_is_reported_with_its_head(cli: CommandLine) -> None:
    cli.run("pause", "queue", "mail")
    cli.ask(seal)
    cli.run("resume", "queue", "mail")

    whole = cli.run("audit", "verify")
    found = cli.run("audit", "verify", "--json").json

    assert whole.code == 0
    assert whole.out.startswith("intact: 2 sealed events\nhead 2:")
    assert "2 events wait for their seal" in whole.err
    assert (found["intact"], found["checked"], found["unsealed"]) == (True, 2, 2)
    head = whole.out.split()[-1]
    assert cli.run("audit", "verify", "--expect", head).code == 0
    other = cli.run("audit", "verify", "--expect", f"2:{'0' * 64}")
    assert (other.code, "BROKEN at seal 2" in other.out) == (1, True)
    assert cli.run("audit", "verify", "--expect", "nonsense").code == 2


def test_how_long_events_are_kept_is_said_once_for_all_and_on_record(cli: CommandLine) -> None:
    assert "events are kept forever" in cli.run("audit", "verify").err

    said = cli.run("audit", "keep", "400d", "--reason", "section 4")

    assert (said.code, said.out) == (0, "audit events are kept for 400d\n")
    found = cli.run("audit", "verify")
    assert "events are kept for 400d" in found.err
    assert cli.run("doctor", "--json").json["facts"]["audit_events_kept"] == "400d"
    event = cli.run("audit", "list", "--action", "audit.keep", "--json").json["events"][0]
    assert (event["before"], event["after"]) == ({"keep": None}, {"keep": "400d"})
    assert (event["reason"], event["outcome"]) == ("section 4", "succeeded")
    for wrong in ("1h", "0", "long"):
        assert cli.run("audit", "keep", wrong).code == 2
    assert cli.run("audit", "keep", "forever").out == "audit events are kept forever\n"
    assert "events are kept forever" in cli.run("audit", "verify").err


def test_a_head_that_retention_has_deleted_has_an_exit_code_of_its_own(cli: CommandLine) -> None:
    async def trimmed(store: Store) -> Seal:
        with any_date(cli.project.url):
            await store.audit.append([event(at=datetime.now(UTC) - timedelta(days=40)) for _ in range(2)])
        await seal(store)
        first = (await store.audit.sealed(0, 1))[0].seal
        await store.audit.set_retention(timedelta(days=30))
        assert await store.audit.trim(10) == 2
        return first

    head = cli.ask(trimmed)
    answer = cli.run("audit", "verify", "--expect", f"{head.seq}:{head.hash}")

    assert (answer.code, "cannot be checked any more" in answer.err) == (3, True)


def test_an_event_is_one_line_whatever_was_asked_for(cli: CommandLine) -> None:
    assert cli.run("pause", "queue", "a\nb\tc", "--reason", "one\ntwo").code == 2

    _, *rows = cli.run("audit", "list").out.splitlines()

    assert len(rows) == len(cli.run("audit", "list", "--json").json["events"]) == 1
    assert r"a\nb\tc" in rows[0] and r"one\ntwo" in rows[0]
