from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dutiful.core.errors import MalformedId, UsageError
from dutiful.core.ids import first_from, floor_at, from_parts, parse, parse_any, public, time_of

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID = UUID("01932b0f-5d7a-7c3e-9f10-8a4b6c2d1e0f")
SPELLING = public(ID)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

millisecond_counts = st.integers(0, (1 << 48) - 1)
random_bytes = st.binary(min_size=10, max_size=10)


def refusal(text: str) -> str:
    with pytest.raises(MalformedId) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.req("D11")
@given(st.uuids())
def test_a_public_id_reads_back_as_the_same_id(uuid: UUID) -> None:
    assert parse(public(uuid)) == uuid


@pytest.mark.req("D11")
@pytest.mark.parametrize("uuid", [UUID(int=0), UUID(int=1), ID, UUID(int=(1 << 128) - 1)])
def test_every_public_id_is_four_groups_of_seven_with_a_checksum(uuid: UUID) -> None:
    groups = public(uuid).split("-")

    assert [len(group) for group in groups] == [7, 7, 7, 7]
    assert set("".join(groups)) <= set(ALPHABET)
    assert groups[-1][-2:] == f"{98 - 100 * uuid.int % 97:02}"
    assert parse(public(uuid)) == uuid


def test_the_spelling_of_an_id_never_changes_between_releases() -> None:
    assert public(UUID("01932b0f-5d7a-7c3e-9f10-8a4b6c2d1e0f")) == "01JCNGY-QBTFGZ9-Y44A9DP-2T7GF28"


@given(st.uuids(), st.uuids())
def test_public_ids_sort_as_the_ids_do(one: UUID, other: UUID) -> None:
    assert (public(one) < public(other)) == (one < other)


@pytest.mark.req("D11")
@given(st.uuids(), st.integers(0, 30), st.sampled_from(ALPHABET))
def test_a_mistyped_character_is_always_noticed(uuid: UUID, place: int, typed: str) -> None:
    spelling = public(uuid)
    assume(spelling[place] not in ("-", typed))

    refusal(spelling[:place] + typed + spelling[place + 1 :])


@given(st.uuids(), st.integers(0, 27))
def test_two_swapped_characters_before_the_checksum_are_always_noticed(uuid: UUID, place: int) -> None:
    spelling = public(uuid)
    left, right = spelling[place], spelling[place + 1]
    assume(left != right)

    refusal(spelling[:place] + right + left + spelling[place + 2 :])


@given(st.one_of(st.text(), st.text(ALPHABET + "-ilou", min_size=26, max_size=32), st.from_regex(r"[0-9A-Z-]{31}")))
def test_any_text_is_refused_unless_it_is_the_one_spelling(text: str) -> None:
    try:
        uuid = parse(text)
    except MalformedId:
        return
    assert public(uuid) == text


@pytest.mark.parametrize(
    "variant",
    [
        SPELLING.lower(),
        SPELLING.replace("-", ""),
        SPELLING.replace("-", "", 1),
        f"-{SPELLING}",
        f"{SPELLING}-",
        SPELLING.replace("-", "--"),
        SPELLING.replace("0", "O"),
        SPELLING.replace("0", "o"),
        SPELLING.replace("1", "I"),
        SPELLING.replace("1", "l"),
        SPELLING.replace("-", "-" * 10_000),
    ],
)
def test_another_spelling_of_an_id_is_refused_with_the_right_one(variant: str) -> None:
    assert variant != SPELLING
    message = refusal(variant)

    assert f"write it as {SPELLING}." in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has 0 characters instead of 28"),
        ("x", "has 1 character instead of 28"),
        (SPELLING[:-1], "has 27 characters instead of 28"),
        (f" {SPELLING}", "has 29 characters instead of 28"),
        ("0" * 100_000, "has 100000 characters instead of 28"),
        (SPELLING.replace("J", "U"), "contains the character 'U'"),
        (SPELLING[:-1] + "٣", "contains the character '٣'"),
        (SPELLING[:-1] + "+", "contains the character '+'"),
        (SPELLING.replace("J", "\N{KELVIN SIGN}"), "contains the character '\N{KELVIN SIGN}'"),
        (SPELLING.replace("J", "ſ"), "contains the character 'ſ'"),
        (SPELLING[:-2] + "ZZ", "has a wrong checksum"),
        ("Z" * 26 + f"{98 - 100 * (32**26 - 1) % 97:02}", "is too large"),
        ("8" + "0" * 25 + f"{98 - 100 * (1 << 128) % 97:02}", "is too large"),
    ],
)
def test_a_refusal_names_the_problem_and_the_remedy(text: str, problem: str) -> None:
    message = refusal(text)

    assert problem in message
    assert "Copy the whole id" in message
    assert len(message) < 300


