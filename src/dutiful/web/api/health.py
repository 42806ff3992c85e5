"""Whether this process lives, and whether it can work."""

import asyncio

from fastapi import APIRouter, Request, Response

from dutiful.app import Dutiful
from dutiful.core.errors import DutifulError, StoreUnavailable
from dutiful.web.problems import Problem, declared, of_error
from dutiful.web.shapes import Shape

PATIENCE = 5.0


class Health(Shape):
    status: str


def health(app: Dutiful) -> APIRouter:
    """Open to everybody, and silent about everything else."""
    router = APIRouter(tags=["Health"])

    @router.get("/livez", operation_id="livez")
    async def livez() -> Health:
        """This process answers."""
        return Health(status="ok")

    @router.get("/readyz", operation_id="readyz", response_model=Health, responses=declared(503))
    async def readyz(request: Request) -> Health | Response:
        """The database answers and is migrated."""
        try:
            async with asyncio.timeout(PATIENCE):
                await (await app.client()).store.pauses()
        except (DutifulError, TimeoutError) as error:
            problem = of_error(error if isinstance(error, DutifulError) else StoreUnavailable())
            return (problem or Problem(503, "the database does not answer")).response(request)
        return Health(status="ok")

    return router
