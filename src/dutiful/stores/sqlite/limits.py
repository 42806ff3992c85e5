"""Limits in SQLite: which blocked jobs may become ready. The file has one writer, so admissions are made in turn."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from dutiful.core.json import read_object
from dutiful.core.limits import KEY_LIMIT, KindLimit, Limit, gate_of, read_gate
from dutiful.store.limits import Admission, LimitRecord, firsts, records
from dutiful.stores.sqlite import placement
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, browses, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_moment, micros, moment, span
from dutiful.stores.sqlite.engine.columns import Carried

ALL = 2**62


class Rule(NamedTuple):
    declared: Limit
    chosen: int | None

    @property
    def limit(self) -> Limit:
        """With what an operator has chosen, which also says how evenly the rest of a burst starts."""
        return self.declared if self.chosen is None else msgspec.structs.replace(self.declared, most=self.chosen)

    def counts_since(self, now: int) -> int:
        """Starts after this time count; a limit of jobs that run at once knows none."""
        return 0 if self.limit.per is None else micros(self.limit.counts_since(moment(now)))

    def room(self, db: Connection, key: str, now: int) -> int:
        """How many slots a key has left: of the limit itself, and of what may start together; none while it is held."""
        if self.limit.feedback and db.value(SQL["key_is_held"], (self.limit.name, key, now)):
            return 0
        used: int = db.value(SQL["count_slots_since"], (self.limit.name, key, self.counts_since(now)))
        room = self.limit.most - used
        if (window := self.limit.burst_window) is not None:
            recent: int = db.value(SQL["count_slots_since"], (self.limit.name, key, now - span(window)))
            room = min(room, (self.limit.burst or 0) - recent)
        return room


class SqliteLimits(Subject):
    async def put(self, kinds: Mapping[str, Sequence[KindLimit]], *, now: datetime | None = None) -> None:
        if await self._engine.read(lambda db: _stored(db, kinds) != {name: set(its) for name, its in kinds.items()}):
            await self._engine.write(lambda db: _put(db, kinds, clock(now)))

    @writes
    def admit(
        self,
        db: Connection,
        limit: int,
        *,
        everywhere: bool = False,
        ended: Collection[UUID] | None = None,
        now: datetime | None = None,
    ) -> Admission:
        return _admit(db, limit, everywhere, None if ended is None else [job.bytes for job in ended], clock(now))

    @browses
    def all(self, db: Connection, *, keys: int | None = 10, now: datetime | None = None) -> list[LimitRecord]:
        rules, kinds = _rules(db), db.rows(SQL["limit_kinds"])
        found = [
            LimitRecord(limit=rule.declared, chosen=rule.chosen, kinds=[kind for kind, of, _ in kinds if of == name])
            for name, rule in rules.items()
        ]
        at = clock(now)
        used = {
            (name, key): count
            for name, rule in rules.items()
            for key, count in db.rows(SQL["use_of_limit"], (name, rule.counts_since(at)))
        }
        holds = {(name, key): moment(until) for name, key, until in db.rows(SQL["held_keys"], (at,))}
        return records(found, used, dict(db.rows(SQL["waits_for_limits"])), holds, keys)

    @writes
    def hold(self, db: Connection, waits: Mapping[UUID, timedelta], *, now: datetime | None = None) -> None:
        _hold(db, waits, clock(now))

    @writes
    def choose(self, db: Connection, name: str, most: int | None, *, now: datetime | None = None) -> bool:
        if (before := _rules(db).get(name)) is None:
            return False
        if most is None:
            db.run(SQL["end_holds"], (name,))
        db.run(SQL["choose_limit"], (most, name))
        if _rules(db)[name].limit.most < before.limit.most:
            _block_admitted(db, name, None, clock(now))
        return True


class Slots:
    """Takes slots for jobs in the open transaction."""

    def __init__(self, db: Connection, now: int) -> None:
        self._db = db
        self._now = now
        self._rules = _rules(db)
        self._kinds = {} if not self._rules else _by_kind(db)
        self._rooms: dict[str, int] = {}  # by gate; counted once, because a limit may allow very many starts

    def room(self, gate: str) -> int:
        """How many slots are left for those that wait at a gate."""
        if gate not in self._rooms:
            name, key = read_gate(gate)
            rule = self._rules.get(name)
            self._rooms[gate] = 0 if rule is None else rule.room(self._db, key, self._now)
        return self._rooms[gate]

    def take(self, job_id: bytes) -> bool:
        """Takes a slot of each of the job's limits; if one is full, the job waits at its gate, and takes none."""
        if not self._kinds:
            return True
        row = self._db.row(SQL["limited_job"], (job_id,))
        if row is None or row[0] not in self._kinds:
            return True
        for freed in _free_ended(self._db, self._rules, [job_id]):  # what it had before
            self._rooms.pop(freed, None)
        wanted = {gate_of(rule.limit.name, key): (rule, key) for rule, key in self._wanted(*row) if key is not None}
        if full := next((gate for gate in wanted if self.room(gate) <= 0), None):
            self._db.run(SQL["wait_for_limit"], {"gate": full, "job": job_id, "now": self._now})
            return False
        for gate, (rule, key) in wanted.items():
            self._rooms[gate] -= 1
            self._db.run(SQL["put_slot"], (job_id, rule.limit.name, key, self._now, None))
        return True

    def count_running(self, job_id: bytes, claimed_at: int) -> None:
        """Takes the slots that a job which runs already has not."""
        row = self._db.row(SQL["limited_job"], (job_id,))
        assert row is not None
        for rule, key in self._wanted(*row):
            if key is not None and not self._db.value(SQL["has_slot_of"], (job_id, rule.limit.name)):
                started = None if rule.limit.per is None else claimed_at
                self._db.run(SQL["put_slot"], (job_id, rule.limit.name, key, self._now, started))

    def keys_with_feedback(self, job_id: bytes) -> list[tuple[str, str]]:
        """Limits in which a service that asks this job to wait holds others, each with the job's key."""
        row = self._db.row(SQL["limited_job"], (job_id,))
        wanted = () if row is None or row[0] not in self._kinds else self._wanted(*row)
        return [(rule.limit.name, key) for rule, key in wanted if rule.limit.feedback and key is not None]

    def _wanted(
        self, kind: str, payload: str, tenant: str | None, options: str | None
    ) -> Iterator[tuple[Rule, str | None]]:
        """The job's limits, each with its key: as it was enqueued, or the payload's field; None: it does not apply."""
        given = _object(_object(options).get("limits"))
        body: dict[str, Any] | None = None
        for name, field in self._kinds[kind]:
            if name in given:
                yield self._rules[name], given[name]
                continue
            body = _object(payload) if body is None else body
            value = tenant if field == "tenant" and "tenant" not in body else body.get(field or "")
            yield self._rules[name], _text(value)


