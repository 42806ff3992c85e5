"""Alerts: changed by whoever saw them as they are, and told of by the same commit."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dutiful.alerting import AlertChange
from dutiful.core.alert import Alert, AlertState
from dutiful.outbox import PostState
from dutiful.store import Store
from dutiful.testing.store_suite.builders import T0, at, finish_one, warm
from dutiful.testing.store_suite.outbox import settled, take_one, webhook

OK, PENDING, FIRING = AlertState.OK, AlertState.PENDING, AlertState.FIRING
DATA = {"rule": "errors", "value": 0.3, "summary": "zu viele Fehler: é"}


def alert(state: AlertState = FIRING, series: str = "kind=greet", **fields: Any) -> Alert:
    given: dict[str, Any] = {"rule": "errors", "series": series, "state": state, "since": T0, "summary": "too many"}
    return Alert(**given | fields)


def told(before: Alert | None, after: Alert) -> AlertChange:
    return AlertChange(before, after, "alert.firing", DATA)


async def put(store: Store, *alerts: Alert) -> None:
    assert len(await store.change_alerts([AlertChange(None, one) for one in alerts], now=T0)) == len(alerts)


class AlertingSuite:
    async def test_what_is_stored_is_what_was_given_by_rule_and_series(self, store: Store) -> None:
        full = alert(value=0.1, since=at(1.000001), calm_since=at(2), fired_at=at(3), cleared_at=at(4), summary="é")
        bare = alert(PENDING, "", rule="backlog", value=None)

        await put(store, full, alert(OK, "kind=a"), bare)

        assert await store.alerts() == [bare, alert(OK, "kind=a"), full]

    async def test_a_change_is_applied_if_the_alert_stands_as_was_seen(self, store: Store) -> None:
        before = alert(PENDING, value=1 / 3)
        await put(store, before, alert(PENDING, "kind=other"))
        after = alert(FIRING, value=0.5, since=at(5), fired_at=at(5), summary="worse")

        assert await store.change_alerts([change := told(before, after)], now=at(5)) == [change]

        assert await store.alerts() == [after, alert(PENDING, "kind=other")]

    @pytest.mark.parametrize(
        "seen",
        [
            None,
            alert(OK, value=0.2),
            alert(value=0.3),
            alert(value=None),
            alert(value=0.2, since=at(1)),
            alert(value=0.2, calm_since=at(1)),
            alert(value=0.2, series="kind=gone"),
        ],
        ids=["none", "state", "value", "no value", "since", "calm", "series"],
    )
    async def test_a_change_of_what_stands_otherwise_is_not_applied_or_told(
        self, store: Store, seen: Alert | None
    ) -> None:
        await store.put_webhooks([webhook(alerts=True, states=[])])
        await put(store, alert(value=0.2))
        series = "kind=greet" if seen is None else seen.series

        assert await store.change_alerts([told(seen, alert(OK, series, since=at(9)))], now=at(9)) == []

        assert await store.alerts() == [alert(value=0.2)]
        assert await store.posts() == []

    async def test_of_many_that_see_the_same_one_is_applied_and_told(self, store: Store) -> None:
        await warm(store)
        await store.put_webhooks([webhook(alerts=True, states=[])])
        first = [[told(None, alert(since=at(n))), told(None, alert(series="", since=at(n)))] for n in range(6)]

        applied = await asyncio.gather(*(store.change_alerts(changes) for changes in first))

        assert sorted(change.after.series for some in applied for change in some) == ["", "kind=greet"]
        assert len(await store.posts()) == 2
        seen = (await store.alerts())[1]
        again = await asyncio.gather(*(store.change_alerts([told(seen, alert(OK, since=at(9)))]) for _ in range(6)))
        assert len([change for some in again for change in some]) == 1
        assert len(await store.posts()) == 3

    async def test_those_who_hear_of_alerts_are_told_and_no_others(self, store: Store) -> None:
        hooks = [webhook("pager", alerts=True, states=[]), webhook("both", alerts=True), webhook("jobs")]
        await store.put_webhooks([*hooks, webhook("off", alerts=True, states=[])])
        await store.disable_webhook("off", "by hand")

        await store.change_alerts([told(None, alert()), AlertChange(None, alert(PENDING, ""))], now=at(7))

        posts = await store.posts()
        assert sorted(str(post.webhook) for post in posts) == ["both", "pager"]
        for post in posts:
            assert (post.job_id, post.tenant, post.event, post.data) == (None, None, "alert.firing", DATA)
            assert (post.state, post.created_at, post.next_at, post.attempts) == (PostState.PENDING, at(7), at(7), 0)
        job_id = await finish_one(store)
        assert sorted(str(post.webhook) for post in await store.posts(job_id=job_id)) == ["both", "jobs"]
        assert [hook for hook in await store.webhooks() if hook.enabled] == sorted(hooks, key=lambda hook: hook.name)

    async def test_a_message_about_an_alert_is_posted_and_kept_as_others_are(self, store: Store) -> None:
        await store.put_webhooks([webhook(alerts=True, states=[])])
        await store.change_alerts([told(None, alert())], now=T0)

        post = await take_one(store)
        assert await settled(store, post, now=at(1))

        (ended,) = await store.posts(state=PostState.DELIVERED)
        assert (ended.id, ended.data) == (post.id, DATA)
        assert (await store.stirred(at(-1), 100)).stirs == []
        while await store.tidy(timedelta(days=7), 100, now=at(0) + timedelta(days=8)):
            pass
        assert await store.posts() == []
        assert await store.check_places() == []

    async def test_only_what_is_over_and_as_was_seen_is_forgotten(self, store: Store) -> None:
        stays = [alert(FIRING, "fires"), alert(PENDING, "is about to"), alert(OK, "has changed")]
        await put(store, *stays, alert(OK, "goes"))

        await store.forget_alerts([*stays[:2], alert(OK, "has changed", since=at(1)), alert(OK, "goes")])

        assert {one.series for one in await store.alerts()} == {one.series for one in stays}

    async def test_a_look_is_good_until_the_next_one_is_overdue(self, store: Store) -> None:
        assert await store.last_look(now=T0) is None
        for seconds in (0, 15):
            await store.note_look(timedelta(seconds=60), now=at(seconds))

        assert [await store.last_look(now=at(seconds)) for seconds in (16, 74.9, 75)] == [at(15), at(15), None]
        await store.note_look(timedelta(hours=1))
        assert await store.last_look() is not None
