"""PayloadValidator: builds and checks payloads before they are enqueued; the queue checks them again."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from dutiful import Dutiful, Rules
from examples.practice.categories import CATEGORIES, PAYLOAD_VERSION

_RULES = Dutiful()  # only validates; it is never opened


class PayloadValidator:
    @staticmethod
    def validate_payload(
        payload: Mapping[str, Any], category: str, additional_required: Sequence[str] = ()
    ) -> tuple[bool, list[str]]:
        """Whether it is a valid payload of the category, and all errors."""
        rules = CATEGORIES.get(category)
        if rules is None:
            return False, [f"category: there is no {category!r}; there are: {', '.join(CATEGORIES)}"]
        # What is called an id has to be one, also if the category does not require it.
        named = [name for name in payload if name.endswith("_id") and name not in rules.fields]
        errors = _RULES.validate(rules.plus(Rules(references=[*additional_required, *named])), payload)
        return not errors, [str(error) for error in errors]

    @staticmethod
    def create_payload(tenant_id: int, correlation_id: UUID | str, idempotency_key: str, **refs: Any) -> dict[str, Any]:
        """A payload of references; it contains no data of the objects."""
        return {
            "tenant_id": tenant_id,
            "correlation_id": str(correlation_id),
            "idempotency_key": idempotency_key,
            "payload_version": PAYLOAD_VERSION,
            **refs,
        }