def admitted(db: Connection, job_id: bytes) -> bool:
    """Whether a limit has admitted the job."""
    return bool(db.value(SQL["has_slot"], (job_id,)))


def _object(value: Any) -> dict[str, Any]:
    """What SQL has written in another way counts as empty."""
    found = read_object(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    """A key, as Postgres reads one from a payload."""
    if value is None:
        return ""
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:KEY_LIMIT]


def _rules(db: Connection) -> dict[str, Rule]:
    return {
        name: Rule(
            Limit(name, most, None if per is None else timedelta(microseconds=per), burst, bool(fixed), bool(feedback)),
            chosen,
        )
        for name, most, per, burst, fixed, feedback, chosen in db.rows(SQL["limit_rules"])
    }


def _by_kind(db: Connection) -> dict[str, list[tuple[str, str | None]]]:
    found: dict[str, list[tuple[str, str | None]]] = {}
    for kind, name, field in db.rows(SQL["limit_kinds"]):
        found.setdefault(kind, []).append((name, field))
    return found


def _stored(db: Connection, kinds: Mapping[str, Sequence[KindLimit]]) -> dict[str, set[KindLimit]]:
    rules, of = _rules(db), _by_kind(db)
    return {kind: {KindLimit(rules[name].declared, field) for name, field in of.get(kind, [])} for kind in kinds}


