"""The HTTP service."""

from asyncpg import CharacterNotInRepertoireError, UntranslatableCharacterError
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from dutiful import Dutiful
from examples.bodies import new_api
from examples.docverse.api import builds, editions, github, orgs, queue, upkeep
from examples.docverse.factory import Docverse
from examples.docverse.git_refs import BadRef
from examples.docverse.services.hosting import Conflict, NotFound, Refused
from examples.docverse.storage.object_store import BadKey
from examples.docverse.storage.tarball import BadTarball

ERRORS: dict[type[Exception], int] = {
    NotFound: 404,
    Conflict: 409,
    Refused: 422,
    BadRef: 422,
    BadKey: 422,
    BadTarball: 422,
    ValueError: 422,
}
UNFIT = "a text has a character that the database does not store, U+0000 for example: leave it out"


def create_api(services: Docverse, jobs: Dutiful) -> FastAPI:
    api = new_api(streamed="/content", title="Docverse", description="A documentation host")
    api.state.docverse, api.state.jobs = services, jobs
    for module in (orgs, builds, editions, queue, upkeep, github):
        api.include_router(module.router)
    for kind in ERRORS:
        api.add_exception_handler(kind, _answer)
    for kind in (CharacterNotInRepertoireError, UntranslatableCharacterError, UnicodeEncodeError):
        api.add_exception_handler(kind, _refuse_character)
    return api


async def _answer(request: Request, error: Exception) -> JSONResponse:
    code = next(code for kind, code in ERRORS.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, code)


async def _refuse_character(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": UNFIT}, 422)
