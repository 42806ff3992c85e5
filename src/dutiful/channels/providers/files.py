"""Deletes objects of a bucket, by signed addresses that a files service gives out."""

import msgspec

from dutiful.channels.channels import ChannelCall
from dutiful.core.errors import UsageError

GONE = (404, 410)  # deleted before, as by a run whose worker died
NO_BUCKET = b"NoSuchBucket"  # S3 and Google's storage answer 404 for that, too: nothing was ever deleted there


class FileDeletion(msgspec.Struct, frozen=True):
    """What a before handler of the channel `file_delete` returns as its payload."""

    bucket: str
    object_key: str


class HttpFiles:
    """Asks `url`/signed-urls for an address to delete one object, with a bearer token, and deletes it there.

    The storage gets no token. An object that is gone counts as deleted, one whose bucket does not exist does not.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            from dutiful.channels.providers import http
        except ImportError as error:
            raise UsageError(
                f"the channel file_delete needs an extra ({error}): pip install 'dutiful[webhooks]'"
            ) from error
        self._http = http
        self._service = http.HttpService(url, token, "files_url")

    def __call__(self, request: FileDeletion, call: ChannelCall) -> dict[str, bool]:
        body = {"method": "DELETE", "bucket": request.bucket, "object_key": request.object_key}
        signed = self._service.post(f"{self._service.url}/signed-urls", body, call.idempotency_key, "the files service")
        address = signed.get("url") if isinstance(signed, dict) else None
        if not isinstance(address, str) or not address.startswith(("https://", "http://")):
            raise self._http.HttpRefused('the files service answered without {"url": "https://…"}')
        status, answer = self._service.delete(address, "the storage")
        if status in GONE and NO_BUCKET not in answer:
            return {"deleted": True, "existed": False}
        if not 200 <= status < 300:
            why = f": there is no bucket {request.bucket!r}" if NO_BUCKET in answer else ""
            raise self._http.HttpRefused(f"the storage answered {status}{why}", status)
        return {"deleted": True, "existed": True}
