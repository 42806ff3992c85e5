"""`dlq` and `bulk`, on both stores; and what one tenant's operator cannot do to another's."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Project
from dead_letters import BROKEN, CommandLine

from dutiful.core import ids
from dutiful.core.review.state import ReviewState


@pytest.fixture
def cli(
    tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)


@pytest.mark.req("W40", "W41", "W42", "W50", "L86", "L88")
def test_dead_letters_are_listed_shown_grouped_and_counted(cli: CommandLine) -> None:
    first, second = cli.make_dead_letters(2, tenant="acme", payload='{"name": "Ada"}', options='{"unique": "k"}')
    (other,) = cli.make_dead_letters(
        1, queue="other", error={**BROKEN, "type": "Timeout", "class": "transient", "fingerprint": "f2"}
    )

    page = cli.run("dead-letters", "list", "--limit", "2", "--json").json
    rest = cli.run("dead-letters", "list", "--after", page["next_after"], "--json").json
    shown = cli.run("dead-letters", "show", str(first), "--json").json
    groups = cli.run("dead-letters", "groups", "--json").json["groups"]
    counts = cli.run("dead-letters", "stats", "--since", "1h", "--json").json

    assert [letter["uuid"] for letter in (*page["dead_letters"], *rest["dead_letters"])] == [
        str(other),
        *(str(one) for one in sorted((first, second), reverse=True)),
    ]
    whole = cli.run("dead-letters", "list", "--tenant", "acme", "--json", "--details").json["dead_letters"]
    assert {letter["payload"]["name"] for letter in whole} == {"Ada"}
    assert not {"payload", "job", "errors", "history"} & page["dead_letters"][0].keys()
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
        assert len(cli.run("dead-letters", "list", "--json", *args).json["dead_letters"]) == count, args
    for args, shows in (
        (["list"], "SMTPError"),
        (["show", str(first), "--full"], "SMTPError"),
        (["groups"], "SMTPError"),
        (["stats"], "retryable"),
    ):
        assert shows in cli.run("dead-letters", *args).out, args


@pytest.mark.req("W43", "W44", "W45", "W46", "W49", "L89")
def test_one_is_reprocessed_with_another_payload_and_one_is_discarded(cli: CommandLine) -> None:
    fixed, hopeless = cli.make_dead_letters(2, payload='{"name": 5}', options='{"unique": "k"}')
    (cli.project.folder / "body.json").write_text('{"name": "Ada"}')

    wrong = cli.run("dead-letters", "reprocess", str(fixed), "--payload", '{"nmae": "Ada"}')
    fix = ("--payload", "@body.json", "--notes", "a typo", "--json")
    made = cli.run("dead-letters", "reprocess", str(fixed), *fix).json
    again = cli.run("dead-letters", "reprocess", str(fixed))
    gone = cli.run("dead-letters", "discard", str(hopeless), "--notes", "spam")

    assert (wrong.code, "nmae" in wrong.err) == (2, True)
    assert made["dead_letter_uuid"] == str(fixed)
    assert made["new_unique_key"].startswith("k_retry_")
    assert cli.run("jobs", "show", made["new_job_id"], "--json").json["payload"] == {"name": "Ada"}
    assert (again.code, "is reprocessing" in again.err) == (1, True)
    assert gone.out == f"{ids.public(hopeless)}  discarded\n"
    letter = cli.letter(fixed)
    assert (letter.payload, letter.notes, letter.status) == ({"name": 5}, "a typo", ReviewState.REPROCESSING)
    assert [f"{e.action} {e.outcome} {e.origin}" for e in cli.trail()] == [
        "dead_letter.reprocess refused cli",
        "dead_letter.reprocess requested cli",
        "dead_letter.reprocess succeeded cli",
        "dead_letter.reprocess refused cli",
        "dead_letter.discard requested cli",
        "dead_letter.discard succeeded cli",
    ]


def test_many_are_looked_at_first_and_acted_on_after_a_yes(cli: CommandLine) -> None:
    cli.make_dead_letters(3, tenant="acme")
    cli.make_dead_letters(1, error={**BROKEN, "fingerprint": "f2"})

    looked = cli.run("dead-letters", "discard", "--all", "--fingerprint", "f1", "--dry-run")
    unanswered = cli.run("dead-letters", "discard", "--all", "--fingerprint", "f1")
    done = cli.run(
        "dead-letters", "discard", "--all", "--fingerprint", "f1", "--yes", "--notes", "an incident", "--json"
    ).json
    neither = cli.run("dead-letters", "discard")

    assert "3 dead letters can be changed by discard" in looked.out
    assert (unanswered.code, "--yes" in unanswered.err) == (2, True)
    assert (done["state"], done["done"], done["total"], done["reason"]) == ("done", 3, 3, "an incident")
    assert (neither.code, "--all" in neither.err) == (2, True)
    assert cli.run("dead-letters", "stats", "--json").json["by_status"] == {"pending_review": 1, "discarded": 3}
    (run,) = cli.run("bulk", "list", "--json").json["runs"]
    assert run["id"] == done["id"]
    assert "3 of 3" in cli.run("bulk", "show", done["id"]).out
    assert cli.run("bulk", "stop", done["id"]).code == 1
    assert "done, 3 of 3" in cli.run("bulk", "resume", done["id"]).out


def test_what_is_asked_in_the_wrong_way_is_refused_with_the_remedy(cli: CommandLine) -> None:
    cli.make_dead_letters(0)  # makes the database
    never = ids.public(uuid4())
    for args, code, reported in (
        (["dead-letters", "show", never], 1, "there is no dead letter"),
        (["dead-letters", "reprocess", never], 1, "there is no dead letter"),
        (["dead-letters", "show", "nonsense"], 2, "nonsense"),
        (["dead-letters", "list", "--since", "yesterday"], 2, "--since"),
        (["dead-letters", "list", "--category", "none"], 2, "there is no category"),
        (["dead-letters", "list", "--status", "open"], 2, "pending_review"),
        (["dead-letters", "reprocess", "--all", "--payload", "{}"], 2, "one dead letter"),
        (["dead-letters", "reprocess", never, "--payload", "[1]"], 2, "not an object"),
        (["bulk", "show", never], 1, "there is no bulk run"),
        (["bulk", "stop", never], 1, "there is no bulk run"),
    ):
        answer = cli.run(*args)
        assert (answer.code, reported in answer.err) == (code, True), (args, answer)


@pytest.mark.req("W67")
def test_an_operator_of_one_tenant_finds_and_changes_nothing_of_another(cli: CommandLine) -> None:
    (theirs,) = cli.make_dead_letters(1, tenant="globex", payload='{"name": "Bob"}')
    run_id = cli.run("dead-letters", "acknowledge", "--all", "--tenant", "globex", "--yes", "--json").json["id"]
    before, events = cli.letter(theirs), len(cli.trail())
    jobs = len(cli.run("jobs", "list", "--json").json["jobs"])
    one = str(theirs)

    refused = [
        ["jobs", "show", one],
        ["jobs", "retry", one],
        ["jobs", "cancel", one],
        ["dead-letters", "show", one],
        ["dead-letters", "list", "--after", one],
        ["dead-letters", "acknowledge", one],
        ["dead-letters", "reprocess", one],
        ["dead-letters", "reprocess", one, "--payload", '{"name": "Ann"}'],
        ["dead-letters", "resolve", one],
        ["dead-letters", "discard", one],
        ["bulk", "show", run_id],
        ["bulk", "stop", run_id],
        ["bulk", "resume", run_id],
    ]
    for args in refused:
        answer = cli.run(*args, "--tenant", "acme")
        assert answer.code == 1, args
        if args[:2] == ["jobs", "cancel"]:  # which answers for each job, because it takes several
            assert "not found" in answer.out, args
        else:
            assert "there is no" in answer.err, args
        assert "globex" not in answer.out + answer.err, args
    for args, empty in (
        (["jobs", "list"], {"jobs": []}),
        (["dead-letters", "list"], {"dead_letters": []}),
        (["dead-letters", "groups"], {"groups": []}),
        (["dead-letters", "stats"], {"total": 0}),
        (["dead-letters", "discard", "--all", "--dry-run"], {"count": 0, "sample": []}),
        (["dead-letters", "discard", "--all", "--yes"], {"done": 0, "total": 0}),
        (["queues"], {"queues": []}),
        (["stats"], {"dead_letters": 0}),
    ):
        answer = cli.run(*args, "--tenant", "acme", "--json").json
        assert answer.items() >= empty.items(), args
        assert "globex" not in json.dumps(answer)

    assert cli.letter(theirs) == before
    assert len(cli.run("jobs", "list", "--json").json["jobs"]) == jobs
    # All that was tried is on record, as acme's; of globex's there is nothing new.
    new = cli.trail()[events:]
    assert {event.tenant for event in new} == {"acme"}
    assert sum(event.outcome == "refused" for event in new) == 8
    shown = cli.run("audit", "list", "--tenant", "acme", "--json").json["events"]
    assert {event["tenant"] for event in shown} == {"acme"}
