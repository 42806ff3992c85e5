"""Text messages by a service with one HTTP operation."""

from typing import Any

import msgspec

from dutiful.channels.channels import ChannelCall
from dutiful.core.errors import UsageError


class SmsRequest(msgspec.Struct, frozen=True):
    """What a before handler of the channel `sms` returns as its payload."""

    to_number: str
    body: str


class HttpSms:
    """Posts `{"to_number", "body"}` to `url`, with a bearer token and the header Idempotency-Key.

    Any 2xx means accepted; the JSON of its answer becomes the worker_payload.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            from dutiful.channels.providers.http import HttpService
        except ImportError as error:
            raise UsageError(f"the channel sms needs an extra ({error}): pip install 'dutiful[webhooks]'") from error
        self._service = HttpService(url, token, "sms_url")

    def __call__(self, request: SmsRequest, call: ChannelCall) -> Any:
        body = {"to_number": request.to_number, "body": request.body}
        return self._service.post(self._service.url, body, call.idempotency_key, "the SMS service")
