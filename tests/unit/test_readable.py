"""What Python cannot read of stored JSON is told in words, and the rest is read."""

from typing import Any

import msgspec
import pytest

from dutiful.core.errors import PayloadInvalid
from dutiful.core.readable import DEEPEST, check_whole, read, read_as, read_object, read_objects


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def long_number(value: Any) -> bool:
    return isinstance(value, str) and "a number too large" in value


def test_json_is_read_as_it_is() -> None:
    text = '{"a": [1, 2.5, null, true, "[{\\"\\\\"], "b": {"\\u00e9": -1e-7}, "n": 123456789012345678901234567890}'

    assert read(text) == msgspec.json.decode(text)
    assert (read(None), read_object(None), read_objects(None)) == (None, None, None)
    many = f"[{','.join(['{}'] * 1_000)}]"
    assert read(many) == [{}] * 1_000


@pytest.mark.parametrize("number", ["9" * 5_000, f"-{'9' * 5_000}", "1e400", f"{'9' * 400}.5"])
def test_a_number_that_is_too_large_is_told_and_the_rest_read(number: str) -> None:
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


def test_what_is_no_json_or_of_another_shape_is_told() -> None:
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
