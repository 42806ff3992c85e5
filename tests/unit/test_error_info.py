import re
import subprocess
import sys
from pathlib import Path

import pytest

from dutiful import ErrorClass
from dutiful.core.retry.error_info import (
    FINGERPRINTED,
    class_of,
    describe,
    fingerprint,
    gist,
    make_error,
    storable,
    type_of,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 4242 not found"),
        ("took 1,234.5 ms", "took 7 ms"),
        ("no row 'bob' in \"people\"", "no row 'O-17 x' in \"orders\""),
        ("cannot read /srv/a/b.csv: gone", "cannot read /tmp/cd.csv: gone"),
        ("cannot read C:\\data\\a.csv", "cannot read C:\\other.csv"),
        ("mail to ann@example.org bounced", "mail to bob@example.net bounced"),
        ("GET https://a.example/x?y=1 failed", "GET https://b.example/ failed"),
        ("job 0193a5c2-7d6e-7c3a-9f00-1c2d3e4f5a6b lost", "job 0193ffff-0000-7000-8000-000000000000 lost"),
        ("object at 0x7f3a2c", "object at 0x55ee"),
        ("commit deadbeefcafe is bad", "commit 0123456789ab is bad"),
        ("missing ids [1, 2, 3]", "missing ids [4]"),
        ("at 2026-11-16T02:28:06Z it was shut", "at 2027-01-01T00:00:00+01:00 it was shut"),
        ("id=5; gone", "id=77; gone"),
        (
            "key eyJhbGciOiJIUzIINiIsInRcCIkpXVCJxxxxxxxxxxxxxxxxx refused",
            "key abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV refused",
        ),
    ],
)
def test_errors_that_differ_in_what_they_met_are_alike(one: str, other: str) -> None:
    assert gist(one) == gist(other)
    assert fingerprint("E", one) == fingerprint("E", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 17 not paid"),
        ("can't open it, won't try", "can't open it, don't try"),
        ("", "no"),
    ],
)
def test_errors_that_say_something_else_are_not_alike(one: str, other: str) -> None:
    assert fingerprint("E", one) != fingerprint("E", other)


def test_type_and_place_part_errors_with_the_same_words() -> None:
    assert len({fingerprint(*parts) for parts in [("A", "x"), ("B", "x"), ("A", "x", "jobs.py:f")]}) == 3


def test_only_the_beginning_of_a_message_counts() -> None:
    assert fingerprint("E", "a " * FINGERPRINTED) == fingerprint("E", "a " * FINGERPRINTED + "b")


def raised(error: BaseException) -> dict[str, str]:
    try:
        raise error
    except BaseException as error:
        return describe(error)


def elsewhere(error: BaseException) -> dict[str, str]:
    try:
        [reraise(each) for each in [error]]
    except BaseException as error:
        return describe(error)
    raise AssertionError


def reraise(error: BaseException) -> int:
    raise error


def test_the_function_that_failed_takes_part_and_its_line_does_not() -> None:
    first, again = raised(ValueError("order 1")), raised(ValueError("order 2"))
    assert first["fingerprint"] == again["fingerprint"]
    assert first["fingerprint"] == fingerprint("ValueError", "order #", "test_error_info.py:raised")
    assert elsewhere(ValueError("order 3"))["fingerprint"] == fingerprint(
        "ValueError", "order #", "test_error_info.py:reraise"
    )


def test_a_failure_inside_a_library_is_found_at_the_function_that_called_it() -> None:
    try:
        re.compile("(")
    except re.error as error:
        described = describe(error)
    here = "test_error_info.py:test_a_failure_inside_a_library_is_found_at_the_function_that_called_it"
    assert described["fingerprint"] == fingerprint(described["type"], described["message"], here)


def test_a_group_differs_from_another_by_what_is_in_it() -> None:
    one, other = ExceptionGroup("x", [ValueError("1")]), ExceptionGroup("x", [KeyError("1")])
    assert describe(one)["fingerprint"] != describe(other)["fingerprint"]
    assert describe(one)["fingerprint"] == describe(ExceptionGroup("x", [ValueError("2")]))["fingerprint"]


