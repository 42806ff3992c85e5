"""The payload of one job, as the list of a handler of batches declares it, and declarations that are refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest
from pydantic import BaseModel

from dutiful import BatchContext, BatchJob, Context, Dutiful, Inject, PayloadInvalid, UsageError
from dutiful.payload.batch_signature import BatchSignature

LIMIT = 10_000


@dataclass
class Line:
    article: str
    count: int = 1
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")


class Renamed(msgspec.Struct, rename="camel"):
    page_number: int


class Mail(BaseModel):
    to: str
    text: str = "hello"


class Place(TypedDict):
    street: str
    number: NotRequired[int]


def of_lines(lines: list[Line]) -> None: ...
def of_jobs(ctx: BatchContext, lines: Sequence[BatchJob[Line]], db: Any = Inject("db")) -> None: ...
def of_renamed(pages: list[Renamed]) -> None: ...
def of_mails(mails: list[Mail]) -> None: ...
def of_places(places: "list[Place]") -> None: ...
def of_anything(jobs: list[BatchJob[dict[str, int]]]) -> None: ...
def untyped(ctx, jobs) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("handler", "text", "expected"),
    [
        (of_lines, '{"article": "a"}', Line("a")),
        (of_jobs, '{"article": "a", "count": 2}', Line("a", 2)),
        (of_renamed, '{"pageNumber": 7}', Renamed(7)),
        (of_mails, '{"to": "ada"}', Mail(to="ada")),
        (of_places, '{"street": "High"}', {"street": "High"}),
        (of_anything, '{"a": 1}', {"a": 1}),
        (untyped, '{"a": "b"}', {"a": "b"}),
    ],
)
def test_a_payload_has_the_type_of_the_list(handler: Callable[..., Any], text: str, expected: Any) -> None:
    signature = BatchSignature(handler, "kind")
    assert signature.decode(text) == expected
    assert signature.encode(msgspec.json.decode(text), LIMIT)


@pytest.mark.parametrize(
    ("handler", "text", "named"),
    [
        (of_lines, "{}", "field 'article'"),
        (of_lines, '{"article": 1}', "field 'article'"),
        (of_lines, '{"article": "a", "colour": 1}', "field 'colour'"),
        (of_lines, '{"article": "a", "count": -1}', "count is negative"),
        (of_renamed, '{"page_number": 7}', "field 'page_number'"),
        (of_mails, '{"text": "t"}', "field 'to'"),
        (of_mails, '{"to": "a", "cc": "b"}', "field 'cc'"),
        (of_places, '{"number": 1}', "field 'street'"),
        (of_anything, '{"a": "b"}', "Expected `int`"),
        (untyped, "[1]", "Expected `object`"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_the_name_of_its_field(
    handler: Callable[..., Any], text: str, named: str
) -> None:
    signature = BatchSignature(handler, "kind")
    with pytest.raises(PayloadInvalid, match=named):
        signature.decode(text)


def test_the_fields_have_the_names_types_and_defaults_of_the_item() -> None:
    fields = {one.name: (one.hint, one.required, one.default) for one in BatchSignature(of_jobs, "kind").fields()}
    assert fields["count"] == (int, False, 1) and fields["tags"] == (list[str], False, [])
    assert fields["article"][:2] == (str, True)
    assert BatchSignature(of_jobs, "kind").resources == {"db": "db"}


def of_texts(texts: list[str]) -> None: ...
def of_no_list(line: Line) -> None: ...
def of_two(lines: list[Line], more: list[Line]) -> None: ...
def of_none(ctx: BatchContext) -> None: ...
def of_context(ctx: Context, lines: list[Line]) -> None: ...
def of_stars(*lines: Line) -> None: ...
def of_sets(lines: list[set[int]]) -> None: ...
def fine(lines: list[Line]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "named"),
    [
        (of_texts, {}, "the payload of one job is str.* dataclass"),
        (of_sets, {}, "a payload is an object"),
        (of_no_list, {}, "line is Line, and a handler of batches gets a list"),
        (of_two, {}, "one parameter for its jobs.*this one has lines, more"),
        (of_none, {}, "this one has none"),
        (of_context, {}, "ctx: BatchContext"),
        (of_stars, {}, "one parameter for its jobs"),
        (fine, {"batch": 0}, "batch 0 must be a whole number from 1 to 10,000"),
        (fine, {"batch": 10_001}, "batch 10001"),
        (fine, {"batch": True}, "batch True"),
        (fine, {"batch": "5"}, "batch '5'"),
        (fine, {"linger": "soon"}, "linger 'soon' is not a length of time"),
        (fine, {"linger": "2h"}, "longer than an hour"),
        (fine, {"across_tenants": "yes"}, "across_tenants 'yes' must be True or False"),
        (fine, {"batch": None, "linger": "1s"}, "linger is for batches: give .* batch=100"),
        (fine, {"batch": None, "across_tenants": True}, "across_tenants is for batches"),
        (fine, {"process": True}, "batch and process=True exclude each other.*leave one out"),
        (fine, {"on_crash": "fail"}, 'batch and on_crash="fail" exclude each other'),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_with_the_remedy(
    handler: Callable[..., Any], options: dict[str, Any], named: str
) -> None:
    app = Dutiful("sqlite:///never.db")
    with pytest.raises(UsageError, match=named):
        app.job(**{"batch": 10, **options})(handler)
    assert not app.kinds


@pytest.mark.parametrize("option", [{"batch": 5}, {"linger": "1s"}, {"across_tenants": True}])
def test_a_pipeline_has_no_batches(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"pipeline publish: batch is for @app.job"):
        Dutiful("sqlite:///never.db").pipeline("publish", **option)
