"""Every verb of the command line with two tenants: as one of them, or nobody's; a new verb has to say which."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer
from command_line import Answer, Project
from dead_letters import Office
from uuid_utils.compat import uuid7

from dutiful.cli.commands import build
from dutiful.client import Client
from dutiful.core import ids
from dutiful.core.principal import Principal
from dutiful.core.review import ReviewAct, ReviewState
from dutiful.deliveries.in_process import InProcess
from dutiful.operator import Operator
from dutiful.reviewing import BulkState, DeadLetterFilter
from dutiful.store import Store
from dutiful.testing.store_suite.builders import enqueue_one

pytestmark = pytest.mark.req("W67")

# What each asks as acme for what is globex's, by id: {job} waits, {letter} is dead, {run} goes on. None may be found.
BY_ID = {
    "jobs show": ["{job}"],
    "jobs cancel": ["{job}"],
    "jobs retry": ["{letter}"],
    "jobs fail": ["{job}"],
    "jobs release": ["{job}"],
    "trace": ["{job}"],
    "dlq show": ["{letter}"],
    "dlq reprocess": ["{letter}"],
    "dlq acknowledge": ["{letter}"],
    "dlq resolve": ["{letter}"],
    "dlq discard": ["{letter}"],
    "bulk show": ["{run}"],
    "bulk stop": ["{run}"],
    "bulk resume": ["{run}"],
}
# What each lists or counts as acme, which has nothing here.
LISTS = ["queues", "stats", "jobs list", "jobs stuck", "dlq list", "dlq groups", "dlq stats", "bulk list", "audit list"]
# These act on all that their options choose, too.
CHOOSING = ["dlq reprocess", "dlq acknowledge", "dlq resolve", "dlq discard"]
ELSEWHERE = {
    "worker": "--tenant: which tenants' jobs it takes; tests of lanes",
    "enqueue": "--tenant: whose job it makes; test_cli_enqueue",
    "events": "--tenant: whose events it follows; test_cli_events",
    "token create": "--tenant: how far the token reaches; test_cli_tokens",
}
FLEETWIDE = {
    "init": "makes files, and asks no database",
    "demo": "has a database of its own",
    "server": "the API has tenants of its own, those of its tokens",
    "migrate": "the schema is one for all",
    "doctor": "is about the whole house",
    "workers": "take jobs of all tenants",
    "metrics": "are counted by kind, over all tenants",
    "jobs delete-finished": "deletes jobs of all tenants",
    "pause": "holds back jobs of all tenants",
    "resume": "holds back jobs of all tenants",
    "drain": "holds back jobs of all tenants",
    "breakers *": "guard services that all tenants' jobs call",
    "alerts *": "are about the whole house",
    "schedules *": "belong to the code",
    "webhooks *": "belong to the code",
    "tenants *": "set up the database itself",
    "token list": "is for administrators of the whole house",
    "token revoke": "is for administrators of the whole house",
    "audit verify": "the chain is one for all",
    "audit keep": "the chain is one for all",
}


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every verb that can be typed, and its command."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    for name, one in (inner or {}).items():
        yield from verbs(one, (*path, name))


def test_of_every_verb_somebody_has_said_whether_it_is_a_tenants() -> None:
    known = dict(verbs(typer.main.get_command(build(None))))
    scoped = {*BY_ID, *LISTS, *ELSEWHERE}

    for verb, command in known.items():
        fleetwide = verb in FLEETWIDE or f"{verb.split()[0]} *" in FLEETWIDE
        assert (verb in scoped) != fleetwide, f"{verb}: say in this file whether it is a tenant's, and try it"
        has_option = any("--tenant" in option.opts for option in command.params)
        assert has_option != fleetwide, f"{verb}: what is a tenant's has --tenant, and nothing else has"
    assert scoped <= set(known)


@pytest.fixture
def office(tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Office:
    return Office(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)


async def run_of_globex(store: Store) -> UUID:
    bob = Operator(Client(store, InProcess()), Principal(name="bob", tenant="globex"))
    return (await bob.start_bulk(ReviewAct.DISCARD, DeadLetterFilter(), "not yours")).id


def test_as_one_tenant_nothing_of_another_is_found_shown_counted_or_changed(office: Office) -> None:
    (letter,) = office.bury(tenant="globex", queue="other", payload='{"name": "Bob"}')
    job = office.ask(lambda store: enqueue_one(store, tenant="globex", queue="theirs"))
    run = office.ask(run_of_globex)
    names = {"job": ids.public(job), "letter": ids.public(letter), "run": ids.public(run)}
    others = {name: ids.public(uuid7()) for name in names}

    for verb in (*LISTS, *CHOOSING):
        chosen = ["--all", "--yes"] if verb in CHOOSING else []
        answer = office.run(*verb.split(), *chosen, "--tenant", "acme")
        assert answer.code == 0, (verb, answer.err)
        for secret in (*names.values(), "globex", "Bob", "other", "theirs", "SMTPError", "not yours"):
            assert secret not in answer.out + answer.err, (verb, secret)
    for verb, args in BY_ID.items():
        words = verb.split()
        theirs = office.run(*words, *(arg.format(**names) for arg in args), "--tenant", "acme")
        never_was = office.run(*words, *(arg.format(**others) for arg in args), "--tenant", "acme")
        assert theirs.code == 1, (verb, theirs.out)
        # In the same words, so that nobody learns that it is there.
        assert _nameless(theirs, names) == _nameless(never_was, others), verb

    left = office.letter(letter)
    assert (left.status, left.reviewed_by) == (ReviewState.PENDING_REVIEW, None)
    unmoved = office.ask(lambda store: store.bulk_run(run))
    assert unmoved is not None
    assert (unmoved.state, unmoved.done, unmoved.cursor) == (BulkState.RUNNING, 0, None)
    waiting = office.ask(lambda store: store.find(job))
    assert waiting is not None
    assert waiting.state == "ready"
    assert {event.tenant for event in office.trail() if event.principal != "bob"} == {"acme"}


def _nameless(answer: Answer, names: dict[str, str]) -> str:
    text = answer.out + answer.err
    for name in names.values():
        text = text.replace(name, "ID")
    return text
