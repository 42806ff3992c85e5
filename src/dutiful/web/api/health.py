"""Health checks: /livez and /readyz."""

import asyncio

from fastapi import APIRouter, Request, Response
from pydantic import Field

from dutiful.app import Dutiful
from dutiful.core.errors import DutifulError, StoreUnavailable
from dutiful.web.problems import Problem, declared, of_error
from dutiful.web.shapes import Shape

PATIENCE = 5.0


class Health(Shape):
    status: str = Field(examples=["ok"])


def health(app: Dutiful) -> APIRouter:
    """Needs no token, and reveals nothing else."""
    router = APIRouter(tags=["Health"])

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez", operation_id="livez")
    async def livez() -> Health:
        """This process answers."""
        return Health(status="ok")

    @router.head("/readyz", response_model=Health, include_in_schema=False)
    @router.get("/readyz", operation_id="readyz", response_model=Health, responses=declared(503))
    async def readyz(request: Request) -> Health | Response:
        """The database answers and is migrated."""
        try:
            async with asyncio.timeout(PATIENCE):
                store = (await app.client()).store
                if store.tenants is not None:
                    await store.tenants.refresh()  # they may have been switched on or off
                await store.control.pauses()
        except (DutifulError, TimeoutError) as error:
            problem = of_error(error if isinstance(error, DutifulError) else StoreUnavailable())
            return (problem or Problem(503, "the database does not answer")).response(request)
        return Health(status="ok")

    return router
