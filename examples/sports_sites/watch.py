"""What the night shift waits for: each look finds nothing until it has come about."""

from dataclasses import dataclass
from uuid import UUID

import httpx2

from dutiful import AlertState, BreakerState, DeadLetter, Family, Operator, ReviewState, State
from examples.sports_sites.ledger import until
from examples.sports_sites.outside import Outside


@dataclass(frozen=True)
class Watch:
    operator: Operator
    outside: Outside

    async def calls(self, service: str, count: int) -> None:
        """So many have been made to it."""

        async def look() -> bool:
            return self.outside.called[service] >= count

        await until(look)

    async def delivered(self, address: str) -> None:
        async def look() -> bool:
            return any(mail["To"] == address for mail in self.outside.delivered)

        await until(look)

    async def family(self, correlation_id: str, size: int) -> Family:
        """All of its jobs, once so many are there and have ended."""

        async def look() -> Family | None:
            found = await self.operator.trace(correlation_id)
            return found if len(found.members) == size and all(one.state.final for one in found.members) else None

        return await until(look)

    async def breaker(self, name: str, state: BreakerState) -> None:
        async def look() -> bool:
            found = [one.breaker for one in await self.operator.breakers() if one.breaker.name == name]
            return any(breaker.state is state for breaker in found)

        await until(look)

    async def rests(self, *job_ids: UUID) -> None:
        """None of them runs."""

        async def look() -> bool:
            return all([(await self.operator.job(job)).state is not State.RUNNING for job in job_ids])

        await until(look)

    async def alert(self, breaker: str, state: AlertState) -> None:
        """The one that says that this breaker is open."""

        async def look() -> bool:
            found = [one.alert for one in await self.operator.alerts() if one.alert.rule == "breaker-open"]
            return any(breaker in alert.series and alert.state is state for alert in found)

        await until(look)

    async def pages(self, *events: str) -> None:
        """The pager has heard of these, and no others, about breakers."""

        async def look() -> bool:
            return self.pages_heard() == list(events)

        await until(look)

    def pages_heard(self) -> list[str]:
        return [page["type"] for page in self.outside.paged if page["data"]["rule"] == "breaker-open"]

    async def resolved(self, job_id: UUID) -> DeadLetter:
        async def look() -> DeadLetter | None:
            letter = await self.operator.dead_letter(job_id)
            return letter if letter.status is ReviewState.RESOLVED else None

        return await until(look)

    async def metric(self, url: str, headers: dict[str, str], line: str) -> str:
        """The server's metrics, once they say this; workers hand in what they count by and by."""

        async def look() -> str | None:
            async with httpx2.AsyncClient(timeout=30) as http:
                told = await http.get(f"{url}/metrics", headers=headers)
            told.raise_for_status()
            return told.text if line in told.text else None

        return await until(look)
