"""The audit trail: sealed by the services, and verified, on both stores."""

import asyncio
from datetime import timedelta
from uuid import UUID

import apsw
import msgspec
import psycopg
import pytest
from operating import audited, dead_letter, now, of_acme, operator, tamper, tamper_past_checks, trail
from running_workers import eventually, working
from uuid_utils.compat import uuid7

from dutiful import Dutiful, DutifulError, UsageError
from dutiful.client.client import Client
from dutiful.core.errors import NotAllowed
from dutiful.core.principal import Origin
from dutiful.core.redaction.redact import redact_value
from dutiful.core.review.audit import AuditEvent, AuditOutcome, Seal
from dutiful.core.review.state import ReviewAct
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.maintenance.sealer import Sealer
from dutiful.operator import Operator
from dutiful.operator.actor import AuditedAction
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.leadership import Survey
from old_events import any_date
from suite.builders import enqueue_one

BUSY = Survey(leading=True, now=now(), unsealed=True)


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest) -> str:
    return "" if backend == "sqlite" else str(request.getfixturevalue("pg18_url"))


async def cancelled(store: Store, count: int = 3) -> Operator:
    """So many acts, two events each, all sealed."""
    ada = operator(store)
    for _ in range(count):
        await ada.jobs.cancel(await enqueue_one(store, now=now()), "why not")
    await Sealer(store.audit).tick(BUSY)
    return ada


async def test_events_are_sealed_and_the_chain_is_whole(store: Store) -> None:
    ada = await cancelled(store)
    await ada.fleet.pause(PauseScope.QUEUE, "mail")

    found = await ada.audit.verify()

    assert (found.broken, found.checked, found.unsealed, found.anchor) == (None, 6, 2, None)
    assert found.head is not None
    assert found.head.seq == 6
    assert found.oldest_unsealed_at == (await trail(store))[6].at


CHANGES = {
    "UPDATE {event} SET principal = 'eve' WHERE id = (SELECT event_id FROM {seal} WHERE seq = 3)": "changed",
    "UPDATE {event} SET reason = NULL WHERE id = (SELECT event_id FROM {seal} WHERE seq = 3)": "changed",
    "UPDATE {seal} SET hash = (SELECT hash FROM {seal} WHERE seq = 1) WHERE seq = 3": "changed",
    "DELETE FROM {event} WHERE id = (SELECT event_id FROM {seal} WHERE seq = 3)": "deleted",
    "DELETE FROM {seal} WHERE seq = 3": "missing",
}


@pytest.mark.parametrize("statement", CHANGES)
async def test_the_first_break_is_found(store: Store, url: str, statement: str) -> None:
    ada = await cancelled(store)
    (third,) = (await store.audit.sealed(2, 1))[:1]

    tamper(store, url, statement)
    broken = (await ada.audit.verify()).broken

    assert broken is not None
    assert broken.seq == 3
    assert CHANGES[statement] in broken.problem
    assert broken.event_id == (None if "missing" in broken.problem else third.seal.event_id)


async def test_an_end_that_was_cut_off_is_found_by_a_head_that_was_kept(store: Store, url: str) -> None:
    ada = await cancelled(store)
    head = (await ada.audit.verify()).head
    assert isinstance(head, Seal)
    assert (await ada.audit.verify(head)).broken is None

    tamper(
        store,
        url,
        "DELETE FROM {event} WHERE id IN (SELECT event_id FROM {seal} WHERE seq > 4)",
        "DELETE FROM {seal} WHERE seq > 4",
    )

    assert (await ada.audit.verify()).broken is None
    broken = (await ada.audit.verify(head)).broken
    assert broken is not None
    assert (broken.seq, "cut off" in broken.problem) == (6, True)
    # Sealed anew, the chain goes on; the one that was kept is not in it.
    await cancelled(store, 2)
    again = (await ada.audit.verify(head)).broken
    assert again is not None
    assert (again.seq, "expected" in again.problem) == (6, True)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [("DELETE FROM {unsealed}", "slipped in"), ("DELETE FROM {event} WHERE action = 'mine'", "deleted")],
)
async def test_what_is_neither_sealed_nor_waits_for_it_is_found(
    store: Store, url: str, statement: str, problem: str
) -> None:
    ada = await cancelled(store)
    event = _event(action="mine")
    await store.audit.append([event])
    assert (await ada.audit.verify()).broken is None

    tamper(store, url, statement)
    broken = (await ada.audit.verify()).broken

    assert broken is not None
    assert (broken.seq, broken.event_id, problem in broken.problem) == (None, event.id, True)


