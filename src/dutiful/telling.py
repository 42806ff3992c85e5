"""Who is told of what: the webhooks and alerts that an app declares."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from dutiful.alert import check_off, read_alert, rules_of
from dutiful.core.alert import AlertRule
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.kind import Kind
from dutiful.outbox import WebhookRecord
from dutiful.settings import Settings
from dutiful.webhook import WebhookSpec, read_webhook


class Telling(ABC):
    def __init__(self) -> None:
        self.webhooks: dict[str, WebhookSpec] = {}
        self.alerts: dict[str, AlertRule | None] = {}  # None: a built-in one that is off

    @property
    @abstractmethod
    def settings(self) -> Settings: ...

    def webhook(
        self,
        name: str,
        url: str,
        *,
        kinds: Iterable[Kind[Any, Any] | str] | None = None,
        states: Iterable[str] | None = None,
        alerts: bool = False,
        secrets: str | Iterable[str] | None = None,
    ) -> WebhookRecord:
        """Tell this URL of jobs that have ended: of all, or of these kinds and states; signed with the settings'
        webhook_secrets, or with `secrets` of its own, the newest first.

        With `alerts`, it hears of alerts that begin to fire or are over, and of jobs only if kinds or states are named.
        """
        if name in self.webhooks:
            raise UsageError(f"there is a webhook {name!r} already; give one of them another name")
        spec = read_webhook(name, url, kinds, states, secrets, self.settings, alerts=alerts)
        self.webhooks[name] = spec
        return spec.record

    def webhook_secrets(self, name: str | None) -> tuple[str, ...]:
        """What a webhook is signed with; without a name, one that a job names itself.

        None for one that this app does not declare: whoever does may have given it secrets of its own.
        """
        if name is None:
            return self.settings.webhook_secrets
        spec = self.webhooks.get(name)
        return () if spec is None else spec.secrets or self.settings.webhook_secrets

    def alert(
        self,
        name: str,
        metric: str | None = None,
        *,
        above: float | None = None,
        below: float | None = None,
        clear: float | None = None,
        hold: Duration | None = None,
        clear_hold: Duration | None = None,
        where: Mapping[str, str] | None = None,
        least: int | None = None,
        summary: str | None = None,
        runbook: str | None = None,
        off: bool = False,
    ) -> AlertRule | None:
        """Watch a metric, and fire once it has been above or below the threshold for `hold`; a built-in alert's name
        takes its place, and with off=True that one is not watched. See docs/guides/alerts.md for the rest."""
        if name in self.alerts:
            raise UsageError(f"there is an alert {name!r:.80} already; give one of them another name")
        given: dict[str, Any] = {
            "metric": metric,
            "above": above,
            "below": below,
            "clear": clear,
            "hold": hold,
            "clear_hold": clear_hold,
            "where": where,
            "least": least,
            "summary": summary,
            "runbook": runbook,
        }
        said = {field: value for field, value in given.items() if value is not None}
        if off:
            check_off(name, said)
        self.alerts[name] = None if off else read_alert(name, **said)
        return self.alerts[name]

    def alert_rules(self) -> dict[str, AlertRule]:
        """All that a worker watches, by name."""
        settings = self.settings
        return rules_of(self.alerts, settings.alerts_off, runbook_url=settings.runbook_url, counting=settings.metrics)