def _put(db: Connection, kinds: Mapping[str, Sequence[KindLimit]], now: int) -> None:
    before, rules = _by_kind(db), _rules(db)
    limits = {one.limit for its in kinds.values() for one in its}
    # From what runs at once to what starts within a time, or back: what was counted counts for nothing now.
    turned = {
        one.name for one in limits if one.name in rules and (rules[one.name].declared.per is None) != (one.per is None)
    }
    others = [one.name for one in limits if one.name in rules and _numbers(rules[one.name].declared) != _numbers(one)]
    for limit in limits:
        per = None if limit.per is None else span(limit.per)
        row = limit.name, limit.most, per, limit.burst, int(limit.fixed), int(limit.feedback)
        db.run(SQL["put_limit_rule"], row)
    for kind, its in kinds.items():
        names, had = {one.limit.name for one in its}, _names(before.get(kind, ()))
        db.many(SQL["delete_limit_kind"], [(kind, name) for name in had - names])
        db.many(SQL["put_limit_kind"], [(kind, one.limit.name, one.field) for one in its])
        if its:
            db.run(SQL["limit_a_kind"], (kind, now))
        elif kind in before:
            db.run(SQL["unlimit_a_kind"], (kind,))
        if had - names:
            db.run(SQL["wait_for_no_limit"], (kind, ALL))
    db.run(SQL["delete_unused_limits"])
    db.run(SQL["delete_slots_of_no_limit"])
    db.run(SQL["delete_holds_of_no_limit"])
    db.many(SQL["delete_starts_of_limit"], [(name,) for name in turned])
    for name in sorted(others):
        _block_admitted(db, name, None, now)
    gained = {
        kind for kind, its in _by_kind(db).items() if turned & _names(its) or _names(its) - _names(before.get(kind, ()))
    }
    _count_what_is_there(db, sorted(gained), now)


def _numbers(limit: Limit) -> tuple[Any, ...]:
    return limit.most, limit.per, limit.burst, limit.fixed


def _names(limits: Sequence[tuple[str, str | None]]) -> set[str]:
    return {name for name, _ in limits}


def _count_what_is_there(db: Connection, kinds: Sequence[str], now: int) -> None:
    """Blocks ready jobs of kinds that have a new limit, until they are admitted anew; those that run count."""
    slots, given = Slots(db, now), {"kinds": msgspec.json.encode(kinds).decode(), "now": now}
    for statement in ("delete_open_slots_of_ready", "block_ready_of_kinds", "delete_ready_of_kinds"):
        db.run(SQL[statement], given)
    for kind in kinds:
        for job_id, claimed_at in db.rows(SQL["running_of_kind"], (kind,)):
            slots.count_running(job_id, claimed_at)


def _block_admitted(db: Connection, name: str, key: str | None, now: int) -> None:
    """Blocks ready jobs that a limit has admitted, of one key or of all, until they are admitted anew.

    They keep their positions. In few statements, because all writers wait meanwhile.
    """
    keys = [key] if key is not None else [found for (found,) in db.rows(SQL["keys_of_admitted"], (name,))]
    at = [{"name": name, "key": one, "gate": gate_of(name, one), "now": now} for one in keys]
    db.many(SQL["block_ready_with_slot"], at)
    db.many(SQL["delete_blocked_ready"], at)


def _hold(db: Connection, waits: Mapping[UUID, timedelta], now: int) -> None:
    slots = Slots(db, now)
    for job, wait in waits.items():
        for name, key in slots.keys_with_feedback(job.bytes):
            db.run(SQL["put_hold"], (name, key, now + span(wait)))
            _block_admitted(db, name, key, now)


def _admit(db: Connection, limit: int, everywhere: bool, ended: Sequence[bytes] | None, now: int) -> Admission:
    rules = _rules(db)
    if not rules:
        return Admission()
    stopped = {kind for kind, stops in placement.blocked_kinds(db).items() if stops}
    gates = _free(db, rules, ended, now)
    if everywhere:
        for kind in stopped:
            db.run(SQL["wait_for_no_limit"], (kind, limit))
        gates = list(_gates(db))
    slots, placing = Slots(db, now), placement.Placing(db, {}, now)
    ready: list[tuple[str, int, int]] = []
    seen = 0
    for job_id in chain(_waiting(db, slots, gates, stopped, limit), _new(db, stopped, limit)):
        seen += 1
        if slots.take(job_id):
            _, _, _, seq, *carried = db.rows(SQL["blocked_row"], (job_id,))[0]
            db.run(SQL["delete_blocked"], (job_id,))
            at = Carried(*carried)
            placing.add(job_id, at, None, seq)
            ready.append((at.queue, at.priority, seq))
    placing.write()
    return Admission(seen, firsts(ready), _wait(db, rules, now))