async def test_an_expected_seal_that_retention_has_deleted_is_neither_right_nor_wrong(store: Store, url: str) -> None:
    with any_date(url or store.url):
        await store.audit.append([_event(days=40) for _ in range(4)])
    ada = await cancelled(store)
    first, _, _, fourth = [link.seal for link in await store.audit.sealed(0, 4)]
    await store.audit.set_retention(timedelta(days=30))
    await Sealer(store.audit).tick(BUSY)

    kept = await ada.audit.verify(fourth)
    other = await ada.audit.verify(msgspec.structs.replace(fourth, hash="f" * 64))
    deleted = await ada.audit.verify(first)

    assert kept.anchor is not None
    assert (kept.anchor.seq, kept.broken, kept.gone) == (4, None, False)
    assert other.broken is not None
    assert (other.broken.seq, "expected" in other.broken.problem) == (4, True)
    assert (deleted.broken, deleted.gone) == (None, True)


async def test_two_who_seal_at_once_make_one_chain(store: Store) -> None:
    await store.audit.append([_event() for _ in range(1_200)])

    async def lead() -> None:
        sealer = Sealer(store.audit)
        while await store.audit.unsealed(1):
            await sealer.seal_batch()

    await asyncio.gather(lead(), lead(), lead())

    found = await operator(store).audit.verify()
    assert (found.broken, found.checked, found.unsealed) == (None, 1_200, 0)


async def trimmed(store: Store, url: str, count: int = 3) -> Operator:
    """So many events that retention has deleted, and six that are left."""
    with any_date(url or store.url):
        await store.audit.append([_event(days=40) for _ in range(count)])
    ada = await cancelled(store)
    await store.audit.set_retention(timedelta(days=30))
    await Sealer(store.audit).tick(BUSY)
    return ada


async def test_what_is_past_its_time_is_deleted_and_the_rest_can_be_verified(store: Store, url: str) -> None:
    ada = await trimmed(store, url, 700)

    found = await ada.audit.verify()

    assert found.anchor is not None
    assert (found.anchor.seq, found.checked, found.broken) == (700, 6, None)
    assert len(await trail(store)) == 6


CUTS = {
    "UPDATE {anchor} SET keep = {hour}": "no policy is below",
    "UPDATE {anchor} SET at = trimmed_at": "younger",
    "UPDATE {anchor} SET keep = {day} * 1100000": "younger",  # since before the year 1
    "UPDATE {anchor} SET at = at + {day} * 20, keep = {day} * 25": "younger",
    "UPDATE {anchor} SET trimmed_at = trimmed_at + {day}": "in the future",
    "UPDATE {policy} SET keep = NULL": "no change of that is recorded",
    "UPDATE {policy} SET keep = {day} * 400": "no change of that is recorded",
}


@pytest.mark.parametrize(("statement", "problem"), CUTS.items())
async def test_an_anchor_without_proof_of_policy_and_age_is_a_cut(
    store: Store, url: str, statement: str, problem: str
) -> None:
    ada = await trimmed(store, url)
    assert (await ada.audit.verify()).broken is None

    tamper(store, url, statement)
    broken = (await ada.audit.verify()).broken

    assert broken is not None
    assert (broken.seq, "the beginning was cut off" in broken.problem, problem in broken.problem) == (3, True, True)


async def test_a_policy_that_an_operator_has_changed_proves_an_older_anchor(store: Store, url: str) -> None:
    ada = await trimmed(store, url)

    await ada.audit.set_retention(None, "a court asked for it")

    assert (await ada.audit.verify()).broken is None


