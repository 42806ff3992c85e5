"""Reads the signature of a handler of batches: the type of its list is the schema of one job's payload."""

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import msgspec.inspect as inspected

from dutiful.context import BatchContext, BatchJob, injected
from dutiful.core.errors import UsageError
from dutiful.payload.signature import Field, Schema, is_context, spelling

_LISTS = (list, Sequence, Collection, Iterable)
_OBJECTS = (inspected.StructType, inspected.DataclassType, inspected.TypedDictType)
_FREE = dict[str, Any]  # a payload without a declared type


class BatchSignature(Schema):
    """`def index(pages: list[Page])`, or `list[BatchJob[Page]]`: Page has the fields of the payload."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        super().__init__(kind, [])
        self._resources: dict[str, str] = {}
        parameters = inspect.signature(function).parameters.values()
        lists = []
        for index, parameter in enumerate(parameters):
            if (resource := injected(parameter.default)) is not None:
                self._resources[parameter.name] = resource
            elif index == 0 and is_context(parameter, BatchContext):
                self.context = parameter.name
            else:
                lists.append(parameter)
        if len(lists) != 1 or lists[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise UsageError(
                f"kind {kind}: a handler of batches has one parameter for its jobs, besides a first "
                "`ctx: BatchContext` and resources, as in `def index(pages: list[Page])`; "
                f"this one has {', '.join(one.name for one in lists) or 'none'}"
            )
        self.parameter = lists[0].name
        self.wrapped, self._item = self._read_item(function)
        self._fields = [] if _is_free(self._item) else self._read_fields()
        self.strict = not _is_free(self._item)
        self.names = [field.name for field in self._fields]
        self._items = self._make_decoder(self._item)

    @property
    def resources(self) -> Mapping[str, str]:
        return self._resources

    def fields(self) -> list[Field]:
        return self._fields

    def encode(self, payload: Mapping[str, Any], limit: int, later: frozenset[str] = frozenset()) -> str:
        text = super().encode(payload, limit, later)
        if not later:
            self._decode(text, self._items)
        return text

    def decode(self, text: str) -> Any:
        """The payload as the declared type; fields that it does not have are refused."""
        super().decode(text)
        return self._decode(text, self._items)

    def _read_item(self, function: Callable[..., Any]) -> tuple[bool, Any]:
        """Whether the handler gets jobs or only their payloads, and the type of one payload."""
        try:
            hint = typing.get_type_hints(function, include_extras=True).get(self.parameter, list)
        except (NameError, TypeError) as error:
            raise UsageError(
                f"kind {self.kind}: a type in its signature cannot be resolved ({error}); declare it before the handler"
            ) from error
        if hint is not Any and (typing.get_origin(hint) or hint) not in _LISTS:
            raise UsageError(
                f"kind {self.kind}: {self.parameter} is {spelling(hint)}, and a handler of batches gets a list: "
                "declare it as list[…] of what one payload holds"
            )
        (item,) = typing.get_args(hint) or (_FREE,)
        wrapped = (typing.get_origin(item) or item) is BatchJob
        if wrapped:
            (item,) = typing.get_args(item) or (_FREE,)
        return wrapped, _FREE if item in (Any, object, dict) or isinstance(item, typing.TypeVar) else item

    def _read_fields(self) -> list[Field]:
        models = getattr(self._item, "model_fields", None)  # of pydantic
        if isinstance(models, Mapping):
            return [_of_model(name, model) for name, model in models.items()]
        try:
            found = inspected.type_info(self._item)
        except (TypeError, NotImplementedError) as error:
            raise self._not_a_schema(error) from error
        if not isinstance(found, _OBJECTS):
            raise UsageError(
                f"kind {self.kind}: the payload of one job is {spelling(self._item)}, and a payload is an object: "
                f"declare {self.parameter} as a list of a dataclass, msgspec.Struct, TypedDict or pydantic model"
            )
        # Without extras, because the type of a key may say that it is not required; the item's decoder checks the rest.
        hints = typing.get_type_hints(self._item)
        return [Field(one.encode_name, hints.get(one.name, Any), _default(one)) for one in found.fields]


def _of_model(name: str, model: Any) -> Field:
    required = model.is_required()
    default = inspect.Parameter.empty if required else model.get_default(call_default_factory=True)
    return Field(model.validation_alias or model.alias or name, Any, default)


def _default(field: inspected.Field) -> Any:
    if field.required:
        return inspect.Parameter.empty
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _is_free(item: Any) -> bool:
    return item is _FREE or typing.get_origin(item) in (dict, Mapping)