def _waiting(db: Connection, slots: Slots, gates: Sequence[str], stopped: set[str], limit: int) -> Iterator[bytes]:
    """Jobs at these gates, each to be admitted before the next one is asked for, while there is room.

    Those that another of their limits refuses go on to its gate, and leave slots to those behind them.
    """
    passed_over = msgspec.json.encode(sorted(stopped)).decode()
    for gate in gates:
        while limit > 0 and (room := slots.room(gate)) > 0:
            if not (found := db.rows(SQL["first_at_limit"], (gate, passed_over, min(room, limit)))):
                break
            limit -= len(found)
            yield from (job_id for (job_id,) in found)


def _new(db: Connection, stopped: set[str], limit: int) -> list[bytes]:
    """Jobs of limited kinds that were not tried yet."""
    kinds = sorted({kind for kind, _, _ in db.rows(SQL["limit_kinds"])} - stopped)
    return [job_id for kind in kinds for (job_id,) in db.rows(SQL["due_of_limited_kind"], (kind, limit))][:limit]


def _free_ended(db: Connection, rules: Mapping[str, Rule], jobs: Sequence[bytes] | None) -> set[str]:
    """Frees slots of jobs neither ready nor running, of these or of all; returns their gates.

    Of limits on starts, it notes when the job began.
    """
    freed: set[str] = set()
    if jobs is None:
        slots = db.rows(SQL["open_slots"])
    else:
        slots = [row for job_id in jobs for row in db.rows(SQL["open_slots_of_job"], (job_id,))]
    for slot, name, key, admitted_at, runs, claimed_at in slots:
        rule = rules.get(name)
        if rule is not None and rule.limit.per is not None and claimed_at is not None and claimed_at >= admitted_at:
            db.run(SQL["start_slot"], (claimed_at, slot))
        elif not runs:
            db.run(SQL["delete_slot"], (slot,))
            freed.add(gate_of(name, key))
    return freed


def _free(db: Connection, rules: Mapping[str, Rule], ended: Sequence[bytes] | None, now: int) -> list[str]:
    """Frees slots of jobs that have ended, and of starts that no longer count; returns their gates."""
    freed = _free_ended(db, rules, ended)
    for name, rule in rules.items():
        if rule.limit.per is not None:
            for slot, key in db.rows(SQL["slots_over"], (name, micros(rule.limit.kept_since(moment(now))))):
                db.run(SQL["delete_slot"], (slot,))
                freed.add(gate_of(name, key))
            if (window := rule.limit.burst_window) is not None:
                # These count, but no longer towards the burst; or only towards it, as the fixed window is over.
                over = db.rows(SQL["slots_over"], (name, max(rule.counts_since(now), now - span(window))))
                freed.update(gate_of(name, key) for _, key in over)
    freed.update(gate_of(*held) for held in db.rows(SQL["end_holds_until"], (now,)))
    return sorted(freed)


def _gates(db: Connection) -> Iterator[str]:
    gate = ""
    while (found := db.value(SQL["next_gate"], (gate,))) is not None:
        gate = str(found)
        yield gate


def _wait(db: Connection, rules: Mapping[str, Rule], now: int) -> timedelta | None:
    """Until a start ceases to count, if jobs wait."""
    if not db.value(SQL["any_at_limit"]):
        return None
    held = maybe_moment(db.value(SQL["first_hold_over"]))
    times: list[datetime] = [] if held is None else [held]
    for name, rule in rules.items():
        if rule.limit.per is None:
            continue
        if (first := maybe_moment(db.value(SQL["first_start_since"], (name, rule.counts_since(now))))) is not None:
            times.append(rule.limit.over_at(first))
        if (window := rule.limit.burst_window) is not None:
            recent = maybe_moment(db.value(SQL["first_start_since"], (name, now - span(window))))
            times += [] if recent is None else [recent + window]
    return min(times) - moment(now) if times else None
