"""Whether the result of one job can be an argument of another, as far as their types say before either has run."""

import types
import typing
from typing import Any, Union, get_args, get_origin

import msgspec.inspect as inspected

JSON = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
"""The sorts of JSON values; a float is read from an integer too."""
_SORTS: dict[type, frozenset[str]] = {
    inspected.NoneType: frozenset({"null"}),
    inspected.BoolType: frozenset({"boolean"}),
    inspected.IntType: frozenset({"integer"}),
    inspected.FloatType: frozenset({"integer", "number"}),
    **dict.fromkeys(
        (
            inspected.StrType, inspected.BytesType, inspected.DateType, inspected.DateTimeType, inspected.TimeType,
            inspected.UUIDType, inspected.DecimalType, inspected.TimeDeltaType,
        ),
        frozenset({"string"}),
    ),
    **dict.fromkeys(
        (
            inspected.ListType, inspected.SetType, inspected.FrozenSetType, inspected.TupleType, inspected.VarTupleType,
            inspected.NamedTupleType,
        ),
        frozenset({"array"}),
    ),
    **dict.fromkeys(
        (inspected.DictType, inspected.StructType, inspected.TypedDictType, inspected.DataclassType),
        frozenset({"object"}),
    ),
}  # fmt: skip


def fits(returned: Any, expected: Any) -> bool:
    """Whether some value of one type is one of the other, when both are written as JSON."""
    if not sorts(returned) & sorts(expected):
        return False
    inner, wanted = _item(returned), _item(expected)
    return inner is None or wanted is None or fits(inner, wanted)


def fits_all(returned: list[Any], expected: Any) -> bool:
    """Whether a list of such values may be one of the expected type."""
    if "array" not in sorts(expected):
        return False
    wanted = _item(expected)
    return wanted is None or all(fits(one, wanted) for one in returned)


def accepts_none(expected: Any) -> bool:
    return "null" in sorts(expected)


def sorts(hint: Any) -> frozenset[str]:
    """The sorts of JSON that values of a type are written as; all of them, if that cannot be said."""
    if hint is Any or hint is object:
        return JSON
    if get_origin(hint) in (Union, types.UnionType):
        return frozenset().union(*(sorts(one) for one in get_args(hint)))
    try:
        found = inspected.type_info(hint)
    except (TypeError, NotImplementedError):
        return JSON
    return _SORTS.get(type(found), JSON)


def returned_by(function: Any) -> Any:
    """What a handler says that it returns; Any if it says nothing."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any


def _item(hint: Any) -> Any:
    """The type of a list's items; None if there is none to be seen."""
    arguments = get_args(hint)
    return arguments[0] if get_origin(hint) in (list, set, frozenset) and arguments else None
