"""`dlq` and `bulk`, on both stores; and what one tenant's operator cannot do to another's."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Project
from dead_letters import BROKEN, Office

from dutiful.core import ids
from dutiful.core.review import ReviewState


@pytest.fixture
def office(tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Office:
    return Office(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)


@pytest.mark.req("W40", "W41", "W42", "W50", "L86", "L88")
def test_dead_letters_are_listed_shown_grouped_and_counted(office: Office) -> None:
    first, second = office.bury(2, tenant="acme", payload='{"name": "Ada"}', options='{"unique": "k"}')
    (other,) = office.bury(
        1, queue="other", error={**BROKEN, "type": "Timeout", "class": "transient", "fingerprint": "f2"}
    )

    page = office.run("dlq", "list", "--limit", "2", "--json").json
    rest = office.run("dlq", "list", "--after", page["next_after"], "--json").json
    shown = office.run("dlq", "show", str(first), "--json").json
    groups = office.run("dlq", "groups", "--json").json["groups"]
    counts = office.run("dlq", "stats", "--since", "1h", "--json").json

    assert [letter["uuid"] for letter in (*page["dead_letters"], *rest["dead_letters"])] == [
        str(other),
        *(str(one) for one in sorted((first, second), reverse=True)),
    ]
    assert (shown["payload"], shown["unique_key"], shown["status"]) == ({"name": "Ada"}, "k", "pending_review")
    assert (shown["error_class"], shown["message"]) == ("retryable", "mailbox 7 is full")
    assert [(group["fingerprint"], group["count"]) for group in groups] == [("f1", 2), ("f2", 1)]
    assert (counts["total"], counts["by_class"]) == (3, {"retryable": 2, "transient": 1})
    for args, count in (
        (["--error-class", "transient"], 1),
        (["--tenant", "acme"], 2),
        (["--fingerprint", "f1"], 2),
        (["--error-type", "Timeout", "--queue", "other"], 1),
        (["--text", "MAILBOX"], 3),
        (["--status", "discarded"], 0),
        (["--until", "1h"], 0),
        (["--kind", "greet", "--kind", "explode"], 3),
    ):
        assert len(office.run("dlq", "list", "--json", *args).json["dead_letters"]) == count, args
    for args in (["list"], ["show", str(first), "--full"], ["groups"], ["stats"]):
        assert "SMTPError" in office.run("dlq", *args).out or args == ["stats"]


@pytest.mark.req("W43", "W44", "W45", "W46", "W49", "L89")
def test_one_is_reprocessed_with_another_payload_and_one_is_discarded(office: Office) -> None:
    mended, hopeless = office.bury(2, payload='{"name": 5}', options='{"unique": "k"}')
    (office.project.folder / "body.json").write_text('{"name": "Ada"}')

    wrong = office.run("dlq", "reprocess", str(mended), "--payload", '{"nmae": "Ada"}')
    made = office.run("dlq", "reprocess", str(mended), "--payload", "@body.json", "--notes", "a typo", "--json").json
    again = office.run("dlq", "reprocess", str(mended))
    gone = office.run("dlq", "discard", str(hopeless), "--notes", "spam")

    assert (wrong.code, "nmae" in wrong.err) == (2, True)
    assert made["dead_letter_uuid"] == str(mended)
    assert made["new_unique_key"].startswith("k_retry_")
    assert office.run("jobs", "show", made["new_job_id"], "--json").json["payload"] == {"name": "Ada"}
    assert (again.code, "is reprocessing" in again.err) == (1, True)
    assert gone.out == f"{ids.public(hopeless)}  discarded\n"
    letter = office.letter(mended)
    assert (letter.payload, letter.notes, letter.status) == ({"name": 5}, "a typo", ReviewState.REPROCESSING)
    assert [f"{e.action} {e.outcome} {e.origin}" for e in office.trail()] == [
        "dead_letter.reprocess refused cli",
        "dead_letter.reprocess requested cli",
        "dead_letter.reprocess succeeded cli",
        "dead_letter.reprocess refused cli",
        "dead_letter.discard requested cli",
        "dead_letter.discard succeeded cli",
    ]


def test_many_are_looked_at_first_and_acted_on_after_a_yes(office: Office) -> None:
    office.bury(3, tenant="acme")
    office.bury(1, error={**BROKEN, "fingerprint": "f2"})

    looked = office.run("dlq", "discard", "--all", "--fingerprint", "f1", "--dry-run")
    unanswered = office.run("dlq", "discard", "--all", "--fingerprint", "f1")
    done = office.run(
        "dlq", "discard", "--all", "--fingerprint", "f1", "--yes", "--notes", "an incident", "--json"
    ).json
    neither = office.run("dlq", "discard")

    assert "3 dead letters can be told to discard" in looked.out
    assert (unanswered.code, "--yes" in unanswered.err) == (2, True)
    assert (done["state"], done["done"], done["total"], done["reason"]) == ("done", 3, 3, "an incident")
    assert (neither.code, "--all" in neither.err) == (2, True)
    assert office.run("dlq", "stats", "--json").json["by_status"] == {"pending_review": 1, "discarded": 3}
    (run,) = office.run("bulk", "list", "--json").json["runs"]
    assert run["id"] == done["id"]
    assert "3 of 3" in office.run("bulk", "show", done["id"]).out
    assert office.run("bulk", "stop", done["id"]).code == 1
    assert "done, 3 of 3" in office.run("bulk", "resume", done["id"]).out


def test_what_is_asked_in_the_wrong_way_is_refused_with_the_remedy(office: Office) -> None:
    office.bury(0)  # makes the database
    never = ids.public(uuid4())
    for args, code, told in (
        (["dlq", "show", never], 1, "there is no dead letter"),
        (["dlq", "reprocess", never], 1, "there is no dead letter"),
        (["dlq", "show", "nonsense"], 2, "nonsense"),
        (["dlq", "list", "--since", "yesterday"], 2, "--since"),
        (["dlq", "list", "--category", "none"], 2, "there is no category"),
        (["dlq", "list", "--status", "open"], 2, "pending_review"),
        (["dlq", "reprocess", "--all", "--payload", "{}"], 2, "one dead letter"),
        (["dlq", "reprocess", never, "--payload", "[1]"], 2, "not an object"),
        (["bulk", "show", never], 1, "there is no bulk run"),
        (["bulk", "stop", never], 1, "there is no bulk run"),
    ):
        answer = office.run(*args)
        assert (answer.code, told in answer.err) == (code, True), (args, answer)


@pytest.mark.req("W67")
def test_an_operator_of_one_tenant_finds_and_changes_nothing_of_another(office: Office) -> None:
    (theirs,) = office.bury(1, tenant="globex", payload='{"name": "Bob"}')
    run_id = office.run("dlq", "acknowledge", "--all", "--tenant", "globex", "--yes", "--json").json["id"]
    before, events = office.letter(theirs), len(office.trail())
    jobs = len(office.run("jobs", "list", "--json").json["jobs"])
    one = str(theirs)

    refused = [
        ["jobs", "show", one],
        ["jobs", "retry", one],
        ["jobs", "cancel", one],
        ["dlq", "show", one],
        ["dlq", "list", "--after", one],
        ["dlq", "acknowledge", one],
        ["dlq", "reprocess", one],
        ["dlq", "reprocess", one, "--payload", '{"name": "Ann"}'],
        ["dlq", "resolve", one],
        ["dlq", "discard", one],
        ["bulk", "show", run_id],
        ["bulk", "stop", run_id],
        ["bulk", "resume", run_id],
    ]
    for args in refused:
        answer = office.run(*args, "--tenant", "acme")
        assert answer.code == 1, args
        assert "there is no" in answer.err or "not found" in answer.out, args
        assert "globex" not in answer.out + answer.err, args
    for args, empty in (
        (["jobs", "list"], {"jobs": []}),
        (["dlq", "list"], {"dead_letters": []}),
        (["dlq", "groups"], {"groups": []}),
        (["dlq", "stats"], {"total": 0}),
        (["dlq", "discard", "--all", "--dry-run"], {"count": 0, "sample": []}),
        (["dlq", "discard", "--all", "--yes"], {"done": 0, "total": 0}),
        (["queues"], {"queues": []}),
        (["stats"], {"dead_letters": 0}),
    ):
        answer = office.run(*args, "--tenant", "acme", "--json").json
        assert answer.items() >= empty.items(), args
        assert "globex" not in json.dumps(answer)

    assert office.letter(theirs) == before
    assert len(office.run("jobs", "list", "--json").json["jobs"]) == jobs
    # All that was tried is on record, as acme's; of globex's there is nothing new.
    new = office.trail()[events:]
    assert {event.tenant for event in new} == {"acme"}
    assert sum(event.outcome == "refused" for event in new) == 8
    assert all(
        event["tenant"] == "acme" for event in office.run("audit", "list", "--tenant", "acme", "--json").json["events"]
    )