async def test_a_policy_that_was_set_by_sql_and_back_is_noticed_by_what_it_deleted(store: Store, url: str) -> None:
    with any_date(url or store.url):
        await store.audit.append([_event(days=40) for _ in range(3)])
    ada = await cancelled(store)
    await ada.audit.set_retention(timedelta(days=400), "as the law says")
    await Sealer(store.audit).tick(BUSY)
    assert (await ada.audit.verify()).broken is None

    tamper(store, url, "UPDATE {policy} SET keep = {day} * 30")
    assert await store.audit.trim(100) == 3
    tamper(store, url, "UPDATE {policy} SET keep = {day} * 400")
    broken = (await ada.audit.verify()).broken
    await ada.audit.set_retention(timedelta(days=500), "as the new law says")
    later = (await ada.audit.verify()).broken

    assert broken is not None and "kept for 30d, and no change of that is recorded" in broken.problem
    assert later is not None and later.problem == broken.problem


ANCHORS = {
    "is right": {},
    "has another policy": {"keep": "{day} * 20"},
    "is of another time": {"at": "e.at - {day}"},
    "is made later": {"trimmed_at": "e.at + {day} * 45"},
    "is of another seal": {"hash": "(SELECT hash FROM {seal} WHERE seq = 2)"},
}


@pytest.mark.parametrize("anchor", ANCHORS)
async def test_an_anchor_that_is_wrong_in_one_point_is_refused(store: Store, url: str, anchor: str) -> None:
    with any_date(url or store.url):
        await store.audit.append([_event(days=40) for _ in range(3)])
    await store.audit.set_retention(timedelta(days=30))
    assert await Sealer(store.audit).seal_batch() == 3
    proof = {"hash": "s.hash", "at": "e.at", "keep": "{day} * 30", "trimmed_at": "e.at + {day} * 40"} | ANCHORS[anchor]
    cut = (
        f"INSERT INTO {{anchor}} (one, seq, {', '.join(proof)}) SELECT {{one}}, s.seq, {', '.join(proof.values())} "
        "FROM {seal} s JOIN {event} e ON e.id = s.event_id WHERE s.seq = 3"
    )

    if ANCHORS[anchor]:
        with pytest.raises((psycopg.Error, apsw.Error), match="anchor"):
            tamper(store, url, cut, triggers=True)
    else:
        tamper(store, url, cut, triggers=True)


@pytest.mark.parametrize("days", [-2, 2])
async def test_an_event_whose_id_is_of_another_day_is_refused(store: Store, days: int) -> None:
    event = _event()
    moved = event.id.int + (days * 86_400_000 << 80)  # the first 48 bits are milliseconds

    with pytest.raises(DutifulError, match="check the clock"):
        await store.audit.append([msgspec.structs.replace(event, id=UUID(int=moved))])


async def test_events_that_are_kept_cannot_be_cut_by_an_anchor(store: Store, url: str) -> None:
    ada = await cancelled(store)
    cut = (
        "INSERT INTO {anchor} (one, seq, hash, at, keep, trimmed_at) SELECT {one}, s.seq, s.hash, e.at, {day}, "
        "e.at + {day} * 2 FROM {seal} s JOIN {event} e ON e.id = s.event_id WHERE s.seq = 4"
    )
    await store.audit.set_retention(timedelta(days=1))

    with pytest.raises((psycopg.Error, apsw.Error), match="anchor"):
        tamper(store, url, cut, triggers=True)
    await store.audit.set_retention(None)
    with pytest.raises((psycopg.Error, apsw.Error), match="anchor"):
        tamper(store, url, cut, triggers=True)

    tamper(
        store,
        url,
        cut,
        "DELETE FROM {event} WHERE id IN (SELECT event_id FROM {seal} WHERE seq <= 4)",
        "DELETE FROM {seal} WHERE seq <= 4",
    )
    broken = (await ada.audit.verify()).broken
    assert broken is not None
    assert "the beginning was cut off" in broken.problem


