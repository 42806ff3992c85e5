"""Waits for what the night shift expects, by polling."""

from dataclasses import dataclass
from uuid import UUID

import httpx2

from dutiful import AlertState, BreakerState, CorrelationTree, DeadLetter, Operator, ReviewState, State
from examples.sports_sites.event_log import until
from examples.sports_sites.fake_services import FakeServices


@dataclass(frozen=True)
class Watch:
    operator: Operator
    services: FakeServices

    async def calls(self, service: str, count: int) -> None:
        """Waits for this many calls to the service."""

        async def look() -> bool:
            return self.services.called[service] >= count

        await until(look)

    async def delivered(self, address: str) -> None:
        async def look() -> bool:
            return any(mail["To"] == address for mail in self.services.delivered)

        await until(look)

    async def tree(self, correlation_id: str, size: int) -> CorrelationTree:
        """Returns the tree of jobs, once it has this many and all have ended."""

        async def look() -> CorrelationTree | None:
            found = await self.operator.trace.find(correlation_id)
            return found if len(found.members) == size and all(one.state.final for one in found.members) else None

        return await until(look)

    async def breaker(self, name: str, state: BreakerState) -> None:
        async def look() -> bool:
            found = [one.breaker for one in await self.operator.breakers.all() if one.breaker.name == name]
            return any(breaker.state is state for breaker in found)

        await until(look)

    async def idle(self, *job_ids: UUID) -> None:
        """Waits until none of them is running."""

        async def look() -> bool:
            return all([(await self.operator.jobs.get(job)).state is not State.RUNNING for job in job_ids])

        await until(look)

    async def alert(self, breaker: str, state: AlertState) -> None:
        """Waits for the state of the alert about this breaker."""

        async def look() -> bool:
            found = [one.alert for one in await self.operator.alerts.all() if one.alert.rule == "breaker-open"]
            return any(breaker in alert.series and alert.state is state for alert in found)

        await until(look)

    async def pages(self, *events: str) -> None:
        """Waits until the pager has received exactly these events about breakers."""

        async def look() -> bool:
            return self.received_pages() == list(events)

        await until(look)

    def received_pages(self) -> list[str]:
        return [page["type"] for page in self.services.paged if page["data"]["rule"] == "breaker-open"]

    async def resolved(self, job_id: UUID) -> DeadLetter:
        async def look() -> DeadLetter | None:
            letter = await self.operator.dead_letters.get(job_id)
            return letter if letter.status is ReviewState.RESOLVED else None

        return await until(look)

    async def metric(self, url: str, headers: dict[str, str], line: str) -> str:
        """Returns the server's metrics, once they contain this line; workers report their counts with a delay."""

        async def look() -> str | None:
            async with httpx2.AsyncClient(timeout=30) as http:
                answer = await http.get(f"{url}/metrics", headers=headers)
            answer.raise_for_status()
            return answer.text if line in answer.text else None

        return await until(look)
