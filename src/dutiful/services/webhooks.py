"""Posts what the outbox holds, to several receivers at once; a slow one holds up nobody but itself."""

import asyncio
import logging
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from dutiful.core import ids
from dutiful.core.endpoint import origin
from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.payload import clean
from dutiful.core.webhook import (
    ALERT_WAITS,
    WAITS,
    Answer,
    Fate,
    Uniform,
    Verdict,
    again,
    check_secrets,
    give_up,
    headers,
    judge,
    message,
)
from dutiful.delivery import Lines
from dutiful.duties import Survey
from dutiful.outbox import Outbox, PostResult, PostState, WebhookPost, WebhookRecord
from dutiful.services.guard import Forbidden, Unreachable

log = logging.getLogger("dutiful.webhooks")
AT_ONCE = 16
FOR_EACH = 4  # at once to one receiver
RETRIES = AT_ONCE // 2  # at once of those that were tried before: receivers that hang leave room for others
IDLE = 1.0  # seconds between looks that find nothing: what is due may be for a worker that declares its webhook
ASTRAY = 10.0  # the same for a worker that does not lead
# In time limits: a post may wait for others to the same receiver, then it is tried, then the outcome is written.
HOLD = AT_ONCE // FOR_EACH + 2
PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)  # between tries to write an outcome
CONTENT = {"content-type": "application/json", "user-agent": "dutiful"}
_STATES = {
    Fate.DELIVERED: PostState.DELIVERED,
    Fate.AGAIN: PostState.PENDING,
    Fate.GIVEN_UP: PostState.FAILED,
    Fate.GONE: PostState.FAILED,
}


