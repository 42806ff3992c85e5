"""Posts the webhook outbox to several receivers at once; a slow receiver delays only its own posts."""

import asyncio
import logging
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from dutiful.core import ids
from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.json import clean
from dutiful.core.sealed import shown
from dutiful.core.webhooks.endpoint import origin
from dutiful.core.webhooks.message import (
    ALERT_WAITS,
    WAITS,
    PostDecision,
    PostOutcome,
    Uniform,
    WebhookResponse,
    after_error,
    after_response,
    check_secrets,
    give_up,
    headers,
    message,
)
from dutiful.delivery.base import QueueLevels
from dutiful.maintenance.webhooks.address_guard import Forbidden, Unreachable
from dutiful.observe.outage import level_of
from dutiful.store.leadership import Survey
from dutiful.store.webhooks import PostResult, PostState, WebhookPost, WebhookRecord, WebhookStore

log = logging.getLogger("dutiful.webhooks")
MAX_IN_FLIGHT = 16
PER_RECEIVER = 4
MAX_RETRIES = MAX_IN_FLIGHT // 2  # in flight: receivers that hang leave room for others
IDLE = 1.0  # seconds after an empty poll: what is due may be for a worker that declares its webhook
FOLLOWER_IDLE = 10.0  # the same for a worker that does not lead
# In timeouts: a post may wait for others to the same receiver, then it is sent, then its outcome is stored.
HOLD_TIMEOUTS = MAX_IN_FLIGHT // PER_RECEIVER + 2
SETTLE_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
CONTENT = {"content-type": "application/json", "user-agent": "dutiful"}
_STATES = {
    PostOutcome.DELIVERED: PostState.DELIVERED,
    PostOutcome.RETRY: PostState.PENDING,
    PostOutcome.GIVEN_UP: PostState.FAILED,
    PostOutcome.GONE: PostState.FAILED,
}


class HttpClient(Protocol):
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        """Raises Unreachable or Forbidden."""

    def close(self) -> None: ...


