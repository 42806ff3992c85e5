"""PayloadValidator: builds and checks payloads before they are enqueued; the queue checks them again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from dutiful import Dutiful, Rules
from examples.practice.categories import CATEGORIES, PAYLOAD_VERSION

LONGEST_ID = 200
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
        if not isinstance(payload, Mapping):
            return False, ["payload must be an object of named fields, as create_payload makes it"]
        # What is called an id has to be one, also if the category does not require it.
        named = [name for name in payload if name.endswith("_id") and name not in rules.fields]
        errors = _RULES.validate(rules.plus(Rules(references=[*additional_required, *named])), payload)
        reported = {str(error).split()[0].split(".")[0].split("[")[0] for error in errors}
        checked = {*rules.fields, *additional_required, *named, *reported}
        lists = [name for name, value in payload.items() if name.endswith("_id") and isinstance(value, (list, tuple))]
        content = [path for name, value in payload.items() if name not in checked for path in _content(name, value)]
        found = [
            *(str(error) for error in errors),
            *(f"{name} is a list: give one id, or call the field {name}s" for name in lists if name not in reported),
            *(f"{path} is content, not a reference: give ids, without spaces" for path in content),
        ]
        return not found, found

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


def _content(path: str, value: Any) -> Iterator[str]:
    """Where a payload has words instead of ids, in lists and objects too."""
    match value:
        case str():
            if len(value) > LONGEST_ID or any(letter.isspace() for letter in value):
                yield path
        case Mapping():
            for name, one in value.items():
                yield from _content(f"{path}.{name}", one)
        case list() | tuple():
            if not path.endswith("_ids") and any(isinstance(one, str) for one in value):
                yield path  # a text in single words is still content
                return
            for place, one in enumerate(value):
                yield from _content(f"{path}[{place}]", one)
