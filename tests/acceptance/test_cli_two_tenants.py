"""Every command with two tenants: for tenants, or for none; a new command has to be declared as one of both."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer
from command_line import Answer, Project
from dead_letters import CommandLine
from uuid_utils.compat import uuid7

from dutiful.cli.registry import build
from dutiful.client.client import Client
from dutiful.core import ids
from dutiful.core.principal import Principal
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.dead_letters import BulkState, DeadLetterFilter
from suite.builders import enqueue_one

pytestmark = pytest.mark.req("W67")

# What each asks as acme for what is globex's, by id: {job} waits, {letter} is dead, {run} goes on. None may be found.
BY_ID = {
    "jobs show": ["{job}"],
    "jobs cancel": ["{job}"],
    "jobs retry": ["{letter}"],
    "jobs fail": ["{job}"],
    "jobs release": ["{job}"],
    "trace": ["{job}"],
    "dead-letters show": ["{letter}"],
    "dead-letters reprocess": ["{letter}"],
    "dead-letters acknowledge": ["{letter}"],
    "dead-letters resolve": ["{letter}"],
    "dead-letters discard": ["{letter}"],
    "bulk show": ["{run}"],
    "bulk stop": ["{run}"],
    "bulk resume": ["{run}"],
}
# What each lists or counts as acme, which has nothing here.
LISTS = [
    "queues",
    "stats",
    "jobs list",
    "jobs stuck",
    "dead-letters list",
    "dead-letters groups",
    "dead-letters stats",
    "bulk list",
    "audit list",
]
# These act on all that their options choose, too.
CHOOSING = ["dead-letters reprocess", "dead-letters acknowledge", "dead-letters resolve", "dead-letters discard"]
ELSEWHERE = {
    "worker": "--tenant: which tenants' jobs it takes; tests of lanes",
    "enqueue": "--tenant: whose job it makes; test_cli_enqueue",
    "send-event": "--tenant: whose jobs get it; test_cli_steps",
    "events": "--tenant: whose events it follows; test_cli_events",
    "tokens create": "--tenant: how far the token reaches; test_cli_tokens",
}
FLEETWIDE = {
    "init": "makes files, and asks no database",
    "demo": "has a database of its own",
    "server": "the API has tenants of its own, those of its tokens",
    "migrate": "the schema is one for all",
    "doctor": "is about all tenants",
    "workers": "take jobs of all tenants",
    "metrics": "are counted by kind, over all tenants",
    "jobs delete-finished": "deletes jobs of all tenants",
    "pause": "holds back jobs of all tenants",
    "resume": "holds back jobs of all tenants",
    "drain": "holds back jobs of all tenants",
    "breakers *": "protect services that all tenants' jobs call",
    "limits *": "count the jobs of all tenants",
    "shares *": "divide slots between all tenants",
    "encryption *": "keys are those of all tenants",
    "alerts *": "are about all tenants",
    "schedules *": "belong to the code",
    "webhooks *": "belong to the code",
    "tenants *": "set up the database itself",
    "roles": "sets up the database itself",
    "sql-worker": "takes jobs of all tenants",
    "redeliver": "sends jobs of all tenants",
    "supervisor *": "belong to the database's own functions",
    "tokens list": "is for administrators of all tenants",
    "tokens revoke": "is for administrators of all tenants",
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


def test_every_verb_is_declared_as_for_tenants_or_not() -> None:
    known = dict(verbs(typer.main.get_command(build(None))))
    scoped = {*BY_ID, *LISTS, *ELSEWHERE}

    for verb, command in known.items():
        fleetwide = verb in FLEETWIDE or f"{verb.split()[0]} *" in FLEETWIDE
        assert (verb in scoped) != fleetwide, f"{verb}: say in this file whether it is a tenant's, and try it"
        has_option = any("--tenant" in option.opts for option in command.params)
        assert has_option != fleetwide, f"{verb}: what is a tenant's has --tenant, and nothing else has"
    assert scoped <= set(known)


@pytest.fixture
def cli(
    tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)


async def run_of_globex(store: Store) -> UUID:
    bob = Operator(Client(store, InProcessDelivery()), Principal(name="bob", tenant="globex"))
    return (await bob.bulk.start(ReviewAct.DISCARD, DeadLetterFilter(), "not yours")).id


def test_as_one_tenant_nothing_of_another_is_found_shown_counted_or_changed(cli: CommandLine) -> None:
    (letter,) = cli.make_dead_letters(tenant="globex", queue="other", payload='{"name": "Bob"}')
    job = cli.ask(lambda store: enqueue_one(store, tenant="globex", queue="theirs"))
    run = cli.ask(run_of_globex)
    names = {"job": ids.public(job), "letter": ids.public(letter), "run": ids.public(run)}
    others = {name: ids.public(uuid7()) for name in names}

    for verb in (*LISTS, *CHOOSING):
        chosen = ["--all", "--yes"] if verb in CHOOSING else []
        answer = cli.run(*verb.split(), *chosen, "--tenant", "acme")
        assert answer.code == 0, (verb, answer.err)
        for secret in (*names.values(), "globex", "Bob", "other", "theirs", "SMTPError", "not yours"):
            assert secret not in answer.out + answer.err, (verb, secret)
    for verb, args in BY_ID.items():
        command = verb.split()
        theirs = cli.run(*command, *(arg.format(**names) for arg in args), "--tenant", "acme")
        never_was = cli.run(*command, *(arg.format(**others) for arg in args), "--tenant", "acme")
        assert theirs.code == 1, (verb, theirs.out)
        # With the same message, so that its existence stays hidden.
        assert _nameless(theirs, names) == _nameless(never_was, others), verb

    left = cli.letter(letter)
    assert (left.status, left.reviewed_by) == (ReviewState.PENDING_REVIEW, None)
    unmoved = cli.ask(lambda store: store.dead_letters.bulk_run(run))
    assert unmoved is not None
    assert (unmoved.state, unmoved.done, unmoved.cursor) == (BulkState.RUNNING, 0, None)
    waiting = cli.ask(lambda store: store.queries.job(job))
    assert waiting is not None
    assert waiting.state == "ready"
    assert {event.tenant for event in cli.trail() if event.principal != "bob"} == {"acme"}


def _nameless(answer: Answer, names: dict[str, str]) -> str:
    text = answer.out + answer.err
    for name in names.values():
        text = text.replace(name, "ID")
    return text