class Sender(Protocol):
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises Unreachable or Forbidden."""
        ...

    def close(self) -> None: ...


class Poster:
    """Takes posts when told that some are due; each is under way in a task that outlives the turn that took it."""

    name = "webhooks"

    def __init__(
        self,
        outbox: Outbox,
        declared: Sequence[WebhookRecord],
        make_sender: Callable[[], Sender],
        secrets: Callable[[str | None], Sequence[str]],
        limit: timedelta,
        news: Callable[[], None],
        uniform: Uniform = random.uniform,
    ) -> None:
        self._outbox = outbox
        self.declared = declared
        self.hears_of_jobs = any(webhook.states for webhook in declared)
        self._names = [webhook.name for webhook in declared]
        self._make_sender = make_sender
        self._secrets = secrets
        self._hold = limit * HOLD
        self._news = news
        self._uniform = uniform
        self._sender: Sender | None = None
        self._making = asyncio.Lock()
        self._flights: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()  # flights to each receiver
        self._waiting: defaultdict[str, deque[WebhookPost]] = defaultdict(deque)
        self._retrying = 0  # of those under way or waiting
        self._found_none_at = -ASTRAY  # by the loop's clock
        self._taking: asyncio.Task[None] | None = None
        self._wanted = False
        self._more = False  # whether the outbox may hold some for which there was no room
        self._closing = False

    async def declare(self) -> None:
        """Store the endpoints of the code: before the first job can end, so that none ends unheard."""
        await self._outbox.put_webhooks(self.declared)

    async def tick(self, survey: Survey) -> Lines | None:
        due = survey.next_post_at is not None and survey.next_post_at <= survey.now
        # Who does not lead is not told what is due; but the leader may not declare our webhooks.
        astray = not survey.leading and bool(self._names)
        pause = IDLE if survey.leading else ASTRAY
        if (due or astray) and asyncio.get_running_loop().time() >= self._found_none_at + pause:
            self.wake()
        return None

    def wake(self) -> None:
        """Some may be due: look at once."""
        self._wanted = True
        if self._taking is None and not self._closing:
            self._taking = asyncio.create_task(self._take_all(), name="dutiful webhooks")

    async def close(self, patience: float) -> None:
        """Post what is due now, and let what is under way end and be written, all within `patience` seconds."""
        self._closing = True
        try:
            async with asyncio.timeout(patience):
                if self._taking is not None:
                    await asyncio.wait({self._taking})
                await self._drain()
        except TimeoutError:
            if self._flights:
                log.warning("webhooks that were still under way are posted again later: %d", len(self._flights))
        finally:
            for flight in self._flights:
                flight.cancel()
            await asyncio.gather(*self._flights, return_exceptions=True)
            if self._sender is not None:
                self._sender.close()

    # --- taking

    async def _take_all(self) -> None:
        try:
            while self._wanted and not self._closing:
                self._wanted = False
                await self._take()
        finally:
            self._taking = None

    async def _take(self) -> None:
        """As many as there is room for, none for a receiver that has enough to do."""
        room = AT_ONCE - len(self._flights)
        if room <= 0:
            self._more = True
            return
        avoid = [place for place, flights in self._busy.items() if flights >= FOR_EACH]
        retries = max(RETRIES - self._retrying, 0)
        try:
            posts = await self._outbox.take_posts(room, self._hold, avoid=avoid, names=self._names, retries=retries)
        except DutifulError as error:
            log.warning("webhooks wait: %s", error)
            return
        except Exception:
            log.exception("webhooks wait, for they could not be taken")
            return
        tried = sum(post.attempts > 1 for post in posts)
        self._retrying += tried
        self._more = bool(avoid) or len(posts) == room or tried == retries
        if not posts:
            self._found_none_at = asyncio.get_running_loop().time()
        for post in posts:
            self._launch(post)

    def _launch(self, post: WebhookPost) -> None:
        place = origin(post.url)
        if self._busy[place] >= FOR_EACH:
            self._waiting[place].append(post)
            return
        self._busy[place] += 1
        flight = asyncio.create_task(self._fly(place, post), name=f"dutiful webhook {post.id}")
        self._flights.add(flight)
        flight.add_done_callback(self._land)

    def _land(self, flight: "asyncio.Task[None]") -> None:
        self._flights.discard(flight)
        if self._more:
            self.wake()

    async def _drain(self) -> None:
        while True:
            await self._take()
            if not self._flights:
                return
            await asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED)

    # --- posting

    async def _fly(self, place: str, post: WebhookPost) -> None:
        """Post this one, and then those that wait for the same receiver."""
        line = self._waiting[place]
        try:
            while True:
                await self._deliver(post)
                if not line:
                    break
                post = line.popleft()
        finally:
            # Here and not when the task is done: whatever is put in line meanwhile needs somebody who sees it.
            self._busy[place] -= 1
            if not self._busy[place]:
                del self._busy[place], self._waiting[place]

    async def _deliver(self, post: WebhookPost) -> None:
        status, waits = None, ALERT_WAITS if post.job_id is None else WAITS
        try:
            answer = await self._send(post)
            status = answer.status
            verdict = judge(answer, post.attempts, datetime.now(UTC), self._uniform, waits)
        except Forbidden as error:
            verdict = give_up(str(error))
        except (Unreachable, UsageError) as error:
            verdict = again(str(error), post.attempts, self._uniform, waits)
        except Exception as error:
            log.exception("webhook %s met an error", post.id)
            verdict = again(f"{type(error).__name__}: {error}", post.attempts, self._uniform, waits)
        _tell_of(post, verdict)
        await self._record(post, verdict, status)
        self._retrying -= post.attempts > 1

    async def _send(self, post: WebhookPost) -> Answer:
        secrets = self._secrets(post.webhook)
        check_secrets(secrets, "a webhook")
        body = message(post.event, post.created_at, post.job_id, post.data)
        signed = headers(post.id, datetime.now(UTC), body, secrets)
        async with self._making:
            if self._sender is None:
                self._sender = await asyncio.to_thread(self._make_sender)  # imports, and reads certificates
        return await self._sender.post(post.url, {**CONTENT, **signed}, body)

    async def _record(self, post: WebhookPost, verdict: Verdict, status: int | None) -> None:
        """Written until the store has answered, within reason: else the receiver hears it again."""
        result = PostResult(post.id, post.attempts, _STATES[verdict.fate], verdict.delay, status, verdict.error)
        for pause in (*PAUSES, None):
            try:
                await self._outbox.settle_post(result)
                if verdict.fate is Fate.GONE and post.webhook is not None:
                    reason = verdict.error or "its receiver is gone"
                    await self._outbox.disable_webhook(post.webhook, reason, url=post.url)
                break
            except DutifulError as error:
                if pause is None:
                    log.warning("webhook %s: its outcome could not be written: %s", post.id, error)
                    return
                await asyncio.sleep(pause)
            except Exception:
                # Those that wait for the same receiver are still to be posted.
                log.exception("webhook %s: its outcome could not be written", post.id)
                return
        self._news()


def _tell_of(post: WebhookPost, verdict: Verdict) -> None:
    if verdict.fate is Fate.DELIVERED:
        return
    log.warning(
        "webhook %s (%s) to %s: %s; %s",
        post.id,
        post.event if post.job_id is None else f"{post.event} of job {ids.public(post.job_id)}",
        clean(origin(post.url).rpartition("@")[2], 200),
        verdict.error,
        f"again in {verdict.delay.total_seconds():.0f} s" if verdict.delay else "given up",
    )