def test_another_process_gives_the_same_fingerprint(tmp_path: Path) -> None:
    script = tmp_path / "elsewhere" / "jobs.py"
    script.parent.mkdir()
    script.write_text(
        "\n\nfrom dutiful.core.retry.error_info import describe\n"
        "def work(n):\n    return [int(text) for text in [f'x{n}']]\n"
        "try:\n    work(5)\nexcept ValueError as error:\n    print(describe(error)['fingerprint'])\n"
    )
    ran = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=30)
    message = "invalid literal for int() with base 10: 'y'"
    assert ran.stdout.strip() == fingerprint("ValueError", message, "jobs.py:work")


# --- errors as they are stored


@pytest.mark.req("W29")
def test_an_error_carries_its_class() -> None:
    assert describe(TimeoutError())["class"] == "transient"
    assert describe(TimeoutError(), error_class=ErrorClass.NON_RETRYABLE)["class"] == "non_retryable"
    assert class_of(describe(ValueError())) is ErrorClass.RETRYABLE
    assert class_of({"type": "Old"}) is class_of({"class": "of a later release"}) is class_of({"class": None}) is None


def test_what_dutiful_states_itself_has_class_and_fingerprint_too() -> None:
    described = make_error("WorkerLost", "the worker died 3 times", ErrorClass.TRANSIENT)
    assert described["class"] == "transient" and described["fingerprint"] == fingerprint(
        "WorkerLost", "the worker died 9 times"
    )


@pytest.mark.req("W30")
@pytest.mark.parametrize("limit", [1, 10, 100, 500])
def test_a_message_is_cut_to_its_limit_and_the_traceback_is_kept_apart(limit: int) -> None:
    described = describe(ValueError("x" * 10_000), message_limit=limit)
    assert len(described["message"]) == limit and described["message"].startswith("x")
    assert "x" * 10_000 in described["traceback"]
    assert describe(ValueError("y" * 500))["message"] == "y" * 500
    assert len(describe(ValueError("y" * 501))["message"]) == 500


KEY = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"


@pytest.mark.parametrize("before", [0, 480, 495])
def test_no_secret_is_stored_wherever_the_message_is_cut(before: int) -> None:
    described = raised(ValueError(f"{'x' * before} key {KEY} was refused"))
    assert not any(KEY[:12] in text for text in described.values())
    assert (
        described["fingerprint"] == raised(ValueError(f"{'x' * before} key {KEY[:-4]}AAAA was refused"))["fingerprint"]
    )


def deep(depth: int) -> None:
    if depth == 0:
        raise ValueError("at the bottom")
    deep(depth - 1)


def outermost() -> None:
    deep(60)


def test_of_a_deep_traceback_the_place_that_failed_is_kept() -> None:
    with pytest.raises(ValueError) as failure:
        outermost()
    text = describe(failure.value)["traceback"]
    assert 'raise ValueError("at the bottom")' in text
    assert "in outermost" not in text, "the thirty calls next to the failure"


def test_what_is_stored_of_an_error_is_bounded() -> None:
    long = type("E" * 300, (Exception,), {})
    assert len(type_of(long())) == 200
    note = "… (300 characters in all)"
    assert storable("x" * 300, len(note) + 1) == "x" + note
    assert storable("x" * 300, len(note)) == "x" * len(note), "there is no room for the note"


def test_of_a_message_two_thousand_characters_take_part_in_the_fingerprint() -> None:
    start = "ab " * 666  # 1,998 characters
    assert gist(start + "xy") != gist(start + "xz") and gist(start + "xyz") == gist(start + "xyw")


def test_a_word_of_more_than_forty_letters_is_no_word() -> None:
    assert gist("x" * 40) == "x" * 40 and gist("x" * 41) == "#"


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_that_cannot_be_read_is_described_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(Unreadable())["message"] == "(its message could not be read: RuntimeError)"

    def fail(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr("traceback.TracebackException.from_exception", fail)
    assert describe(ValueError("x"))["traceback"] == "(its traceback could not be read: RecursionError)"


def even(left: int) -> None:
    odd(left - 1)


def odd(left: int) -> None:
    if left <= 0:
        raise ValueError("at the bottom")
    even(left - 1)


def test_a_traceback_has_the_innermost_thirty_frames() -> None:
    with pytest.raises(ValueError, match="at the bottom") as caught:
        even(60)
    frames = describe(caught.value)["traceback"].count('File "')
    assert frames == 30
