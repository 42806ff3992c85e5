"""Alerts: a change is applied if the alert is as its caller saw it, and announced in the same transaction."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dutiful.core.metrics.alert import Alert, AlertState
from dutiful.store import Store
from dutiful.store.alerts import AlertChange
from dutiful.store.webhooks import PostState
from suite.builders import T0, at, finish_one, warm
from suite.webhooks import settled, take_one, webhook

OK, PENDING, FIRING = AlertState.OK, AlertState.PENDING, AlertState.FIRING
DATA = {"rule": "errors", "value": 0.3, "summary": "zu viele Fehler: é"}


def alert(state: AlertState = FIRING, series: str = "kind=greet", **fields: Any) -> Alert:
    given: dict[str, Any] = {"rule": "errors", "series": series, "state": state, "since": T0, "summary": "too many"}
    return Alert(**given | fields)


def announced(before: Alert | None, after: Alert) -> AlertChange:
    return AlertChange(before, after, "alert.firing", DATA)


async def put(store: Store, *alerts: Alert) -> None:
    assert len(await store.alerts.change([AlertChange(None, one) for one in alerts], now=T0)) == len(alerts)


class AlertSuite:
    async def test_alerts_are_stored_as_given_and_ordered_by_rule_and_series(self, store: Store) -> None:
        full = alert(value=0.1, since=at(1.000001), calm_since=at(2), fired_at=at(3), cleared_at=at(4), summary="é")
        bare = alert(PENDING, "", rule="backlog", value=None)

        await put(store, full, alert(OK, "kind=a"), bare)

        assert await store.alerts.all() == [bare, alert(OK, "kind=a"), full]

    async def test_a_change_is_applied_if_the_alert_is_as_it_was_seen(self, store: Store) -> None:
        before = alert(PENDING, value=1 / 3)
        await put(store, before, alert(PENDING, "kind=other"))
        after = alert(FIRING, value=0.5, since=at(5), fired_at=at(5), summary="worse")

        assert await store.alerts.change([change := announced(before, after)], now=at(5)) == [change]

        assert await store.alerts.all() == [after, alert(PENDING, "kind=other")]

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
    async def test_a_change_of_an_alert_that_differs_is_neither_applied_nor_announced(
        self, store: Store, seen: Alert | None
    ) -> None:
        await store.webhooks.put([webhook(alerts=True, states=[])])
        await put(store, alert(value=0.2))
        series = "kind=greet" if seen is None else seen.series

        assert await store.alerts.change([announced(seen, alert(OK, series, since=at(9)))], now=at(9)) == []

        assert await store.alerts.all() == [alert(value=0.2)]
        assert await store.webhooks.posts() == []

    async def test_one_of_many_equal_changes_is_applied_and_announced(self, store: Store) -> None:
        await warm(store)
        await store.webhooks.put([webhook(alerts=True, states=[])])
        first = [
            [announced(None, alert(since=at(n))), announced(None, alert(series="", since=at(n)))] for n in range(6)
        ]

        applied = await asyncio.gather(*(store.alerts.change(changes) for changes in first))

        assert sorted(change.after.series for some in applied for change in some) == ["", "kind=greet"]
        assert len(await store.webhooks.posts()) == 2
        seen = (await store.alerts.all())[1]
        again = await asyncio.gather(
            *(store.alerts.change([announced(seen, alert(OK, since=at(9)))]) for _ in range(6))
        )
        assert sum(len(some) for some in again) == 1
        assert len(await store.webhooks.posts()) == 3

    async def test_only_webhooks_for_alerts_get_posts(self, store: Store) -> None:
        hooks = [webhook("pager", alerts=True, states=[]), webhook("both", alerts=True), webhook("jobs")]
        await store.webhooks.put([*hooks, webhook("off", alerts=True, states=[])])
        await store.webhooks.disable("off", "by hand")

        await store.alerts.change([announced(None, alert()), AlertChange(None, alert(PENDING, ""))], now=at(7))

        posts = await store.webhooks.posts()
        assert sorted(str(post.webhook) for post in posts) == ["both", "pager"]
        for post in posts:
            assert (post.job_id, post.tenant, post.event, post.data) == (None, None, "alert.firing", DATA)
            assert (post.state, post.created_at, post.next_at, post.attempts) == (PostState.PENDING, at(7), at(7), 0)
        job_id = await finish_one(store)
        assert sorted(str(post.webhook) for post in await store.webhooks.posts(job_id=job_id)) == ["both", "jobs"]
        assert [hook for hook in await store.webhooks.all() if hook.enabled] == sorted(
            hooks, key=lambda hook: hook.name
        )

    async def test_a_post_about_an_alert_is_sent_and_kept_like_others(self, store: Store) -> None:
        await store.webhooks.put([webhook(alerts=True, states=[])])
        await store.alerts.change([announced(None, alert())], now=T0)

        post = await take_one(store)
        assert await settled(store, post, now=at(1))

        (ended,) = await store.webhooks.posts(state=PostState.DELIVERED)
        assert (ended.id, ended.data) == (post.id, DATA)
        assert (await store.events.changes_since(at(-1), 100)).changes == []
        while await store.retention.delete_leftovers(timedelta(days=7), 100, now=at(0) + timedelta(days=8)):
            pass
        assert await store.webhooks.posts() == []
        assert await store.queries.check_places() == []

    async def test_only_alerts_that_are_ok_and_unchanged_are_forgotten(self, store: Store) -> None:
        stays = [alert(FIRING, "fires"), alert(PENDING, "is about to"), alert(OK, "has changed")]
        await put(store, *stays, alert(OK, "goes"))

        await store.alerts.forget([*stays[:2], alert(OK, "has changed", since=at(1)), alert(OK, "goes")])

        assert {one.series for one in await store.alerts.all()} == {one.series for one in stays}

    async def test_a_check_is_valid_until_the_next_one_is_overdue(self, store: Store) -> None:
        assert await store.alerts.last_check(now=T0) is None
        for seconds in (0, 15):
            await store.alerts.note_check(timedelta(seconds=60), now=at(seconds))

        assert [await store.alerts.last_check(now=at(seconds)) for seconds in (16, 74.9, 75)] == [at(15), at(15), None]
        await store.alerts.note_check(timedelta(hours=1))
        assert await store.alerts.last_check() is not None