async def test_json_that_python_cannot_read_stops_neither_sealer_nor_verify_nor_list(store: Store, url: str) -> None:
    ada = await cancelled(store)
    odd = ["[" * 3_000 + "]" * 3_000, '{"n": 1e999}', '"\\ud800"', "9" * 5_000]
    await store.audit.append([_event() for _ in odd])
    for event, text in zip(await store.audit.unsealed(10), odd, strict=True):
        where = f"id = x'{event.id.hex}'" if store.url.startswith("sqlite") else f"id = '{event.id}'"
        tamper(store, url, f"UPDATE {{event}} SET after = '{text.replace('{', '{{').replace('}', '}}')}' WHERE {where}")

    await Sealer(store.audit).tick(BUSY)

    found = await ada.audit.verify()
    assert (found.broken, found.checked, found.unsealed) == (None, 6 + len(odd), 0)
    assert len(await ada.audit.search(AuditFilter(limit=50))) == 6 + len(odd)


async def test_a_worker_seals_what_people_did(app: Dutiful) -> None:
    @app.job
    async def idle() -> None: ...

    async with working(app):
        ada = Operator(await app.client(), "ada")
        await ada.fleet.pause(PauseScope.QUEUE, "mail", "incident 12")

        async def sealed() -> bool:
            found = await ada.audit.verify()
            return (found.checked, found.unsealed, found.broken) == (2, 0, None)

        await eventually(sealed)


def _event(days: int = 0, action: str = "job.cancel") -> AuditEvent:
    event_id: UUID = uuid7()
    at = now() - timedelta(days=days)
    return AuditEvent(
        id=event_id,
        act=event_id,
        at=at,
        principal="ada",
        origin=Origin.CLI,
        action=action,
        outcome=AuditOutcome.SUCCEEDED,
    )


async def test_what_is_too_long_for_the_trail_is_cut_and_the_act_is_done(store: Store) -> None:
    long = "word " * 20_000
    ada = operator(store, long, address=long)
    job = await enqueue_one(store, now=now())

    await ada.jobs.cancel(job, long)
    await ada.schedules.remove(long)
    async with ada.actor.audited("job.mine", None, None, before={"all": [long]}) as action:
        action.after = {"changed": [long]}

    assert (await audited(store, job)) == ["job.cancel requested", "job.cancel succeeded"]
    (cancelled,) = await trail(store, action="job.cancel", outcome=AuditOutcome.SUCCEEDED)
    (removed, _) = await trail(store, action="schedule.remove")
    (mine,) = await trail(store, action="job.mine", outcome=AuditOutcome.SUCCEEDED)
    for text in (cancelled.principal, cancelled.address, cancelled.reason, removed.target):
        assert text is not None and text.endswith("(100,000 characters in all)")
    for value in (mine.before, mine.after):
        assert value["cut"].startswith('{"') and value["bytes"] > 100_000
    await Sealer(store.audit).tick(BUSY)
    assert (await ada.audit.verify()).broken is None


async def test_an_act_for_a_tenant_with_a_name_too_long_is_refused(store: Store) -> None:
    wrong = pytest.raises(UsageError, match=r"^tenant .* has 201 characters")
    with wrong:
        operator(store, tenant="x" * 201)
    with wrong:
        await operator(store).bulk.start(ReviewAct.DISCARD, DeadLetterFilter(tenant="x" * 201))
    assert await trail(store) == []


async def test_a_bulk_run_with_a_filter_that_fills_pages_is_refused(store: Store) -> None:
    kinds = [f"kind {n:0190}" for n in range(200)]
    with pytest.raises(UsageError, match=r"the filter has .* bytes, more than 32,768"):
        await operator(store).bulk.start(ReviewAct.DISCARD, DeadLetterFilter(kinds=kinds))
    (refused,) = await trail(store)
    assert refused.outcome is AuditOutcome.REFUSED


TOKENS = ["ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a", "gh\u200bp_" + "16C7e42F292c6912E7710c838347Ae178B4a"]


