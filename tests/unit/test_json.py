import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dutiful.core.errors import PayloadInvalid
from dutiful.core.json import (
    DEEPEST,
    check_name,
    check_whole,
    clean,
    decoded,
    encode,
    path_of,
    read,
    read_as,
    read_object,
    read_objects,
)
from dutiful.core.retry.error_info import describe

LIMIT = 1_000


def text_of(value: Any) -> str:
    return encode(value, what="payload", limit=LIMIT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON)
def test_plain_data_comes_back_as_it_went(value: Any) -> None:
    assert json.loads(encode(value, what="payload", limit=1_000_000)) == value


@given(JSON, st.sampled_from(["a\0", "\ud800", math.nan, math.inf, -math.inf]), st.booleans())
def test_what_no_database_holds_is_found_however_deep(value: Any, bad: Any, as_key: bool) -> None:
    planted = {"x": [value, {bad: 1} if as_key and isinstance(bad, str) else {"y": bad}]}
    with pytest.raises(PayloadInvalid):
        encode(planted, what="payload", limit=1_000_000)


def test_what_only_looks_like_a_nul_is_fine() -> None:
    assert json.loads(text_of({"path": "C:\\u0000", "none": None, "text": "null"})) == {
        "path": "C:\\u0000",
        "none": None,
        "text": "null",
    }


def test_the_culprit_has_a_path() -> None:
    with pytest.raises(PayloadInvalid, match=r"payload\.a\[1\]\.b has a NUL") as refused:
        text_of({"a": [0, {"b": "\0"}]})
    assert refused.value.field == "payload.a[1].b"


def test_the_limit_is_on_bytes_and_not_on_characters() -> None:
    assert len(text_of("x" * (LIMIT - 2))) == LIMIT
    with pytest.raises(PayloadInvalid, match=r"1,001 bytes, more than the limit of 1,000"):
        text_of("x" * (LIMIT - 1))
    with pytest.raises(PayloadInvalid, match="bytes"):
        text_of("ä" * 600)


class Address(BaseModel):
    street: str


class Order(msgspec.Struct):
    number: int


def test_models_and_structs_are_written_as_their_data() -> None:
    assert json.loads(text_of({"a": Address(street="Main"), "o": Order(5)})) == {
        "a": {"street": "Main"},
        "o": {"number": 5},
    }
    with pytest.raises(PayloadInvalid, match="NUL"):
        text_of([Address(street="\0")])


