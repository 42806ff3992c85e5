"""The audit trail: events are appended and never changed, and a chain of seals shows whether they were."""

import asyncio
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.errors import DutifulError
from dutiful.core.ids import from_parts
from dutiful.core.principal import Origin, Role
from dutiful.core.review.audit import Anchor, AuditEvent, AuditOutcome, Seal, seal
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from old_events import any_date, owner_url
from suite.builders import ADA, warm

TTL = timedelta(seconds=30)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
T0 = datetime.now(UTC) - 5 * HOUR  # an event of another day is refused
OLD = T0 - 5 * DAY

LIMITS = {
    "principal": 200, "action": 200, "target": 500, "tenant": 200, "reason": 2_000, "address": 200,
    "before": 65_534, "after": 65_534,  # as JSON, with two quotes
}  # fmt: skip

_ids = count(1)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def new_id() -> UUID:
    """Ids in the order of calls, of the time of the events."""
    return from_parts(int(T0.timestamp() * 1000), next(_ids).to_bytes(10, "big"))


def event(**fields: Any) -> AuditEvent:
    usual: dict[str, Any] = {
        "id": new_id(),
        "act": new_id(),
        "at": T0,
        "principal": "ada",
        "origin": Origin.API,
        "action": "job.cancel",
        "outcome": AuditOutcome.SUCCEEDED,
    }
    return AuditEvent(**usual | fields)


def full_event(**fields: Any) -> AuditEvent:
    """One that has a value in each field."""
    return event(
        **{
            "at": at(0.000001),
            "role": Role.MANAGER,
            "target": "01JCPZ5",
            "tenant": "acme",
            "reason": "a customer asked for it: „später“ 😀",
            "before": {"state": "ready", "n": [1, 2.5, None, True], "": {}},
            "after": ["b", {"z": 1, "a": '\\ " \n'}],
            "address": "10.0.0.7",
        }
        | fields
    )


def links(events: list[AuditEvent], after: Seal | Anchor | None = None) -> list[Seal]:
    """The seals of `events`, in their order."""
    made: list[Seal] = []
    for one in events:
        after = seal(one, after)
        made.append(after)
    return made


async def seal_all(store: Store) -> list[Seal]:
    """Seal as the sealer does, until no event is left."""
    made: list[Seal] = []
    while events := await store.audit.unsealed(3):
        some = links(events, await store.audit.head())
        assert await store.audit.seal(some)
        made += some
    return made


async def check_chain(store: Store) -> int:
    """Verify the chain; returns how many links it has."""
    head: Seal | Anchor | None = await store.audit.anchor()
    count = 0
    while some := await store.audit.sealed(0 if head is None else head.seq, 2):
        for link in some:
            assert link.event is not None
            assert seal(link.event, head) == link.seal
            head = link.seal
        count += len(some)
    assert head == await store.audit.head()
    return count


async def append(store: Store, count: int, **fields: Any) -> list[AuditEvent]:
    events = [event(**fields) for _ in range(count)]
    await store.audit.append(events)
    return events


async def ids(store: Store, **fields: Any) -> list[UUID]:
    return [one.id for one in await store.audit.search(AuditFilter(**fields))]


