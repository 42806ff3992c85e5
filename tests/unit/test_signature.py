from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

import dutiful
from dutiful import Context, Dutiful, Inject, PayloadInvalid, Pipeline, Retry, UsageError
from dutiful.options import Options
from dutiful.payload.signature import Signature

LIMIT = 100_000


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    count: int = 1


class Order(msgspec.Struct):
    lines: list[Line]


class Address(BaseModel):
    street: str
    number: int


def everything(
    text: str,
    number: int,
    share: float,
    money: Decimal,
    when: datetime,
    span: timedelta,
    who: UUID,
    raw: bytes,
    colour: Colour,
    choice: Literal["a", "b"],
    order: Order,
    address: Address,
    tags: set[str],
    pair: tuple[int, str],
    maybe: int | None,
    anything: Any,
    some: object,
) -> None: ...


VALUES: dict[str, Any] = {
    "text": "ä",
    "number": -5,
    "share": 0.25,
    "money": Decimal("12.50"),
    "when": datetime(2030, 1, 1, tzinfo=UTC),
    "span": timedelta(minutes=90),
    "who": UUID(int=7),
    "raw": b"\0\xff",
    "colour": Colour.RED,
    "choice": "b",
    "order": Order([Line("tea", 2), Line("milk")]),
    "address": Address(street="Main", number=1),
    "tags": {"x", "y"},
    "pair": (1, "one"),
    "maybe": None,
    "anything": {"deep": [1, None]},
    "some": [1],
}


def round_trip(function: Callable[..., Any], payload: dict[str, Any]) -> dict[str, Any]:
    signature = Signature(function, "kind")
    decoded: dict[str, Any] = msgspec.structs.asdict(signature.decode(signature.encode(payload, LIMIT)))
    return decoded


def test_typed_values_arrive_with_their_types() -> None:
    assert round_trip(everything, VALUES) == VALUES