def test_the_command_line_also_takes_the_uuid_that_sql_shows() -> None:
    assert parse_any(SPELLING) == ID
    assert parse_any(str(ID)) == ID
    assert parse_any(str(ID).upper()) == ID


@pytest.mark.parametrize(
    "text", [ID.hex, f"{{{ID}}}", ID.urn, f"{ID} ", f"{ID}\n", SPELLING.lower(), "", "٣" + str(ID)[1:]]
)
def test_the_command_line_takes_no_third_spelling(text: str) -> None:
    with pytest.raises(MalformedId, match="A plain UUID"):
        parse_any(text)


@given(millisecond_counts, random_bytes)
def test_an_id_made_of_parts_is_a_v7_that_keeps_its_random_bits(ms: int, random: bytes) -> None:
    uuid = from_parts(ms, random)

    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == ms
    free = ~(0xF << 76 | 0b11 << 62) & ((1 << 80) - 1)
    assert uuid.int & free == int.from_bytes(random, "big") & free


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)), random_bytes)  # noqa: DTZ001
def test_an_id_has_the_millisecond_it_was_made_in(moment: datetime, random: bytes) -> None:
    uuid = from_parts((moment - EPOCH) // timedelta(milliseconds=1), random)

    assert time_of(uuid) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert time_of(uuid).tzinfo is UTC


@given(st.datetimes(datetime(1971, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC)), random_bytes)  # noqa: DTZ001
def test_a_floor_parts_the_ids_before_a_moment_from_those_since(moment: datetime, random: bytes) -> None:
    floor = floor_at(moment)
    ms = (moment - EPOCH) // timedelta(milliseconds=1)

    assert from_parts(ms - 1, random) < floor <= from_parts(ms, random)
    assert from_parts(ms - 1, b"\xff" * 10) < floor <= from_parts(ms, bytes(10))


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC)), millisecond_counts)  # noqa: DTZ001
def test_the_first_id_from_a_moment_on_parts_ids_by_their_times(moment: datetime, ms: int) -> None:
    for near in (ms % (1 << 47), (moment - EPOCH) // timedelta(milliseconds=1)):
        made = from_parts(near, b"\x11" * 10)
        assert (made >= first_from(moment)) is (time_of(made) >= moment)


def test_every_id_is_from_before_1970_on() -> None:
    assert first_from(datetime(1960, 1, 1, tzinfo=UTC)) == from_parts(0, bytes(10))


@pytest.mark.parametrize("uuid", [UUID(int=0), UUID("9b2f1c58-7a0e-4c7d-8a52-0d9d6a4c1f11")])
def test_an_id_that_is_not_v7_carries_no_time(uuid: UUID) -> None:
    with pytest.raises(MalformedId, match="carries no time"):
        time_of(uuid)


def test_an_id_of_a_mad_clock_is_refused_rather_than_overflowing() -> None:
    with pytest.raises(MalformedId, match="after the year 9999"):
        time_of(from_parts((1 << 48) - 1, bytes(10)))


@pytest.mark.parametrize(("ms", "random"), [(-1, bytes(10)), (1 << 48, bytes(10)), (0, bytes(9)), (0, bytes(11))])
def test_parts_that_do_not_fit_are_refused(ms: int, random: bytes) -> None:
    with pytest.raises(UsageError):
        from_parts(ms, random)


def test_a_wrong_id_is_shown_up_to_60_characters() -> None:
    assert refusal("x" * 60).startswith(f"'{'x' * 60}' is not a job's id: it has 60 characters")
    assert refusal("x" * 61).startswith(f"'{'x' * 60}…' is not a job's id: it has 61 characters")
