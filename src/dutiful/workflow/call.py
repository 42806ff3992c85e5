"""A call of a kind that is not enqueued yet, and stand-ins for the results of other jobs in its arguments."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dutiful.core.errors import UsageError

if TYPE_CHECKING:
    from dutiful.kind import Kind
    from dutiful.options import Options
    from dutiful.workflow.graph import Node

R_co = TypeVar("R_co", covariant=True)
References = dict[str, "Result | list[Result]"]
"""The parameters that get the result of a job, or a list of results."""


class Result:
    """Stands for the result of a job, in the arguments of another one that runs after it."""

    __slots__ = ("node",)

    def __init__(self, node: "Node[Any] | None") -> None:
        self.node = node  # None: whatever comes before it in its chain

    def __repr__(self) -> str:
        return "PREVIOUS" if self.node is None else f"the result of {self.node!r}"


PREVIOUS: Any = Result(None)
"""In a chain: the result of the job before; after a group, the list of the results of its jobs."""


class Call(Generic[R_co]):
    """A job to be made: its kind, options and arguments."""

    __slots__ = ("kind", "options", "payload")

    def __init__(self, kind: "Kind[Any, R_co]", options: "Options", payload: Mapping[str, Any]) -> None:
        self.kind = kind
        self.options = options
        self.payload = payload

    def __repr__(self) -> str:
        return f"{self.kind.name}.call({', '.join(f'{name}=…' for name in self.payload)})"

    def split(self, previous: Result | list[Result] | None) -> tuple[dict[str, Any], References]:
        """The arguments that are known, and those that are results; `previous` is what PREVIOUS stands for."""
        known: dict[str, Any] = {}
        references: References = {}
        for name, value in self.payload.items():
            found = _references(value)
            if found is None:
                _refuse_nested(value, f"{self.kind.name}: {name}")
                known[name] = value
                continue
            if any(one.node is None for one in _each(found)):
                if previous is None:
                    raise UsageError(
                        f"{self.kind.name}: {name} is PREVIOUS, and nothing comes before it; use PREVIOUS in a chain, "
                        "after its first job"
                    )
                if isinstance(found, list):
                    found = [other for one in found for other in (_each(previous) if one.node is None else (one,))]
                else:
                    found = previous
            references[name] = found
        return known, references


def _references(value: Any) -> Result | list[Result] | None:
    if isinstance(value, Result):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(one, Result) for one in value):
        return list(value)
    return None


def _each(found: Result | list[Result]) -> list[Result]:
    return found if isinstance(found, list) else [found]


def nodes_in(references: References) -> Iterator["Node[Any]"]:
    for found in references.values():
        for one in _each(found):
            assert one.node is not None
            yield one.node


def each_reference(references: References, write: Callable[["Node[Any]"], Any]) -> dict[str, Any]:
    """The references with something written for each job, such as its id."""

    def written(one: Result) -> Any:
        assert one.node is not None
        return write(one.node)

    return {
        name: [written(one) for one in found] if isinstance(found, list) else written(found)
        for name, found in references.items()
    }


def _refuse_nested(value: Any, where: str) -> None:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple | set) else ()
    for one in inner:
        if isinstance(one, Result):
            raise UsageError(
                f"{where} has {one!r} among other values: give a parameter one result, or a list of results only"
            )
        _refuse_nested(one, where)
