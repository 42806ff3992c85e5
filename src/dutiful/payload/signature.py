"""Reads a handler's parameters as the schema of its payload."""

import copy
import functools
import inspect
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dutiful.context import Context, injected
from dutiful.core.errors import FieldError, PayloadInvalid, UsageError
from dutiful.core.json import encode
from dutiful.core.redaction.redact import safe_name, safe_reason
from dutiful.options import Options


class Field(NamedTuple):
    """One field of a payload; `default` is Parameter.empty if it is required."""

    name: str
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Schema(ABC):
    """The fields of a payload and their types."""

    context: str | None = None  # the parameter that gets the context
    strict = True  # whether undeclared fields are refused

    def __init__(self, kind: str, names: list[str]) -> None:
        self.kind = kind
        self.names = names
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._partial: dict[frozenset[str], msgspec.json.Decoder[Any]] = {}

    @property
    @abstractmethod
    def resources(self) -> Mapping[str, str]:
        """The name of the shared resource for each parameter that asks for one."""

    @abstractmethod
    def fields(self) -> list[Field]:
        """The fields with resolved types; that is only possible after all modules are imported."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if args:
            if len(args) > len(self.names):
                raise PayloadInvalid(f"{self.kind} takes {len(self.names)} arguments, {len(args)} were given")
            for name, value in zip(self.names, args, strict=False):
                if name in kwargs:
                    raise PayloadInvalid(f"{self.kind} got two values for {name}", name)
                kwargs[name] = value
        return kwargs

    def encode(self, payload: Mapping[str, Any], limit: int, later: frozenset[str] = frozenset()) -> str:
        """Checks and encodes a payload as the worker will check it, so that an accepted payload can run.

        `later`: fields that are not there yet.
        """
        text = encode(payload, what="payload", limit=limit)
        self._decode(text, self._without(later) if later else self._decoder or self._build())
        return text

    def decode(self, text: str) -> Any:
        """The payload with its declared types; PayloadInvalid names the wrong field."""
        return self._decode(text, self._decoder or self._build())

    def _without(self, later: frozenset[str]) -> msgspec.json.Decoder[Any]:
        if later not in self._partial:
            self._partial[later] = self._decoder_of([field for field in self.fields() if field.name not in later])
        return self._partial[later]

    def _decode(self, text: str, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            return decoder.decode(text)
        except msgspec.DecodeError as error:
            raise _invalid(self.kind, str(error), self.names) from error
        except NotImplementedError as error:
            raise self._not_a_schema(error) from error

    def _build(self) -> msgspec.json.Decoder[Any]:
        self._decoder = self._decoder_of(self.fields())
        return self._decoder

    def _decoder_of(self, given: Sequence[Field]) -> msgspec.json.Decoder[Any]:
        fields: list[Any] = []
        for field in given:
            hint = Any if field.hint is object else field.hint
            fields.append((field.name, hint) if field.required else (field.name, hint, _default(field.default)))
        try:
            struct = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=self.strict)
        except TypeError as error:
            raise self._not_a_schema(error) from error
        return self._make_decoder(struct)

    def _make_decoder(self, hint: Any) -> msgspec.json.Decoder[Any]:
        try:
            return msgspec.json.Decoder(Any if hint is object else hint, dec_hook=_from_builtin)
        except TypeError as error:
            raise self._not_a_schema(error) from error

    def _not_a_schema(self, error: Exception) -> UsageError:
        return UsageError(
            f"kind {self.kind}: {error}; declare its fields with plain types, dataclasses, msgspec.Struct or pydantic"
        )


class Signature(Schema):
    """A handler's parameters: its payload's schema, where the context goes, and what is injected."""

    def __init__(self, function: Callable[..., Any], kind: str, earlier: Collection[str] | None = None) -> None:
        """`earlier`: for a phase of a pipeline, the phases whose results it may ask for."""
        super().__init__(kind, [])
        self.strict = earlier is None  # a phase gets the whole pipeline's payload
        self.results: list[str] = []  # the parameters that get an earlier phase's result
        self._function = function
        self._resources: dict[str, str] = {}
        self._readers: dict[str, msgspec.json.Decoder[Any]] = {}
        self._parameters = inspect.signature(function).parameters
        for index, parameter in enumerate(self._parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise UsageError(
                    f"kind {kind}: parameter {parameter.name!r} is not a named field; a payload is an object, so "
                    "declare each field by its name"
                )
            resource = injected(parameter.default)
            if resource is not None:
                self._resources[parameter.name] = resource
            elif is_context(parameter, Context):
                if index > 0:
                    raise UsageError(f"kind {kind}: the context {parameter.name!r} must be the first parameter")
                self.context = parameter.name
            elif parameter.name in (earlier or ()):
                self.results.append(parameter.name)
            else:
                self.names.append(parameter.name)

    @property
    def resources(self) -> Mapping[str, str]:
        return self._resources

    def fields(self) -> list[Field]:
        hints = self._hints()
        return [Field(name, hints.get(name, Any), self._parameters[name].default) for name in self.names]

    def result(self, name: str, text: str | None) -> Any:
        """An earlier phase's result with the declared type; without a result the default, or None."""
        if text is None:
            default = self._parameters[name].default
            return None if default is inspect.Parameter.empty else copy.deepcopy(default)
        try:
            if name not in self._readers:
                self._readers[name] = self._make_decoder(self._hints().get(name, Any))
            return self._readers[name].decode(text)
        except msgspec.ValidationError as error:
            raise PayloadInvalid(
                f"{self.kind}: the result of phase {name!r} is not what it declares: {error}"
            ) from error
        except NotImplementedError as error:
            raise self._not_a_schema(error) from error

    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError) as error:
            raise UsageError(
                f"kind {self.kind}: a type in its signature cannot be resolved ({error}); import it at module level"
            ) from error