@pytest.mark.parametrize(
    ("field", "wrong", "path"),
    [
        ("number", "5", "number"),
        ("when", "yesterday", "when"),
        ("who", "not-a-uuid", "who"),
        ("colour", "blue", "colour"),
        ("choice", "c", "choice"),
        ("order", {"lines": [{"article": "tea"}, {"article": 5}]}, "order.lines[1].article"),
        ("address", {"street": "Main"}, "address"),
        ("pair", [1], "pair"),
        ("maybe", "x", "maybe"),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_path_of_its_field(field: str, wrong: Any, path: str) -> None:
    with pytest.raises(PayloadInvalid, match=r"^kind: field ") as refused:
        round_trip(everything, {**VALUES, field: wrong})
    assert refused.value.field == path


def test_constraints_are_checked() -> None:
    def limited(n: Annotated[int, msgspec.Meta(ge=1, le=5)]) -> None: ...

    assert round_trip(limited, {"n": 5}) == {"n": 5}
    with pytest.raises(PayloadInvalid, match="<= 5"):
        round_trip(limited, {"n": 6})


def test_defaults_fill_in_and_are_not_shared() -> None:
    def defaults(n: int, tags: list[str] = [], where: dict[str, int] = {}) -> None: ...  # noqa: B006

    first, second = round_trip(defaults, {"n": 1}), round_trip(defaults, {"n": 1})
    first["tags"].append("mine")
    assert second == {"n": 1, "tags": [], "where": {}}


def test_missing_and_unknown_fields_are_named_with_those_that_there_are() -> None:
    def send(to: str, template: str = "") -> None: ...

    with pytest.raises(PayloadInvalid, match=r"field 'to': .*its fields are: to, template") as missing:
        round_trip(send, {})
    with pytest.raises(PayloadInvalid, match="field 'too'") as unknown:
        round_trip(send, {"to": "ada", "too": 1})
    assert (missing.value.field, unknown.value.field) == ("to", "too")


def test_arguments_are_bound_by_position_and_name() -> None:
    def send(ctx: Context, to: str, copies: int = 1, db: Any = Inject("db")) -> None: ...

    signature = Signature(send, "send")
    assert signature.bind(("ada",), {"copies": 2}) == {"to": "ada", "copies": 2}
    assert (signature.context, signature.resources, signature.names) == ("ctx", {"db": "db"}, ["to", "copies"])
    with pytest.raises(PayloadInvalid, match="takes 2 arguments, 3 were given"):
        signature.bind(("ada", 1, "db"), {})
    with pytest.raises(PayloadInvalid, match="two values for to"):
        signature.bind(("ada",), {"to": "bob"})


def test_the_context_is_known_by_its_type_or_its_name_and_comes_first() -> None:
    def by_type(job: Context, n: int) -> None: ...
    def by_path(job: dutiful.Context, n: int) -> None: ...
    def by_name(ctx, n):  # type: ignore[no-untyped-def]
        ...

    def without(n: int) -> None: ...
    def late(n: int, ctx: Context) -> None: ...

    assert [Signature(f, "k").context for f in (by_type, by_path, by_name, without)] == ["job", "job", "ctx", None]
    with pytest.raises(UsageError, match="'ctx' must be the first parameter"):
        Signature(late, "k")


def test_types_that_no_payload_can_have_are_refused_in_words() -> None:
    class Connection:
        pass

    def custom(x: Any) -> None: ...
    def two(x: Any) -> None: ...
    def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    # Local classes, which the postponed annotations of this module could not find.
    custom.__annotations__["x"] = Connection
    two.__annotations__["x"] = set[int] | list[int]
    with pytest.raises(UsageError, match=r"cannot hold a .*Connection; declare its fields with plain types"):
        round_trip(custom, {"x": {}})
    with pytest.raises(UsageError, match=r"kind kind: Type unions .*declare its fields"):
        round_trip(two, {"x": []})
    with pytest.raises(UsageError, match=r"'Nowhere' is not defined.*import it at module level"):
        round_trip(unknown, {"x": 1})


# --- pipelines


def pipeline(**options: Any) -> tuple[Dutiful, Pipeline]:
    app = Dutiful()
    return app, app.pipeline("publish", **options)


def test_the_payload_of_a_pipeline_is_what_its_phases_ask_for() -> None:
    _, publish = pipeline()

    @publish.phase
    async def inventory(ctx: Context, build: int, note: str = "none") -> None: ...

    @publish.phase
    def editions(build: int, inventory: list[str], note: str, when: datetime, db: Any = Inject("db")) -> None: ...

    assert publish.signature.names == ["build", "note", "when"]
    assert list(publish.signature.resources.values()) == ["db"]
    text = publish.signature.encode({"build": 7, "note": "x", "when": datetime(2030, 1, 1, tzinfo=UTC)}, LIMIT)
    assert publish.phases[1].signature.decode(text).when == datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(PayloadInvalid, match="note"):  # required by one of them
        publish.signature.encode({"build": 7, "when": datetime(2030, 1, 1, tzinfo=UTC)}, LIMIT)
    with pytest.raises(PayloadInvalid, match="inventory"):  # that comes from the phase
        publish.signature.encode({"build": 7, "note": "", "when": "2030-01-01T00:00:00Z", "inventory": []}, LIMIT)


def test_each_phase_has_its_own_default() -> None:
    _, publish = pipeline()

    @publish.phase
    async def one(size: int = 1) -> None: ...

    @publish.phase
    async def two(size: int = 2) -> None: ...

    text = publish.signature.encode({}, LIMIT)
    assert [phase.signature.decode(text).size for phase in publish.phases] == [1, 2]


def test_one_field_of_two_types_is_refused_with_both_phases() -> None:
    _, publish = pipeline()

    @publish.phase
    async def inventory(build: int) -> None: ...

    @publish.phase
    async def editions(build: list[str]) -> None: ...

    with pytest.raises(UsageError, match=r"'build' is int in phase inventory but list\[str\] in phase editions"):
        publish.signature.encode({"build": 7}, LIMIT)


def test_a_result_is_given_as_the_phase_declares_it() -> None:
    _, publish = pipeline()

    @publish.phase
    async def order() -> None: ...

    @publish.phase
    async def ship(order: Order, extra: int = 1) -> None: ...

    signature = publish.phases[1].signature
    assert signature.result("order", '{"lines": [{"article": "pen"}]}') == Order([Line("pen")])
    assert signature.result("order", None) is None
    with pytest.raises(PayloadInvalid, match=r"publish\.ship: the result of phase 'order' is not what it declares"):
        signature.result("order", "[]")


def test_a_skipped_phase_leaves_its_reader_the_default() -> None:
    _, publish = pipeline()

    @publish.phase
    async def first() -> None: ...

    @publish.phase
    async def second(first: list[int] = []) -> None: ...  # noqa: B006

    signature = publish.phases[1].signature
    signature.result("first", None).append(1)
    assert signature.result("first", None) == []


def test_phases_stay_plain_functions() -> None:
    _, publish = pipeline()

    @publish.phase(name="double")
    def twice(n: int) -> int:
        return 2 * n

    assert twice(4) == 8
    assert [phase.name for phase in publish.phases] == ["double"]
    with pytest.raises(UsageError, match="enqueue it, or call one of its phases"):
        publish(4)


def test_what_a_pipeline_cannot_be_is_said_at_once() -> None:
    app, publish = pipeline(on_retry="restart")

    async def step() -> None: ...

    with pytest.raises(UsageError, match=r"no phases yet; give it some with @publish\.phase"):
        publish.prepare(Options(), {})
    with pytest.raises(UsageError, match='a retry of its own needs on_retry="resume"'):
        publish.phase(retry=Retry())(step)
    with pytest.raises(UsageError, match="when must be a plain function"):
        publish.phase(when=step)(step)  # type: ignore[arg-type]
    publish.phase(step)
    with pytest.raises(UsageError, match="phase step: there is one of that name already"):
        publish.phase(step)
    with pytest.raises(UsageError, match="'publish' already"):
        app.pipeline("publish")
    with pytest.raises(UsageError, match="on_retry 'never'"):
        app.pipeline("other", on_retry="never")  # type: ignore[arg-type]
    publish.prepare(Options(), {})
    with pytest.raises(UsageError, match="in use already; declare all phases before the first enqueue"):
        publish.phase(name="late")(step)


def test_a_pipelines_jobs_say_what_their_phases_are() -> None:
    _, publish = pipeline()

    async def step() -> None: ...

    for name in ("download", "upload"):
        publish.phase(name=name)(step)
    job = publish.prepare(Options(), {})
    assert msgspec.json.decode(job.options or "") == {"phases": ["download", "upload"]}
