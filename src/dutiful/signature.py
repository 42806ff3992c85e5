"""A handler's parameters read as its payload's schema."""

import copy
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dutiful.context import Context, injected
from dutiful.core.errors import PayloadInvalid, UsageError
from dutiful.core.payload import encode


class Signature:
    """A handler's parameters: its payload's schema, where the context goes, and what is injected."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self.kind = kind
        self._function = function
        self.context: str | None = None
        self.resources: dict[str, str] = {}
        self.names: list[str] = []
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._parameters = inspect.signature(function).parameters
        for index, parameter in enumerate(self._parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise UsageError(
                    f"kind {kind}: parameter {parameter.name!r} is not a named field; a payload is an object, so "
                    "declare each field by its name"
                )
            resource = injected(parameter.default)
            if resource is not None:
                self.resources[parameter.name] = resource
            elif _is_context(parameter.annotation, parameter.name):
                if index > 0:
                    raise UsageError(f"kind {kind}: the context {parameter.name!r} must be the first parameter")
                self.context = parameter.name
            else:
                self.names.append(parameter.name)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if args:
            if len(args) > len(self.names):
                raise PayloadInvalid(f"{self.kind} takes {len(self.names)} arguments, {len(args)} were given")
            for name, value in zip(self.names, args, strict=False):
                if name in kwargs:
                    raise PayloadInvalid(f"{self.kind} got two values for {name}", name)
                kwargs[name] = value
        return kwargs

    def encode(self, payload: Mapping[str, Any], limit: int) -> str:
        """Checked as the worker will check it, so that what is accepted here can be run there."""
        text = encode(payload, what="payload", limit=limit)
        self.decode(text)
        return text

    def decode(self, text: str) -> Any:
        """The payload with its declared types; PayloadInvalid names the field that does not fit."""
        decoder = self._decoder or self._build()
        try:
            return decoder.decode(text)
        except msgspec.ValidationError as error:
            raise _invalid(self.kind, str(error), self.names) from error
        except NotImplementedError as error:
            raise self._not_a_schema(error) from error

    def _build(self) -> msgspec.json.Decoder[Any]:
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError) as error:
            raise UsageError(
                f"kind {self.kind}: a type in its signature cannot be resolved ({error}); import it at module level"
            ) from error
        fields: list[Any] = []
        for name in self.names:
            default = self._parameters[name].default
            hint = Any if hints.get(name) is object else hints.get(name, Any)
            fields.append((name, hint) if default is inspect.Parameter.empty else (name, hint, _default(default)))
        try:
            struct = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            self._decoder = msgspec.json.Decoder(struct, dec_hook=_from_builtin)
        except TypeError as error:
            raise self._not_a_schema(error) from error
        return self._decoder

    def _not_a_schema(self, error: Exception) -> UsageError:
        return UsageError(
            f"kind {self.kind}: {error}; declare its fields with plain types, dataclasses, msgspec.Struct or pydantic"
        )


def _is_context(annotation: Any, name: str) -> bool:
    if annotation is inspect.Parameter.empty:
        return name == "ctx"
    return annotation is Context or (isinstance(annotation, str) and annotation.rsplit(".", 1)[-1] == "Context")


def _default(default: Any) -> Any:
    """One job's default must not be seen by the next."""
    if isinstance(default, (list, dict, set)):
        return msgspec.field(default_factory=lambda: copy.deepcopy(default))
    return default


def _from_builtin(expected: type, value: Any) -> Any:
    validate = getattr(expected, "model_validate", None)
    if validate is None:
        raise NotImplementedError(f"a payload cannot hold a {expected.__qualname__}")
    try:
        return validate(value)
    except ValueError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def _invalid(kind: str, message: str, names: list[str]) -> PayloadInvalid:
    reason, _, path = message.partition(" - at `$")
    field = path.rstrip("`").lstrip(".") or None
    for quoted in reason.split("`")[1::2]:
        if field is None and ("missing" in reason or "unknown" in reason):
            field = quoted
    where = f"field {field!r}" if field else "payload"
    fields = ", ".join(names) or "none"
    return PayloadInvalid(f"{kind}: {where}: {reason}; its fields are: {fields}", field)