@pytest.mark.req("W8")
@pytest.mark.parametrize("token", TOKENS, ids=ascii)
async def test_a_token_pasted_anywhere_is_not_in_the_trail(store: Store, token: str) -> None:
    ada = operator(store, f"ada {token}")
    pasted = f"see {token} there"
    failed = await dead_letter(store)

    wanted = DeadLetterFilter(text=pasted, correlation_id=token, kinds=[token], queue=token)
    run = await ada.bulk.start(ReviewAct.DISCARD, wanted, pasted)
    await ada.bulk.step(run.id)
    await ada.jobs.cancel(await enqueue_one(store, now=now()), pasted)
    await ada.fleet.pause(PauseScope.QUEUE, "mail", pasted)
    await ada.dead_letters.acknowledge(failed, pasted)
    await ada.schedules.remove(pasted, pasted)
    with pytest.raises(UsageError):
        await ada.jobs.enqueue(pasted, {"n": 1}, reason=pasted)

    written = msgspec.json.encode(await trail(store)).decode()
    assert "16C7e42F292c" not in written and "[redacted]" in written
    shown = [await ada.bulk.all(), await store.control.pauses(), await ada.dead_letters.get(failed)]
    without_keys = msgspec.json.encode([msgspec.to_builtins(one) for one in shown]).decode()
    for exact in (f'"correlation_id":"{token}"', f'"kinds":["{token}"]', f'"queue":"{token}"'):
        without_keys = without_keys.replace(exact, "")  # a run needs these as they are
    assert "16C7e42F292c" not in without_keys


@pytest.mark.req("W8")
async def test_names_of_fields_in_the_trail_are_no_secrets(store: Store) -> None:
    token = TOKENS[0]
    app = Dutiful()

    @app.job
    async def email(data: dict[str, int] | None = None) -> None: ...

    failed = await dead_letter(store, kind="email", payload="{}")
    await operator(store, kinds=app.kinds).dead_letters.reprocess(failed, payload={"data": {"n": 1}})
    (event,) = await trail(store, action="dead_letter.reprocess", outcome=AuditOutcome.SUCCEEDED)
    assert event.after["changed"] == ["payload.data"]
    safe = redact_value({"changed": [f"payload.{token}"], token: 1, "n": 3, "at": None})
    assert token not in str(safe) and safe["n"] == 3 and safe["changed"] == ["payload.[redacted]"]


@pytest.mark.req("W8")
async def test_a_token_pasted_as_the_reason_of_a_cancel_is_not_stored(store: Store) -> None:
    job = await enqueue_one(store, now=now())
    await Client(store, InProcessDelivery()).cancel(job, f"see {TOKENS[0]}")
    record = await store.queries.job(job)
    assert "16C7e42F292c" not in msgspec.json.encode(record, enc_hook=str).decode()


@pytest.mark.parametrize("by_sql", ["NULL", "{day} * 2", "{day} * 500"])
async def test_a_policy_that_was_changed_by_sql_is_noticed_although_nothing_was_deleted_yet(
    store: Store, url: str, by_sql: str
) -> None:
    ada = await cancelled(store)
    await ada.audit.set_retention(timedelta(days=400), "as the law says")
    await Sealer(store.audit).tick(BUSY)
    assert (await ada.audit.verify()).broken is None

    tamper(store, url, f"UPDATE {{policy}} SET keep = {by_sql}")
    broken = (await ada.audit.verify()).broken
    tamper(store, url, "UPDATE {policy} SET keep = {day} * 400")
    restored = (await ada.audit.verify()).broken

    assert broken is not None and broken.seq is None
    assert "but for 400d by the last change on record" in broken.problem
    assert restored is None


async def test_a_policy_that_no_operator_has_set_is_noticed(store: Store) -> None:
    ada = await cancelled(store)
    await store.audit.set_retention(timedelta(days=400))

    broken = (await ada.audit.verify()).broken

    assert broken is not None and "but forever by the last change on record" in broken.problem


@pytest.mark.parametrize("by_sql", ["{hour} * 23", "{hour} * 24 * 36601", "-{hour}"])
async def test_a_policy_that_no_operator_could_set_is_refused_by_the_table(store: Store, url: str, by_sql: str) -> None:
    await store.audit.set_retention(timedelta(days=30))

    with pytest.raises((psycopg.errors.CheckViolation, apsw.ConstraintError)):
        tamper(store, url, f"UPDATE {{policy}} SET keep = {by_sql}")

    assert await store.audit.retention() == timedelta(days=30)


