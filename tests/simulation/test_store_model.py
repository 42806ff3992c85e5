"""Both stores against one model: they agree with it after any sequence of calls."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from simulated import Run, each_length, simulate_postgres, simulate_sqlite
from store_model import Model, ModelJob, Taken

from databases import CleanDatabase
from dutiful.core.errors import UsageError
from dutiful.core.job import ClaimToken, JobRecord, NewJob, OnConflict, Scope, Unique
from dutiful.core.outcome import Cancelled, Done, Failed, Lost, Outcome, Partial, Released, Snoozed, TimedOut
from dutiful.core.review.state import ReviewAct
from dutiful.core.settle import Change
from dutiful.core.states import FINAL, State
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel, Refusal, RefusalReason
from dutiful.store.control import Pause, PauseScope
from dutiful.store.dead_letters import DeadLetterFilter, Review
from dutiful.store.queries import JobFilter
from suite.builders import ADA, BOB, OOPS, change, new_id, new_job

T = TypeVar("T")
KINDS = ["greet", "part"]
LEVELS = [QueueLevel("default", 100), QueueLevel("default", 5), QueueLevel("fast", 100)]
# Leases and windows are never whole seconds long, as the clock's steps are, so that none ends at a step.
LEASES = st.sampled_from([timedelta(seconds=10.5), timedelta(seconds=60.5)])
WINDOW = timedelta(seconds=30.5)
AGES = st.sampled_from([timedelta(seconds=0.5), timedelta(seconds=60.5)])
LATER = st.sampled_from([None, None, None, timedelta(0), timedelta(seconds=5), timedelta(seconds=60)])
PICK = st.integers(0, 1000)
PICKS = st.lists(PICK, min_size=1, max_size=3)
WORKERS = st.sampled_from([ADA, BOB])
TENANTS = [None, None, "acme", "globex"]
GATES = [(PauseScope.KIND, "greet"), (PauseScope.QUEUE, "default"), (PauseScope.LANE, "fast")]
OUTCOMES: list[Outcome] = [
    Done('{"n": 1}'),
    Partial(None, (OOPS,)),
    Failed(OOPS),
    Failed(OOPS, final=True),
    Failed(OOPS, retry_after=timedelta(0)),
    Snoozed(timedelta(0)),
    Snoozed(timedelta(seconds=7)),
    Cancelled("no use"),
    TimedOut(timedelta(seconds=1), OOPS),
    Released(),
    Lost(),
]
THREE_OUTCOMES = st.lists(st.sampled_from(OUTCOMES), min_size=3, max_size=3)


@dataclass(frozen=True)
class Action:
    arguments: st.SearchStrategy[dict[str, Any]]
    when: "When"


When = Callable[["StoreMachine"], bool]
ACTIONS: dict[str, Action] = {}
CHOICES: list[str] = []


def has(*states: State) -> When:
    return lambda machine: bool(machine.model.in_state(*states or State))


def has_letters(machine: "StoreMachine") -> bool:
    return bool(machine.model.letters)


def has_claimed(machine: "StoreMachine") -> bool:
    return bool(machine.model.taken)


def act(times: int = 1, *, when: When = lambda machine: True, **arguments: st.SearchStrategy[Any]) -> Callable[[T], T]:
    """Registers an action, chosen `times` as often as others.

    Not a rule of its own: Hypothesis leaves about half of the rules out of each example, and then little happens.
    """

    def register(method: T) -> T:
        name: str = method.__name__  # type: ignore[attr-defined]
        ACTIONS[name] = Action(st.fixed_dictionaries(arguments), when)
        CHOICES.extend([name] * times)
        return method

    return register


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store = store
        self.run = run
        self.model: Model = Model()
        self.renewer = store.claims.renewer()
        self.ended: dict[UUID, JobRecord] = {}

    def teardown(self) -> None:
        self.renewer.close()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in CHOICES if ACTIONS[name].when(self)]), "act")
        getattr(self, name)(**data.draw(ACTIONS[name].arguments, "with"))

    # --- enqueue

    def _insert(self, *jobs: NewJob) -> None:
        expected = self.model.insert(jobs)
        assert self.run(self.store.jobs.insert(jobs, now=self.model.now)) == expected

    @act(
        3,
        kind=st.sampled_from(KINDS),
        line=st.sampled_from(LEVELS),
        later=LATER,
        tenants=st.lists(st.sampled_from(TENANTS), min_size=1, max_size=3),
    )
    def enqueue(self, kind: str, line: QueueLevel, later: timedelta | None, tenants: list[str | None]) -> None:
        self._insert(*(self._job(kind, line, delay=later, max_attempts=2, tenant=tenant) for tenant in tenants))

    @act(pick=PICK, when=has())
    def enqueue_again(self, pick: int) -> None:
        self._insert(self._any(pick).asked)

    @act(
        3,
        unique=st.builds(
            Unique,
            key=st.sampled_from(["a", "b"]),
            scope=st.sampled_from(Scope),
            on_conflict=st.sampled_from(OnConflict),
            across_kinds=st.booleans(),
        ),
        kind=st.sampled_from(KINDS),
        later=LATER,
        tenant=st.sampled_from(TENANTS),
    )
    def enqueue_unique(self, unique: Unique, kind: str, later: timedelta | None, tenant: str | None) -> None:
        if unique.scope is Scope.WINDOW:
            unique = Unique(unique.key, unique.scope, unique.on_conflict, WINDOW, unique.across_kinds)
        self._insert(self._job(kind, LEVELS[0], delay=later, unique=unique, tenant=tenant))

    @act(2, kind=st.sampled_from(KINDS), picks=st.lists(PICK, min_size=1, max_size=2), later=LATER, when=has())
    def enqueue_dependent(self, kind: str, picks: list[int], later: timedelta | None) -> None:
        needed = [self._any(pick) for pick in picks]
        tenant = needed[0].asked.tenant  # it can depend on jobs of its own only
        needs = tuple({job.id for job in needed if job.asked.tenant == tenant})
        run_at = None if later is None else self.model.now + later
        self._insert(self._job(kind, LEVELS[0], run_at=run_at, depends_on=needs, tenant=tenant))

    @act()
    def enqueue_dependent_on_an_unknown_job(self) -> None:
        jobs = [new_job(), new_job(depends_on=(new_id(),))]
        with pytest.raises(UsageError):
            self.run(self.store.jobs.insert(jobs, now=self.model.now))

    # --- claims

    @act(
        6,
        worker_id=WORKERS,
        lane=st.sampled_from(["general", "fast"]),
        levels=st.permutations(LEVELS),
        kinds=st.sampled_from([KINDS, KINDS, KINDS[:1], KINDS[1:]]),
        limit=st.sampled_from([10, 3, 1, 0]),
        suspects=st.sampled_from([10, 1, 0]),
        lease=LEASES,
        tenants=st.sampled_from([[], [], ["acme"], ["globex", "acme"]]),
        when=has(State.READY),
    )
    def claim(self, **fields: Any) -> None:
        ask = ClaimRequest(**fields)
        self.model.claim(ask, self.run(self.store.claims.claim(ask, now=self.model.now)))

    @act(worker=WORKERS, lease=LEASES, when=has_claimed)
    def renew(self, worker: UUID, lease: timedelta) -> None:
        mine = [t for t in self.model.taken if t.worker_id == worker]
        tokens = [ClaimToken(t.claim.job_id, t.claim.claim_id) for t in mine]
        renewal = self.renewer.renew(tokens, lease, now=self.model.now)
        assert (renewal.lost, renewal.cancel) == self.model.renew(mine, lease)

    @act(picks=PICKS, when=has_claimed)
    def release(self, picks: list[int]) -> None:
        chosen = _some(self.model.taken, picks)
        self.renewer.release([ClaimToken(t.claim.job_id, t.claim.claim_id) for t in chosen])
        for taken in chosen:
            self.model.release(taken)

    @act(2, picks=PICKS, when=has_claimed)
    def complete(self, picks: list[int]) -> None:
        chosen = _some(self.model.taken, picks)
        done = [Completion(t.claim.job_id, t.claim.claim_id, '{"n": 1}') for t in chosen]
        refusals = self.run(self.store.claims.complete(done, now=self.model.now))
        self._compare([(t, change(t.claim, Done('{"n": 1}'))) for t in chosen], refusals)

    @act(6, picks=PICKS, outcomes=THREE_OUTCOMES, when=has(State.RUNNING))
    def settle_what_is_held(self, picks: list[int], outcomes: list[Outcome]) -> None:
        self._settle(_some(self.held(), picks), outcomes)

    @act(picks=PICKS, outcomes=THREE_OUTCOMES, when=has_claimed)
    def settle_what_was_held(self, picks: list[int], outcomes: list[Outcome]) -> None:
        self._settle(_some(self.model.taken, picks), outcomes)

    def _settle(self, chosen: list[Taken], outcomes: list[Outcome]) -> None:
        pairs = zip(chosen, outcomes, strict=False)
        changes = [(t, change(t.claim, outcome, max_attempts=t.claim.max_attempts)) for t, outcome in pairs]
        refusals = self.run(self.store.claims.settle([c for _, c in changes], now=self.model.now))
        self._compare(changes, refusals)

    @act(3, seconds=st.sampled_from([1, 5, 11, 61]))
    def pass_time(self, seconds: int) -> None:
        self.model.now += timedelta(seconds=seconds)

    @act(2, when=has(State.RUNNING))
    def rescue(self) -> None:
        expired = self.run(self.store.claims.expired(100, now=self.model.now))
        assert {(found.job_id, found.claim_id) for found in expired} == self.model.expired()
        by_claim = {(t.claim.job_id, t.claim.claim_id): t for t in self.model.taken}
        changes = []
        for found in expired:
            assert found.cancel_requested == self.model.jobs[found.job_id].cancel_requested
            outcome = Cancelled("no use") if found.cancel_requested else Lost()
            changes.append((by_claim[found.job_id, found.claim_id], change(found, outcome)))
        refusals = self.run(self.store.claims.settle([c for _, c in changes], expired_only=True, now=self.model.now))
        self._compare(changes, refusals)

    @act(pick=PICK, when=has(State.RUNNING))
    def rescue_what_has_not_expired(self, pick: int) -> None:
        (taken,) = _some(self.held(), [pick])
        if (taken.claim.job_id, taken.claim.claim_id) not in self.model.expired():
            lost = change(taken.claim, Lost())
            (refusal,) = self.run(self.store.claims.settle([lost], expired_only=True, now=self.model.now))
            assert refusal.job_id == taken.claim.job_id

    def _compare(self, changes: list[tuple[Taken, Change]], refusals: list[Refusal]) -> None:
        reasons = {(r.job_id, r.claim_id): r.reason for r in refusals}
        assert len(reasons) == len(refusals)
        for taken, asked in changes:
            allowed = self.model.settle(taken, asked)
            reason = reasons.get((asked.job_id, asked.claim_id))
            assert (reason is None) if allowed is None else (reason in allowed), f"{asked}: {reason} not in {allowed}"
            if reason is RefusalReason.LOST:
                self.model.refused(taken)

    # --- maintenance and control

    @act(2, when=has(State.SCHEDULED))
    def promote(self) -> None:
        levels = self.model.promote()
        promotion = self.run(self.store.promotion.promote(100, now=self.model.now))
        assert levels <= promotion.levels

    @act(3, when=has(State.BLOCKED, State.READY))
    def sweep(self) -> None:
        self.model.sweep()
        # Each sweep need only go one step of a chain.
        for _ in range(1 + len(self.model.in_state(State.BLOCKED, State.CANCELLED))):
            self.run(self.store.promotion.sweep(100, now=self.model.now))

    @act(pick=PICK, when=has())
    def cancel(self, pick: int) -> None:
        job = self._any(pick)
        result = self.run(self.store.control.cancel(job.id, "no use", now=self.model.now))
        assert (result.state, result.changed, result.requested) == self.model.cancel(job)

    @act(pick=PICK, when=has())
    def fail(self, pick: int) -> None:
        job = self._any(pick)
        assert self.run(self.store.control.fail(job.id, OOPS, now=self.model.now)) == self.model.fail(job)

    @act(pick=PICK, when=has())
    def run_now(self, pick: int) -> None:
        job = self._any(pick)
        state = self.run(self.store.control.run_now(job.id, now=self.model.now))
        assert state in self.model.run_now(job)

    @act(pick=PICK, when=has_claimed)
    def compare_attempts(self, pick: int) -> None:
        (taken,) = _some(self.model.taken, [pick])
        if job := self.model.jobs.get(taken.claim.job_id):
            recorded = self.run(self.store.queries.attempts(job.id))
            assert [(a.claim_id, a.outcome) for a in recorded] == job.attempts

    @act(gate=st.sampled_from(GATES))
    def pause(self, gate: tuple[PauseScope, str]) -> None:
        self.model.now += timedelta(milliseconds=1)  # a pause is known by its kind and the time since when it holds
        paused = self.run(self.store.control.pause(Pause(*gate, since=self.model.now), now=self.model.now))
        assert paused == (gate not in self.model.paused)
        self.model.paused.add(gate)

    @act(3, gate=st.sampled_from(GATES), when=lambda machine: bool(machine.model.paused))
    def resume(self, gate: tuple[PauseScope, str]) -> None:
        assert self.run(self.store.control.resume(*gate)) == (gate in self.model.paused)
        self.model.paused.discard(gate)

    @act(older_than=AGES, when=has(*FINAL))
    def delete_old(self, older_than: timedelta) -> None:
        deletion = self.run(self.store.retention.delete(older_than, 1000, None, now=self.model.now))
        left = {record.id for record in self._records()}
        assert deletion.count == self.model.delete_old(older_than, left)
        self.ended = {job_id: record for job_id, record in self.ended.items() if job_id in left}
        self._compare_letters()

    # --- dead letters

    @act(
        6,
        pick=PICK,
        act=st.sampled_from([ReviewAct.REPROCESS, ReviewAct.REPROCESS, *ReviewAct]),
        key=st.sampled_from([None, "a", "b"]),
        on_conflict=st.sampled_from([OnConflict.REJECT, OnConflict.RETURN]),
        inherits=st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
        when=has_letters,
    )
    def review(self, pick: int, act: ReviewAct, key: str | None, on_conflict: OnConflict, inherits: list[str]) -> None:
        letter = list(self.model.letters.values())[pick % len(self.model.letters)]
        job = None
        if act is ReviewAct.REPROCESS:
            unique = None if key is None else Unique(key, Scope.ACTIVE, on_conflict)
            taken_over = tuple(Unique(one) for one in inherits if one != key)
            job = self._job(KINDS[0], LEVELS[0], unique=unique, inherits=taken_over, retry_of=letter.id)
        asked = Review(id=letter.id, act=act, by="ada", job=job)
        (answer,) = self.run(self.store.dead_letters.review([asked], now=self.model.now))
        assert answer == self.model.review(letter, act, job)

    @act(2, when=has_letters)
    def resolve_reprocessed(self) -> None:
        assert self.run(self.store.dead_letters.resolve_reprocessed(100, now=self.model.now)) == self.model.resolve()

    @act(2, when=has_letters)
    def compare_dead_letters(self) -> None:
        self._compare_letters()

    def _compare_letters(self) -> None:
        self.model.observe_letters(self.run(self.store.dead_letters.search(DeadLetterFilter(), limit=10_000)))

    # --- laws

    @invariant()
    def store_and_model_agree(self) -> None:
        records = self._records()
        self.model.observe(records)
        final = {record.id: record for record in records if record.state.final}
        assert {job_id: final.get(job_id) for job_id in self.ended} == self.ended, "a final job never changes"
        self.ended = final
        assert self.run(self.store.queries.check_places()) == []

    def _records(self) -> list[JobRecord]:
        records: list[JobRecord] = self.run(self.store.queries.jobs(JobFilter(limit=10_000)))
        return records

    def _job(self, kind: str, line: QueueLevel, **fields: Any) -> NewJob:
        return new_job(kind=kind, queue=line.queue, priority=line.priority, **fields)

    def _any(self, pick: int) -> ModelJob:
        return list(self.model.jobs.values())[pick % len(self.model.jobs)]

    def held(self) -> list[Taken]:
        return [taken for taken in self.model.taken if self.model.holds(taken)]


def _some(taken: list[Taken], picks: list[int]) -> list[Taken]:
    """A choice of claims, each job at most once."""
    return list({t.claim.job_id: t for t in (taken[-1 - pick % len(taken)] for pick in picks)}.values())


@each_length(24, steps=120)
def test_sqlite_agrees_with_the_model(tmp_path: Path, sqlite_template: Path, length: settings) -> None:
    simulate_sqlite(StoreMachine, tmp_path, sqlite_template, length)


@each_length(16, steps=120)
def test_postgres_agrees_with_the_model(clean18: CleanDatabase, length: settings) -> None:
    simulate_postgres(StoreMachine, clean18, length)