class WebhookSender:
    """Takes posts when woken; each is in flight in a task that outlives the tick that took it."""

    name = "webhooks"

    def __init__(
        self,
        outbox: WebhookStore,
        declared: Sequence[WebhookRecord],
        make_http: Callable[[], HttpClient],
        secrets: Callable[[str | None], Sequence[str]],
        timeout: timedelta,
        notify: Callable[[], None],
        uniform: Uniform = random.uniform,
    ) -> None:
        self._outbox = outbox
        self.declared = declared
        self.wants_jobs = any(webhook.states for webhook in declared)
        self._names = [webhook.name for webhook in declared]
        self._make_http = make_http
        self._secrets = secrets
        self._hold = timeout * HOLD_TIMEOUTS
        self._notify = notify
        self._uniform = uniform
        self._http: HttpClient | None = None
        self._making = asyncio.Lock()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()  # posts in flight to each receiver
        self._waiting: defaultdict[str, deque[WebhookPost]] = defaultdict(deque)
        self._retrying = 0  # of those in flight or waiting
        self._empty_at = -FOLLOWER_IDLE  # by the loop's clock
        self._task: asyncio.Task[None] | None = None
        self._wanted = False
        self._more = False  # the outbox may hold posts for which there was no room
        self._closing = False

    async def declare(self) -> None:
        """Stores the declared webhooks, before the first job can end, so that none ends without its posts."""
        await self._outbox.put(self.declared)

    async def tick(self, survey: Survey) -> QueueLevels | None:
        due = survey.next_post_at is not None and survey.next_post_at <= survey.now
        # A follower's survey does not say what is due, but the leader may not declare this worker's webhooks.
        may_be_due = not survey.leading and bool(self._names)
        pause = IDLE if survey.leading else FOLLOWER_IDLE
        if (due or may_be_due) and asyncio.get_running_loop().time() >= self._empty_at + pause:
            self.wake()
        return None

    def wake(self) -> None:
        """Takes due posts at once."""
        self._wanted = True
        if self._task is None and not self._closing:
            self._task = asyncio.create_task(self._take_all(), name="dutiful webhooks")

    async def close(self, timeout: float) -> None:
        """Posts what is due now and waits for what is in flight, all within `timeout` seconds."""
        self._closing = True
        try:
            async with asyncio.timeout(timeout):
                if self._task is not None:
                    await asyncio.wait({self._task})
                await self._drain()
        except TimeoutError:
            if self._in_flight:
                log.warning("webhooks that were still in flight are posted again later: %d", len(self._in_flight))
        finally:
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)
            if self._http is not None:
                self._http.close()

    # --- taking

    async def _take_all(self) -> None:
        try:
            while self._wanted and not self._closing:
                self._wanted = False
                await self._take()
        finally:
            self._task = None

    async def _take(self) -> None:
        """Takes as many posts as there is room for, none for a receiver that is busy."""
        room = MAX_IN_FLIGHT - len(self._in_flight)
        if room <= 0:
            self._more = True
            return
        avoid = [receiver for receiver, count in self._busy.items() if count >= PER_RECEIVER]
        retries = max(MAX_RETRIES - self._retrying, 0)
        try:
            posts = await self._outbox.take(room, self._hold, avoid=avoid, names=self._names, retries=retries)
        except DutifulError as error:
            log.log(level_of(error), "webhooks are delayed: %s", error)
            return
        except Exception:
            log.exception("webhooks are delayed, because they could not be taken")
            return
        tried = sum(post.attempts > 1 for post in posts)
        self._retrying += tried
        self._more = bool(avoid) or len(posts) == room or tried == retries
        if not posts:
            self._empty_at = asyncio.get_running_loop().time()
        for post in posts:
            self._start(post)

    def _start(self, post: WebhookPost) -> None:
        receiver = origin(post.url)
        if self._busy[receiver] >= PER_RECEIVER:
            self._waiting[receiver].append(post)
            return
        self._busy[receiver] += 1
        task = asyncio.create_task(self._post_all(receiver, post), name=f"dutiful webhook {post.id}")
        self._in_flight.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        if self._more:
            self.wake()

    async def _drain(self) -> None:
        while True:
            await self._take()
            if not self._in_flight:
                return
            await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)

    # --- posting

    async def _post_all(self, receiver: str, post: WebhookPost) -> None:
        """Posts this one, and then those that wait for the same receiver."""
        waiting = self._waiting[receiver]
        try:
            while True:
                await self._deliver(post)
                if not waiting:
                    break
                post = waiting.popleft()
        finally:
            # Here and not in the task's callback: a post added in between would wait for a task that has ended.
            self._busy[receiver] -= 1
            if not self._busy[receiver]:
                del self._busy[receiver], self._waiting[receiver]

    async def _deliver(self, post: WebhookPost) -> None:
        status, waits = None, ALERT_WAITS if post.job_id is None else WAITS
        try:
            answer = await self._send(post)
            status = answer.status
            decision = after_response(answer, post.attempts, datetime.now(UTC), self._uniform, waits)
        except Forbidden as error:
            decision = give_up(str(error))
        except (Unreachable, UsageError) as error:
            decision = after_error(str(error), post.attempts, self._uniform, waits)
        except Exception as error:
            log.exception("webhook %s failed", post.id)
            decision = after_error(f"{type(error).__name__}: {error}", post.attempts, self._uniform, waits)
        _log_failure(post, decision)
        await self._record(post, decision, status)
        self._retrying -= post.attempts > 1

    async def _send(self, post: WebhookPost) -> WebhookResponse:
        secrets = self._secrets(post.webhook)
        check_secrets(secrets, "a webhook")
        body = message(post.event, post.created_at, post.job_id, _shown(post.data))
        signed = headers(post.id, datetime.now(UTC), body, secrets)
        async with self._making:
            if self._http is None:
                self._http = await asyncio.to_thread(self._make_http)  # imports, and reads certificates
        return await self._http.post(post.url, {**CONTENT, **signed}, body)

    async def _record(self, post: WebhookPost, decision: PostDecision, status: int | None) -> None:
        """Retries for a while if the store does not answer, because otherwise the post is repeated."""
        result = PostResult(post.id, post.attempts, _STATES[decision.outcome], decision.delay, status, decision.error)
        for pause in (*SETTLE_PAUSES, None):
            try:
                await self._outbox.settle(result)
                if decision.outcome is PostOutcome.GONE and post.webhook is not None:
                    reason = decision.error or "its receiver is gone"
                    await self._outbox.disable(post.webhook, reason, url=post.url)
                break
            except DutifulError as error:
                if pause is None:
                    log.warning("webhook %s: its outcome could not be stored: %s", post.id, error)
                    return
                await asyncio.sleep(pause)
            except Exception:
                # The posts that wait for the same receiver must still be sent.
                log.exception("webhook %s: its outcome could not be stored", post.id)
                return
        self._notify()


def _log_failure(post: WebhookPost, decision: PostDecision) -> None:
    if decision.outcome is PostOutcome.DELIVERED:
        return
    log.warning(
        "webhook %s (%s) to %s: %s; %s",
        post.id,
        post.event if post.job_id is None else f"{post.event} of job {ids.public(post.job_id)}",
        clean(origin(post.url).rpartition("@")[2], 200),
        decision.error,
        f"again in {decision.delay.total_seconds():.0f} s" if decision.delay else "given up",
    )


def _shown(data: dict[str, Any]) -> dict[str, Any]:
    """The data without ciphertext, of which its receiver has no use."""
    errors = data.get("errors")
    if not isinstance(errors, list):
        return data
    return {**data, "result": shown(data.get("result")), "errors": [shown(error) for error in errors]}