async def test_months_are_no_policy_because_a_month_less_29_days_may_lie_in_the_future(pg18_url: str) -> None:
    with psycopg.connect(pg18_url) as owner, pytest.raises(psycopg.errors.CheckViolation):
        owner.execute("UPDATE dutiful.audit_policy SET keep = '1 month -29 days'")


@pytest.mark.parametrize("by_sql", ["{hour}", "-{hour}"])
async def test_a_policy_below_a_day_deletes_nothing_and_is_reported(
    store: Store, url: str, by_sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    with any_date(url or store.url):
        await store.audit.append([_event(days=40) for _ in range(3)])
    ada = await cancelled(store)
    await ada.audit.set_retention(timedelta(days=400))
    sealer = Sealer(store.audit)
    tamper_past_checks(store, url, by_sql)

    await sealer.tick(BUSY)

    assert (await store.audit.trim(10), await store.audit.anchor()) == (0, None)
    assert len(await trail(store)) == 3 + 6 + 2
    broken = (await ada.audit.verify()).broken
    assert broken is not None and "no policy is below 1d" in broken.problem
    (logged,) = [one.getMessage() for one in caplog.records if one.name == "dutiful.maintenance"]
    assert "no audit event is deleted" in logged and "`dutiful audit keep`" in logged


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_months_that_passed_the_checks_delete_nothing(store: Store, url: str) -> None:
    await cancelled(store)
    tamper_past_checks(store, url, "interval '1 month -31 days'")
    assert await store.audit.trim(10) == 0
    tamper_past_checks(store, url, "interval '1 month -29 days -1 hour'")
    assert await store.audit.trim(10) == 0


async def test_a_change_of_the_policy_is_recorded_with_it_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await cancelled(store)
    await ada.audit.set_retention(timedelta(days=400))
    with pytest.raises(UsageError):
        await ada.audit.set_retention(timedelta(hours=1))  # refused, and recorded as such
    late = _event(days=2)  # an event of another day, which the database refuses
    with monkeypatch.context() as patched, pytest.raises(DutifulError):
        patched.setattr(AuditedAction, "ended", lambda *_: late)
        await ada.audit.set_retention(timedelta(days=30))

    found = await ada.audit.verify()

    assert (found.keep, found.broken) == (timedelta(days=400), None)


async def test_a_change_that_was_only_requested_excuses_no_change_by_sql(store: Store, url: str) -> None:
    ada = await cancelled(store)
    await ada.audit.set_retention(timedelta(days=400))
    last = (await trail(store, action="audit.keep"))[-1]
    for outcome in (AuditOutcome.REQUESTED, AuditOutcome.FAILED):
        ids = {"id": uuid7(), "act": uuid7()}
        await store.audit.append([msgspec.structs.replace(last, outcome=outcome, **ids) for _ in range(120)])
    assert (await ada.audit.verify()).broken is None

    tamper(store, url, "UPDATE {policy} SET keep = {day} * 30")

    broken = (await ada.audit.verify()).broken
    assert broken is not None and "but for 400d by the last change on record" in broken.problem


async def test_a_recorded_change_that_was_never_made_is_named_with_its_author(store: Store) -> None:
    ada = await cancelled(store)
    await ada.audit.set_retention(timedelta(days=400))
    last = (await trail(store, action="audit.keep"))[-1]
    forged = msgspec.structs.replace(last, id=uuid7(), act=uuid7(), principal="eve", after={"keep": "2d"})
    await store.audit.append([forged])

    broken = (await ada.audit.verify()).broken

    assert broken is not None and broken.event_id == forged.id
    assert "for 2d by the last change on record, by eve" in broken.problem


async def test_an_event_that_was_to_be_sent_to_another_tenant_is_on_record_and_not_sent(store: Store) -> None:
    ann = of_acme(store)
    with pytest.raises(NotAllowed, match="acts for the tenant acme"):
        await ann.sent_events.send("paid", "7", tenant="globex")
    await ann.sent_events.send("paid", "7")

    sent = await trail(store, action="event.send")
    assert [(event.outcome, event.tenant, event.target) for event in sent] == [
        (outcome, "acme", "paid:7") for outcome in ("refused", "requested", "succeeded")
    ]