class AuditSuite:
    async def keep(self, store: Store, span: timedelta | None) -> None:
        """Sets the retention; overridden where only the owner may."""
        await store.audit.set_retention(span)

    def any_date(self, store: Store) -> AbstractContextManager[None]:
        """Lets events of any time be appended; overridden where the store's role is not the owner."""
        return any_date(owner_url(store))

    async def append_old(self, store: Store, count: int, at: datetime = OLD) -> list[AuditEvent]:
        with self.any_date(store):
            return await append(store, count, at=at)

    async def test_an_event_is_read_as_it_was_written_the_newest_first(self, store: Store) -> None:
        first, last = full_event(), event()

        await store.audit.append([first, last])

        assert await store.audit.search(AuditFilter()) == [last, first]

    async def test_an_event_that_exists_is_left_unchanged(self, store: Store) -> None:
        old, new = event(reason="true"), event()
        await store.audit.append([old])

        await store.audit.append([event(id=old.id, reason="false"), new, new])

        assert await store.audit.search(AuditFilter()) == [new, old]
        assert await store.audit.unsealed(10) == [old, new]

    async def test_pages_have_neither_gap_nor_repeat(self, store: Store) -> None:
        events = await append(store, 5)

        pages = [await ids(store, limit=2)]
        while len(pages[-1]) == 2:
            pages.append(await ids(store, limit=2, before=pages[-1][-1]))

        assert [id_ for page in pages for id_ in page] == [one.id for one in reversed(events)]

    async def test_every_filter_finds_what_fits_and_nothing_else(self, store: Store) -> None:
        act = new_id()
        requested = event(act=act, outcome=AuditOutcome.REQUESTED, tenant="acme", target="one", at=at(10))
        done = event(act=act, tenant="acme", target="one", at=at(20))
        other = event(action="job.retry", principal="bob", target="two", at=at(30))
        similar = event(action="jobs.cancel", tenant="globex", at=at(40))
        await store.audit.append([requested, done, other, similar])

        for fields, expected in (
            ({"principal": "bob"}, [other]),
            ({"action": "job.cancel"}, [done, requested]),
            ({"action": "job."}, [other, done, requested]),
            ({"action": "job"}, []),
            ({"action": "j%."}, []),
            ({"outcome": AuditOutcome.REQUESTED}, [requested]),
            ({"target": "one"}, [done, requested]),
            ({"tenant": "acme"}, [done, requested]),
            ({"tenant": "umbrella"}, []),
            ({"act": act}, [done, requested]),
            ({"since": at(20)}, [similar, other, done]),
            ({"until": at(20)}, [requested]),
            ({"tenant": "acme", "since": at(20)}, [done]),
            ({"action": "job.", "limit": 1}, [other]),
            ({"before": other.id, "tenant": "acme"}, [done, requested]),
        ):
            assert await ids(store, **fields) == [one.id for one in expected], fields

    async def test_events_are_sealed_in_order_and_the_chain_can_be_verified(self, store: Store) -> None:
        assert (await store.audit.head(), await store.audit.anchor()) == (None, None)
        events = [full_event(), *await append(store, 4)]
        await store.audit.append(events[:1])
        assert await store.audit.unsealed(3) == events[:3]

        seals = await seal_all(store)

        assert [link.seq for link in seals] == [1, 2, 3, 4, 5]
        assert await store.audit.head() == seals[-1]
        assert await store.audit.unsealed(10) == []
        assert [link.seal for link in await store.audit.sealed(0, 100)] == seals
        assert [link.event for link in await store.audit.sealed(3, 100)] == events[3:]
        assert await check_chain(store) == 5

    async def test_an_event_that_came_late_is_sealed_after_newer_ones(self, store: Store) -> None:
        late = event()
        await append(store, 2)
        await seal_all(store)

        await store.audit.append([late])

        assert [link.event_id for link in await seal_all(store)] == [late.id]
        assert await check_chain(store) == 3

    async def test_the_slower_of_two_sealers_writes_nothing(self, store: Store) -> None:
        events = await append(store, 3)
        assert await store.audit.seal(links(events[:2]))

        assert not await store.audit.seal(links(events[2:]))
        assert not await store.audit.seal(links(events))
        # One that read the head only after the other had sealed.
        assert not await store.audit.seal(links([events[2], events[1]], await store.audit.head()))

        assert await store.audit.unsealed(10) == events[2:]
        assert len(await seal_all(store)) == 1
        assert await check_chain(store) == 3

    async def test_concurrent_sealers_do_not_fork_the_chain(self, store: Store) -> None:
        await warm(store)
        events = await append(store, 12)

        async def sealer(size: int) -> int:
            won = 0
            while some := await store.audit.unsealed(size):
                won += await store.audit.seal(links(some, await store.audit.head()))
            return won

        won = await asyncio.gather(*(sealer(size) for size in (1, 2, 3, 4)))

        assert sum(won) >= 3
        assert await check_chain(store) == len(events)

    async def test_what_is_trimmed_leaves_an_anchor_and_the_rest_can_be_verified(self, store: Store) -> None:
        old, new = await self.append_old(store, 3), await self.append_old(store, 2, OLD + DAY)
        seals = await seal_all(store)
        unsealed = event()
        await store.audit.append([unsealed])
        later = OLD + 1.5 * DAY
        await self.keep(store, DAY)

        assert await store.audit.trim(2, now=later) == 2
        assert await store.audit.anchor() == Anchor(seq=2, hash=seals[1].hash, at=OLD, keep=DAY, trimmed_at=later)
        assert await store.audit.trim(2, now=later) == 1
        assert await store.audit.trim(2, now=later) == 0

        assert await ids(store) == [unsealed.id, new[1].id, new[0].id]
        anchor = await store.audit.anchor()
        assert anchor == Anchor(seq=3, hash=seals[2].hash, at=old[-1].at, keep=DAY, trimmed_at=later)
        assert await store.audit.head() == seals[-1]
        assert await store.audit.strays(10) == []
        assert await check_chain(store) == 2
        await seal_all(store)
        assert await check_chain(store) == 3

    async def test_a_chain_that_was_trimmed_to_its_end_goes_on_from_its_anchor(self, store: Store) -> None:
        await self.append_old(store, 3)
        seals = await seal_all(store)
        await self.keep(store, DAY)
        assert await store.audit.trim(10, now=OLD + 2 * DAY) == 3
        anchor = Anchor(seq=3, hash=seals[-1].hash, at=OLD, keep=DAY, trimmed_at=OLD + 2 * DAY)
        assert await store.audit.head() == await store.audit.anchor() == anchor
        assert await store.audit.sealed(0, 10) == []

        (new,) = await append(store, 1)

        assert [(link.seq, link.event_id) for link in await seal_all(store)] == [(4, new.id)]
        assert await check_chain(store) == 1

    async def test_trimming_stops_at_the_first_event_that_is_not_old(self, store: Store) -> None:
        await self.append_old(store, 1)
        (young,) = await self.append_old(store, 1, OLD + 2 * DAY)
        await self.append_old(store, 1)
        await seal_all(store)
        await self.keep(store, DAY)

        assert await store.audit.trim(10, now=OLD + 2 * DAY) == 1

        assert (await store.audit.sealed(0, 10))[0].event == young
        assert await check_chain(store) == 2

    async def test_events_are_kept_for_ever_by_default(self, store: Store) -> None:
        await self.append_old(store, 3)
        await seal_all(store)
        assert await store.audit.retention() is None
        assert await store.audit.trim(10) == 0

        await self.keep(store, 36_525 * 24 * HOUR)
        assert (await store.audit.retention(), await store.audit.trim(10)) == (36_525 * 24 * HOUR, 0)

        await self.keep(store, DAY)
        assert (await store.audit.retention(), await store.audit.trim(2)) == (DAY, 2)

        await self.keep(store, None)
        assert (await store.audit.retention(), await store.audit.trim(10)) == (None, 0)

    @pytest.mark.parametrize(
        "moment", [timedelta(days=-2), timedelta(hours=2), timedelta(days=300_000)], ids=["old", "early", "far"]
    )
    async def test_an_event_of_another_time_is_refused(self, store: Store, moment: timedelta) -> None:
        with pytest.raises(DutifulError):
            await append(store, 1, at=datetime.now(UTC) + moment)
        assert await store.audit.search(AuditFilter()) == []

    async def test_an_id_of_another_time_is_refused(self, store: Store) -> None:
        early = new_id().int & ((1 << 80) - 1)
        with pytest.raises(DutifulError):
            await append(store, 1, id=UUID(int=early))
        assert await store.audit.search(AuditFilter()) == []

    async def test_what_is_beyond_its_limit_is_refused(self, store: Store) -> None:
        for field, limit in LIMITS.items():
            await append(store, 1, **{field: "x" * limit})
            with pytest.raises(DutifulError):
                await append(store, 1, **{field: "x" * (limit + 1)})
        assert len(await store.audit.search(AuditFilter())) == len(LIMITS)

    async def test_a_survey_shows_whether_an_event_is_unsealed(self, store: Store) -> None:
        assert not (await store.leadership.survey(ADA, TTL, now=T0)).unsealed
        await append(store, 1)
        assert (await store.leadership.survey(ADA, TTL, now=T0)).unsealed

        await seal_all(store)

        assert not (await store.leadership.survey(ADA, TTL, now=T0)).unsealed
