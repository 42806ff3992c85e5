"""The registry of channels: each has a name, which is the kind of its jobs, and a provider."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar, get_type_hints
from uuid import UUID

import msgspec
import msgspec.inspect

from dutiful.channels.payload import DB_FUNCTION
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.core.redaction.redact import safe_reason
from dutiful.core.retry.error_info import message_of
from dutiful.settings import Settings

EMAIL, SMS, FILE_DELETE = "email", "sms", "file_delete"
DEFAULT_TIMEOUT = timedelta(seconds=60)
Provider = TypeVar("Provider", bound=Callable[..., Any])


class ChannelCall(msgspec.Struct, frozen=True):
    """What a provider may know of the job that it works for."""

    job_id: UUID
    idempotency_key: str  # the same at every run of this job
    attempt: int  # which run of this job: more than 1 after the death of a worker


class RequestInvalid(Exception):
    """A before handler's payload is not the request that the provider takes."""


class Channel(msgspec.Struct, frozen=True):
    """A provider, and what it takes."""

    name: str
    function: Callable[..., Any]
    request: Any  # the type of its first parameter
    timeout: timedelta
    call_parameter: str | None  # the parameter that gets the ChannelCall
    is_async: bool

    def read(self, payload: Any) -> Any:
        """The provider's request."""
        try:
            return msgspec.convert({} if payload is None else payload, self.request)
        except (Exception, SystemExit) as error:  # also of code that the type runs when it is made
            reason = safe_reason(message_of(error))
            raise RequestInvalid(
                f"returned a payload that is no request of the channel {self.name}: {reason}"
            ) from None

    def arguments(self, request: Any, call: ChannelCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (request,), {} if self.call_parameter is None else {self.call_parameter: call}


class Channels(Mapping[str, Channel]):
    """The channels that a worker serves; `db_function`, which needs no provider, is always served.

    channels = Channels()
    channels.email(SmtpEmail("smtp://mail.example.org"))

    @channels.channel("push")
    async def push(request: PushRequest, call: ChannelCall) -> dict[str, str]: ...
    """

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> "Channels":
        """The built-in channels whose addresses are set."""
        channels = cls()
        channels.add_configured(settings)
        return channels

    def add_configured(self, settings: Settings) -> None:
        """Adds the built-in channels whose addresses are set, but those that were declared."""
        from dutiful.channels.providers.email import SmtpEmail
        from dutiful.channels.providers.files import HttpFiles
        from dutiful.channels.providers.sms import HttpSms

        if settings.smtp_url is not None and EMAIL not in self:
            self.email(SmtpEmail(settings.smtp_url))
        if settings.sms_url is not None and SMS not in self:
            self.sms(HttpSms(settings.sms_url, settings.sms_token))
        if settings.files_url is not None and FILE_DELETE not in self:
            self.file_delete(HttpFiles(settings.files_url, settings.files_token))

    def channel(self, name: str, *, timeout: Duration = DEFAULT_TIMEOUT) -> Callable[[Provider], Provider]:
        """Declares the provider of a channel: a function of one request, sync or async, and optionally of a `call`.

        What it returns becomes the `worker_payload` of the success handler. A sync one is run in a thread.
        """

        def declare(function: Provider) -> Provider:
            self._add(name, function, timeout)
            return function

        return declare

    def email(self, provider: Callable[..., Any], *, timeout: Duration = DEFAULT_TIMEOUT) -> None:
        self._add(EMAIL, provider, timeout)

    def sms(self, provider: Callable[..., Any], *, timeout: Duration = DEFAULT_TIMEOUT) -> None:
        self._add(SMS, provider, timeout)

    def file_delete(self, provider: Callable[..., Any], *, timeout: Duration = DEFAULT_TIMEOUT) -> None:
        self._add(FILE_DELETE, provider, timeout)

    def __getitem__(self, name: str) -> Channel:
        return self._channels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    def _add(self, name: str, function: Callable[..., Any], timeout: Duration) -> None:
        check_name(name, "channel")
        if name == DB_FUNCTION:
            raise UsageError(
                f"the channel {DB_FUNCTION} calls SQL functions, and takes no provider: choose another name"
            )
        if name in self._channels:
            raise UsageError(f"the channel {name} has a provider already: declare one for each channel")
        length = duration(timeout, f"timeout of channel {name}")
        if not length:
            raise UsageError(f"timeout of channel {name} is 0: give its provider some time, as in 30s")
        request, call_parameter = _read_signature(name, function)
        called: Any = function
        while isinstance(called, functools.partial):
            called = called.func
        if not inspect.isroutine(called):
            called = getattr(called, "__call__", called)  # noqa: B004
        is_async = inspect.iscoroutinefunction(called)
        self._channels[name] = Channel(name, function, request, length, call_parameter, is_async)


def _read_signature(name: str, function: Callable[..., Any]) -> tuple[Any, str | None]:
    """The type of the request, and the name of the parameter for the call, if there is one."""
    wanted = f"the provider of channel {name} must take one request, and may take `call: ChannelCall`"
    try:
        parameters = list(inspect.signature(function).parameters.values())
        target: Any = function
        while isinstance(target, functools.partial):
            target = target.func
        target = target if inspect.isroutine(target) else type(target).__call__
        hints = get_type_hints(target)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{wanted}; its signature cannot be read: {error}") from error
    calls = [p.name for p in parameters if hints.get(p.name) is ChannelCall or p.name == "call"]
    others = [p for p in parameters if p.name not in calls]
    needed = [p for p in others if p.default is p.empty]
    first = others[0] if others else None
    if (
        first is None
        or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
        or len(calls) > 1
        or [p for p in needed if p is not first]
    ):
        raise UsageError(wanted)
    request = hints.get(first.name, dict[str, Any])
    unfit = f"the request of channel {name} must be a msgspec Struct, a dataclass or a dict"
    try:
        if isinstance(msgspec.inspect.type_info(request), msgspec.inspect.CustomType):
            raise UsageError(f"{unfit}, not {request!r}")
    except TypeError as error:
        raise UsageError(f"{unfit}: {error}") from error
    return request, calls[0] if calls else None
