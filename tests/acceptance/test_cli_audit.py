"""`audit`: what was done, and whether the trail is whole, on both stores."""

from pathlib import Path

import pytest
from command_line import Project
from dead_letters import Office

from dutiful.services.sealer import Sealer
from dutiful.store import Store


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
        "schedule.disable succeeded",
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
