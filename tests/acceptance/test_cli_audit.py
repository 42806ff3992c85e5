"""`audit`: what was done, and whether the trail is whole, on both stores."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import Project
from dead_letters import Office

from dutiful.core.audit import Seal
from dutiful.services.sealer import Sealer
from dutiful.store import Store
from dutiful.testing.store_suite.audit import event


@pytest.fixture
def office(tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Office:
    office = Office(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)
    office.bury(0)  # makes the database
    return office


async def seal(store: Store) -> None:
    await Sealer(store).seal_some()


def test_every_act_of_the_command_line_is_on_record(office: Office) -> None:
    assert office.run("pause", "queue", "mail", "--reason", "incident 12").code == 0
    assert office.run("resume", "queue", "mail").code == 0
    assert office.run("schedules", "pause", "nothing").code == 1

    events = office.run("audit", "list", "--json").json["events"]
    paused = office.run("audit", "list", "--action", "queue.", "--outcome", "succeeded", "--json").json["events"]

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
    assert "incident 12" in office.run("audit", "list", "--since", "1h").out
    page = office.run("audit", "list", "--limit", "2", "--json").json
    assert office.run("audit", "list", "--before", page["next_before"], "--json").json["events"] == events[2:]
    wrong = office.run("audit", "list", "--before", "nonsense")
    assert (wrong.code, "not a UUID" in wrong.err) == (2, True)


def test_a_trail_that_is_whole_is_told_with_its_head(office: Office) -> None:
    office.run("pause", "queue", "mail")
    office.ask(seal)
    office.run("resume", "queue", "mail")

    whole = office.run("audit", "verify")
    found = office.run("audit", "verify", "--json").json

    assert whole.code == 0
    assert whole.out.startswith("intact: 2 sealed events\nhead 2:")
    assert "2 events wait for their seal" in whole.err
    assert (found["intact"], found["checked"], found["unsealed"]) == (True, 2, 2)
    head = whole.out.split()[-1]
    assert office.run("audit", "verify", "--expect", head).code == 0
    other = office.run("audit", "verify", "--expect", f"2:{'0' * 64}")
    assert (other.code, "BROKEN at seal 2" in other.out) == (1, True)
    assert office.run("audit", "verify", "--expect", "nonsense").code == 2


def test_how_long_events_are_kept_is_said_once_for_all_and_on_record(office: Office) -> None:
    assert "events are kept forever" in office.run("audit", "verify").err

    said = office.run("audit", "keep", "400d", "--reason", "section 4")

    assert (said.code, said.out) == (0, "audit events are kept for 400d\n")
    found = office.run("audit", "verify")
    assert "events are kept for 400d" in found.err
    assert office.run("doctor", "--json").json["facts"]["audit_events_kept"] == "400d"
    event = office.run("audit", "list", "--action", "audit.keep", "--json").json["events"][0]
    assert (event["before"], event["after"]) == ({"keep": None}, {"keep": "400d"})
    assert (event["reason"], event["outcome"]) == ("section 4", "succeeded")
    for wrong in ("1h", "0", "long"):
        assert office.run("audit", "keep", wrong).code == 2
    assert office.run("audit", "keep", "forever").out == "audit events are kept forever\n"
    assert "events are kept forever" in office.run("audit", "verify").err


def test_a_head_that_retention_has_deleted_has_an_exit_code_of_its_own(office: Office) -> None:
    async def trimmed(store: Store) -> Seal:
        await store.append_audit([event(at=datetime.now(UTC) - timedelta(days=40)) for _ in range(2)])
        await seal(store)
        first = (await store.sealed(0, 1))[0].seal
        await store.keep_audit(timedelta(days=30))
        assert await store.trim_audit(10) == 2
        return first

    head = office.ask(trimmed)
    answer = office.run("audit", "verify", "--expect", f"{head.seq}:{head.hash}")

    assert (answer.code, "cannot be checked any more" in answer.err) == (3, True)


def test_an_event_is_one_line_whatever_was_asked_for(office: Office) -> None:
    assert office.run("pause", "queue", "a\nb\tc", "--reason", "one\ntwo").code == 2

    _, *rows = office.run("audit", "list").out.splitlines()

    assert len(rows) == len(office.run("audit", "list", "--json").json["events"]) == 1
    assert r"a\nb\tc" in rows[0] and r"one\ntwo" in rows[0]