@pytest.mark.parametrize("value", [object(), {1, object()}, lambda: 1, type, [10**5_000], {object(): 1}])
def test_what_is_not_data_is_refused(value: Any) -> None:
    with pytest.raises(PayloadInvalid, match="the payload cannot be written as JSON"):
        text_of(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(PayloadInvalid, match="contains itself"):
        text_of(itself)


@given(st.text(), st.integers(0, 50))
def test_cleaned_text_can_always_be_stored(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    assert "\0" not in cleaned and cleaned.encode().decode() == cleaned
    if len(text) <= limit:
        assert len(cleaned) == len(text)
    else:
        assert f"({len(text):,} characters in all)" in cleaned


@pytest.mark.parametrize("name", ["a", "send_email", "Größe", "x" * 200, "with space inside"])
def test_a_good_name_is_taken_as_it_is(name: str) -> None:
    assert check_name(name, "queue") == name


@pytest.mark.parametrize("name", ["", " a", "a ", "x" * 201, "a\0", "a\udc00", None, 5, b"a"])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(PayloadInvalid, match=r"^queue "):
        check_name(name, "queue")


# --- errors as data


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_is_described_by_type_message_and_traceback() -> None:
    try:
        raise LookupError("no such order" * 1_000)
    except LookupError as error:
        described = describe(error, message_limit=500)
    assert described["type"] == "LookupError" and described["message"].startswith("no such order")
    assert len(described["message"]) < 550 and "13,000 characters" in described["message"]
    assert "test_json.py" in described["traceback"]


@pytest.mark.parametrize("error", [Unspeakable(), ValueError("\0\ud800"), RecursionError("x" * 10**6), KeyError()])
def test_any_error_can_be_stored(error: Exception) -> None:
    described = describe(error)
    assert json.loads(encode(described, what="error", limit=100_000)) == described


def test_what_is_nested_so_deeply_that_it_could_not_be_shown_is_refused() -> None:
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    encode(deep[0], what="payload", limit=10_000)
    with pytest.raises(PayloadInvalid, match="nested deeper than 200 levels"):
        encode(deep, what="payload", limit=10_000)


# --- reading what Python cannot read whole


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def long_number(value: Any) -> bool:
    return isinstance(value, str) and "a number too large" in value


@pytest.mark.parametrize("inner", [[], {}, {"a": "[[["}, [1, "}"]], ids=repr)
def test_containers_beside_each_other_are_not_nested(inner: Any) -> None:
    value = [inner] * (DEEPEST + 1)
    text = encode(value, what="payload", limit=10_000)
    assert read(text) == value


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["lists", "objects"])
def test_each_level_counts_once_however_many_others_there_are(wrap: Callable[[Any], Any]) -> None:
    deep: Any = [[]] * DEEPEST  # two levels
    for _ in range(DEEPEST - 2):
        deep = wrap(deep)
    text = encode(deep, what="payload", limit=10_000)
    assert read(text) == deep
    with pytest.raises(PayloadInvalid, match=f"deeper than {DEEPEST} levels"):
        encode(wrap(deep), what="payload", limit=10_000)


@pytest.mark.parametrize("sibling", [[], {}], ids=repr)
def test_siblings_do_not_hide_what_is_nested_too_deeply(sibling: Any) -> None:
    deep: Any = sibling
    for _ in range(DEEPEST - 1):
        deep = [deep]
    with pytest.raises(PayloadInvalid, match=f"deeper than {DEEPEST} levels"):
        encode([*[sibling] * 50, deep], what="payload", limit=10_000)


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\u202eb", "a\u2028b", "a\x7fb"])
def test_a_name_with_an_invisible_character_is_refused(name: str) -> None:
    with pytest.raises(PayloadInvalid, match=r"kind .* has an invisible character in it") as refused:
        check_name(name, "kind")
    assert refused.value.field == "kind"


def test_a_path_of_more_than_30_steps_is_shown_by_its_ends() -> None:
    def path(steps: int) -> str:
        location: Any = None
        for step in range(steps):
            location = (location, step)
        return path_of(location, "data")

    assert path(30) == "data" + "".join(f"[{step}]" for step in range(30))
    ends = ["".join(f"[{step}]" for step in some) for some in (range(10), range(21, 31))]
    assert path(31) == f"data{ends[0]}.…{ends[1]}"


def test_json_is_read_as_it_is() -> None:
    text = '{"a": [1, 2.5, null, true, "[{\\"\\\\"], "b": {"\\u00e9": -1e-7}, "n": 123456789012345678901234567890}'

    assert read(text) == msgspec.json.decode(text)
    assert (read(None), read_object(None), read_objects(None)) == (None, None, None)
    many = f"[{','.join(['{}'] * 1_000)}]"
    assert read(many) == [{}] * 1_000


@pytest.mark.parametrize("number", ["9" * 5_000, f"-{'9' * 5_000}", "1e400", f"{'9' * 400}.5"])
def test_a_number_that_is_too_large_is_reported_and_the_rest_read(number: str) -> None:
    found = read(f'{{"n": {number}, "in": [{{"n": {number}, "to": "9\\"{number}"}}], "m": 7}}')

    assert long_number(found["n"]) and long_number(found["in"][0]["n"])
    assert (found["m"], found["in"][0]["to"]) == (7, f'9"{number}')


@pytest.mark.parametrize("depth", [DEEPEST, 990, 3_000, 100_000])
def test_what_is_nested_too_deeply_is_cut_off_and_can_be_written_again(depth: int) -> None:
    found = read(f'{{"a": {nested(depth)}, "b": "]]}}", "c": [{nested(5)}]}}')

    assert (found["b"], found["c"]) == ("]]}", [[[[[[]]]]]])
    level = 0
    while isinstance(found, dict | list):
        found, level = found["a"] if isinstance(found, dict) else found[0], level + 1
    assert "nested too deeply" in found
    assert level == DEEPEST


def test_what_is_no_json_or_of_another_shape_is_reported() -> None:
    assert "not the JSON" in str(read('{"a": '))
    assert "not the JSON" in str(read_object("[1]"))
    assert read_objects('["x"]') == read_objects("7") == [{"type": "Unreadable", "message": read("{")["unreadable"]}]
    assert read_objects('[{"type": "ValueError"}]') == [{"type": "ValueError"}]


def test_what_has_a_type_is_read_with_words_in_it() -> None:
    class Row(msgspec.Struct):
        id: int
        payload: Any

    row = read_as(msgspec.json.Decoder(Row), f'{{"id": 1, "payload": {{"n": {"9" * 5_000}}}}}')

    assert row.id == 1
    assert long_number(row.payload["n"])


def test_what_could_not_be_read_is_not_written_again() -> None:
    assert check_whole('{"n": 1}', "job") == '{"n": 1}'
    with pytest.raises(PayloadInvalid, match="cannot be read"):
        check_whole(msgspec.json.encode(read(f'{{"n": {"9" * 5_000}}}')).decode(), "job")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('{"a": "é"}'.encode(), '{"a": "é"}'),
        (b"", ""),
        (b'{"a": "\xff"}', '{"unreadable":'),
        (b'["\xff"]', '[{"unreadable":'),
        (b"a\xffb", "a\ufffdb"),
    ],
)
def test_stored_text_that_is_not_utf8_is_replaced_and_json_as_a_whole(raw: bytes, text: str) -> None:
    assert decoded(raw).startswith(text)
    if "unreadable" in text:
        assert json.loads(decoded(raw))
    else:
        assert decoded(raw) == text


def test_a_number_at_the_deepest_level_is_replaced_if_it_is_too_large() -> None:
    nested = "[" * DEEPEST + "1e999" + "]" * DEEPEST
    value = read(nested)
    for _ in range(DEEPEST):
        (value,) = value
    assert isinstance(value, str)
