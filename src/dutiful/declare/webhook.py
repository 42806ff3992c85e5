"""A webhook as the code declares it."""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.core.states import FINAL, State
from dutiful.core.webhooks.endpoint import check_url
from dutiful.core.webhooks.message import check_secrets, check_states, key_of
from dutiful.kind import Kind
from dutiful.settings import Settings
from dutiful.store.webhooks import WebhookRecord

ALL_STATES = [state.value for state in State if state in FINAL]


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """An endpoint, and its own secrets, which are never stored."""

    record: WebhookRecord
    secrets: tuple[str, ...] = field(default=(), repr=False)


def read_webhook(
    name: str,
    url: str,
    kinds: Iterable[Kind[Any, Any] | str] | None,
    states: Iterable[str] | None,
    secrets: str | Iterable[str] | None,
    settings: Settings,
    *,
    alerts: bool = False,
) -> WebhookSpec:
    """Checks everything now, because when a job ends there is no caller to report an error to."""
    what = f"webhook {check_name(name, 'webhook')}"
    if importlib.util.find_spec("httpx2") is None:
        raise UsageError(f"{what} needs an extra: pip install 'dutiful[webhooks]'")
    own = (secrets,) if isinstance(secrets, str) else tuple(secrets or ())
    for secret in own:
        key_of(secret)
    check_secrets(own or settings.webhook_secrets, what)
    record = WebhookRecord(
        name=name,
        url=check_url(url, settings.webhook_networks, what),
        kinds=None if kinds is None else _names(kinds, what),
        # A webhook for alerts gets no jobs unless kinds or states are named.
        states=[] if alerts and kinds is None and states is None else check_states(states, what) or ALL_STATES,
        alerts=alerts,
    )
    return WebhookSpec(record, own)


def _names(kinds: Iterable[Kind[Any, Any] | str], what: str) -> list[str]:
    named = [kinds] if isinstance(kinds, str | Kind) else list(kinds)
    if not named:
        raise UsageError(f"{what}: kinds is empty, so it would get no messages; leave it out to get all")
    return [kind.name if isinstance(kind, Kind) else check_name(kind, "kind") for kind in named]
