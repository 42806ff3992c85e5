"""Circuit breakers in Postgres: read, changed in Python, and written by compare-and-set of their version."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from dutiful.core import ids
from dutiful.core.breaker import state as rules
from dutiful.core.breaker.state import Breaker, BreakerPolicy, BreakerState, CallResult, Entry, Rejected
from dutiful.core.errors import ClaimLost, StoreUnavailable
from dutiful.core.job import ClaimToken
from dutiful.store.breakers import BreakerRecord
from dutiful.stores.postgres.engine.subject import Subject, arrays, text

_COUNTED = 10_000
"""Waiting jobs are counted up to this number, so that listing breakers stays fast in a long outage."""
_TRIES = 1_000
"""Of concurrent writers one succeeds, so this many retries are enough for as many writers."""


class Seen(msgspec.Struct, frozen=True):
    """A breaker and its version as read, and whether the calling claim is held and is one of its probes."""

    breaker: Breaker | None
    version: int  # 0: there is no row
    now: datetime
    probing: int
    is_probe: bool  # the claim is one of its probes
    live: bool


class Step(msgspec.Struct, frozen=True):
    """The breaker after a change; the claim may become one of its probes, or stop being one."""

    after: Breaker
    enters: bool = False
    exits: bool = False


class PostgresBreakers(Subject):
    async def enter(
        self, name: str, policy: BreakerPolicy, token: ClaimToken, *, now: datetime | None = None
    ) -> Entry | Rejected:
        answer: Entry | Rejected

        def step(seen: Seen) -> Step | None:
            nonlocal answer
            before = seen.breaker or Breaker(name=name, policy=policy)
            if seen.is_probe:  # one claim is one probe, however often it asks
                after, answer = before, Entry(before.round, probe=True)
            else:
                after, answer = rules.enter(before, policy, seen.probing, seen.now)
            probes = isinstance(answer, Entry) and answer.probe
            if probes and not seen.live:
                raise ClaimLost(
                    f"the claim of job {ids.public(token.job_id)} is lost: it cannot try the service of {name}"
                )
            return Step(after, enters=True) if probes and not seen.is_probe else None

        await self._change(name, step, token, now)
        return answer

    async def exit(
        self, name: str, policy: BreakerPolicy, token: ClaimToken, entry: Entry, result: CallResult, *,
        now: datetime | None = None,
    ) -> Breaker:  # fmt: skip
        def step(seen: Seen) -> Step | None:
            before = seen.breaker or Breaker(name=name, policy=policy)
            if entry.probe and not (seen.is_probe and entry.round == before.round):
                return None
            after = rules.exited(before, policy, entry, result, seen.now)
            return Step(after, exits=entry.probe) if entry.probe or after != before else None

        return await self._change(name, step, token, now) or Breaker(name=name, policy=policy)

    async def all(self, *, now: datetime | None = None) -> list[BreakerRecord]:
        rows = await self._rows("all_breakers", "probing, kinds, waiting, {breaker of (kept)}", _COUNTED, now)
        return [
            BreakerRecord(breaker=read(row), probing=row["probing"], kinds=list(row["kinds"]), waiting=row["waiting"])
            for row in rows
        ]

    async def kinds(self) -> dict[str, str]:
        return dict(await self._db.fetch(self._sql["breaker_kinds"]))

    async def open(
        self, name: str, open_for: timedelta | None, policy: BreakerPolicy | None = None, *, now: datetime | None = None
    ) -> Breaker:
        def step(seen: Seen) -> Step:
            before = seen.breaker or Breaker(name=name)
            breaker = msgspec.structs.replace(before, policy=policy or before.policy)
            return Step(rules.opened(breaker, seen.now, open_for or breaker.policy.open_for))

        opened = await self._change(name, step, None, now)
        assert opened is not None
        return opened

    async def reset(self, name: str, *, now: datetime | None = None) -> Breaker | None:
        def step(seen: Seen) -> Step | None:
            return None if seen.breaker is None else Step(rules.closed(seen.breaker))

        return await self._change(name, step, None, now)

    async def put_kinds(
        self, kinds: Mapping[str, str | None], policies: Mapping[str, BreakerPolicy] | None = None, *,
        now: datetime | None = None,
    ) -> None:  # fmt: skip
        declared = policies or {}
        names = sorted({*declared, *(name for name in kinds.values() if name is not None)})
        given = [declared.get(name) or BreakerPolicy() for name in names]
        policy_arrays = arrays(given, "failures", "open_for", "probes")
        changed = [name in declared for name in names]
        await self._call("put_breaker_kinds", [*kinds], [*kinds.values()], names, *policy_arrays, changed, now)

    async def _change(
        self, name: str, decide: Callable[[Seen], Step | None], token: ClaimToken | None, now: datetime | None
    ) -> Breaker | None:
        """Reads and decides until the decision is written; returns the breaker after that, if there is one."""
        for _ in range(_TRIES):
            seen = await self._look(name, token, now)
            step = decide(seen)
            if step is None:
                return seen.breaker
            if await self._write_breaker(seen, step, token):
                return step.after
        raise StoreUnavailable(f"breaker {name} is changed by too many at once: try again")

    async def _look(self, name: str, token: ClaimToken | None, now: datetime | None) -> Seen:
        who = (None, None) if token is None else (token.job_id, token.claim_id)
        columns = "now_at, probing, is_probe, live, {breaker of (kept)}"
        (row,) = await self._rows("read_breaker", columns, name, *who, now)
        if row["version"] is None:
            return Seen(None, 0, row["now_at"], 0, False, row["live"])
        return Seen(read(row), row["version"], row["now_at"], row["probing"], row["is_probe"], row["live"])

    async def _write_breaker(self, seen: Seen, step: Step, token: ClaimToken | None) -> bool:
        after, before = step.after, seen.breaker
        policy = msgspec.structs.asdict(after.policy)
        policy["failures_allowed"] = policy.pop("failures")
        turn = before is None or after.round != before.round
        written = await self._call(
            "put_breaker", text(msgspec.structs.asdict(after) | policy), seen.version, turn, step.enters, step.exits,
            token and token.job_id, token and token.claim_id, seen.now,
            # Retried after a lost reply, the write is refused, as if another process had written. A probe that enters
            # or exits then finds it done; a plain failure would be counted twice.
            repeat=step.enters or step.exits,
        )  # fmt: skip
        return bool(written)


def read(row: Any) -> Breaker:
    own = {name: row[name] for name in Breaker.__struct_fields__ if name not in ("state", "policy")}
    policy = BreakerPolicy(failures=row["failures_allowed"], open_for=row["open_for"], probes=row["probes"])
    return Breaker(**own, state=BreakerState(row["state"]), policy=policy)
