"""GitHub's webhooks: a push to a template repository starts its sync."""

import hashlib
import hmac
import json
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from examples.docverse import public_ids
from examples.docverse.api.access import Services
from examples.docverse.factory import Docverse
from examples.docverse.git_refs import check_ref, check_repository
from examples.docverse.records import Org
from examples.docverse.services.credentials import CredentialError
from examples.docverse.services.dashboard_sync import Push
from examples.docverse.services.hosting import NotFound, Refused

router = APIRouter(prefix="/orgs/{org}/webhooks/github")
SECRET = "github"  # the label of the credential


@router.post("", status_code=202)
async def receive(org: str, request: Request, services: Services) -> dict[str, Any]:
    """The signature is all that authenticates a delivery, so it is checked before anything is read."""
    body = await request.body()
    owner = await _signed(org, body, request.headers.get("x-hub-signature-256", ""), services)
    if request.headers.get("x-github-event") != "push":
        return {"queue_job": None}
    push = _push(request.headers.get("x-github-delivery", ""), body)
    job = None if push is None else await services.templates.pushed(owner, push)
    return {"queue_job": None if job is None else public_ids.spell_job(job)}


async def _signed(org: str, body: bytes, signature: str, services: Docverse) -> Org:
    try:
        owner = await services.hosting.org(org)
        secret = await services.credentials.get(owner.id, SECRET)
    except (NotFound, CredentialError):
        # The same answer and the same work, so that no one learns which organizations there are.
        owner, secret = None, "none"
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), signature.encode()) or owner is None:
        raise HTTPException(401, "the signature in X-Hub-Signature-256 is missing or wrong")
    return owner


def _push(delivery_id: str, body: bytes) -> Push | None:
    """None for a push that deletes its ref."""
    try:
        event = json.loads(body)
        repository, ref, deleted = event["repository"]["full_name"], event["ref"], event.get("deleted", False)
        name = ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused("a push has repository.full_name and ref; this body has not") from None
    if not delivery_id or len(delivery_id) > 100 or not isinstance(repository, str):
        raise Refused("X-GitHub-Delivery is missing or too long, or repository.full_name is no text")
    return None if deleted is True else Push(delivery_id, check_repository(repository), check_ref(name))
