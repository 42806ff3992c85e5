"""Jobs, for those whose they are; the record says all, so this works while a broker is down."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request

from dutiful import Dutiful, MalformedId
from examples.docverse.api.access import Called, Services
from examples.docverse.queue_job import find_queue_job

router = APIRouter(prefix="/queue")


@router.get("/jobs/{job}")
async def queue_job(job: str, request: Request, called: Called, services: Services) -> dict[str, Any]:
    app: Dutiful = request.app.state.jobs
    try:
        found = await find_queue_job(app, job)
    except MalformedId as error:
        raise HTTPException(422, str(error)) from None
    own = None if called.org is None else (await services.hosting.org(called.org)).id
    if found is None or own not in (None, found.org_id):
        raise HTTPException(404, f"there is no job {job}: it never existed, or its record has expired")
    return found.shown()