class JointSignature(Schema):
    """The payload of a pipeline: all fields of its phases."""

    def __init__(self, kind: str, phases: Sequence[tuple[str, Signature]] = ()) -> None:
        super().__init__(kind, list(dict.fromkeys(name for _, signature in phases for name in signature.names)))
        self.used = False  # once jobs use it, no phase may be added
        self._phases = phases

    @property
    def resources(self) -> Mapping[str, str]:
        self._use()
        return {f"{phase}.{name}": r for phase, signature in self._phases for name, r in signature.resources.items()}

    def fields(self) -> list[Field]:
        self._use()
        found: dict[str, tuple[str, Field]] = {}
        for phase, signature in self._phases:
            for field in signature.fields():
                first, known = found.setdefault(field.name, (phase, field))
                if known.hint != field.hint:
                    raise UsageError(
                        f"pipeline {self.kind}: {field.name!r} is {spelling(known.hint)} in phase {first} but "
                        f"{spelling(field.hint)} in phase {phase}; a payload has it once, so declare one type"
                    )
                if field.required:
                    found[field.name] = (first, field)
        return [field for _, field in found.values()]

    def _use(self) -> None:
        if not self._phases:
            raise UsageError(f"pipeline {self.kind} has no phases yet; give it some with @{self.kind}.phase")
        self.used = True


def check_function(function: Any, name: str | None = None) -> str:
    """The name of a function that becomes a job or a phase, unless it is given one."""
    if isinstance(function, functools.partial):
        raise UsageError(f"{function!r:.80} has no name and no types of its own: write a def that calls it")
    if not callable(function) or isinstance(function, type) or not hasattr(function, "__name__"):
        raise UsageError(f"{function!r:.80} is not a function: put the decorator above a def")
    if name is None and function.__name__ == "<lambda>":
        raise UsageError("a lambda has no name: write a def, or give it one, as in name=…")
    return name or str(function.__name__)


def convert(value: Any, hint: Any, what: str) -> Any:
    """JSON data with a declared type; as it is, if the type is none that data can have."""
    try:
        return msgspec.convert(value, Any if hint is object else hint, dec_hook=_from_builtin, str_keys=True)
    except (NotImplementedError, TypeError):
        return value
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} does not fit the type that is declared for it: {safe_reason(str(error))}") from error


def is_context(parameter: inspect.Parameter, context: type) -> bool:
    """Whether a parameter is for a context of this type, which its annotation may name as text."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return parameter.name == "ctx"
    return annotation is context or (isinstance(annotation, str) and annotation.rsplit(".", 1)[-1] == context.__name__)


def spelling(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _default(default: Any) -> Any:
    """The default value: a new copy for each job, because a handler may change it."""
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
        raise ValueError(_pydantic_reason(error)) from None


def _pydantic_reason(error: ValueError) -> str:
    """The problem and its location, without the values, which pydantic's own text repeats."""
    details = getattr(error, "errors", None)
    if details is None:
        return type(error).__qualname__
    found = details(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:10])


def _invalid(kind: str, message: str, names: list[str]) -> PayloadInvalid:
    reason, _, path = message.rpartition(" - at `$") if " - at `$" in message else (message, "", "")
    field = path.rstrip("`").lstrip(".") or None
    absent = _ABSENT.search(reason)
    if field is None and absent is not None:
        field = safe_name(absent[1])
    reason = safe_reason(reason)
    where = f"field {field!r}" if field else "payload"
    fields = ", ".join(names) or "none"
    error = FieldError(field or "payload", f"does not fit: {reason}")
    option = f"; the option is given by .options({field}=…)" if absent and field in Options.__slots__ else ""
    return PayloadInvalid(f"{kind}: {where}: {reason}; its fields are: {fields}{option}", field, [error])


_ABSENT = re.compile(r"(?:missing required|unknown) field `(.*)`", re.DOTALL)
