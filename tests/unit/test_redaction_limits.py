"""Where a secret begins and ends to be one: lengths, ranges and the words around it."""

import random
import string

import pytest

from dutiful.core.redaction import invisible
from dutiful.core.redaction.redact import REDACTED, redact, redact_value, safe_name, safe_reason, secret_in
from dutiful.core.redaction.secret_shapes import find_cards

LOWER = string.ascii_lowercase


def card(first: str, length: int) -> str:
    """A number with the right check digit, computed in another way than the source does."""
    digits = first.ljust(length - 1, "0")
    total = 0
    for place, digit in enumerate(digits[::-1]):
        value = int(digit)
        total += sum(divmod(2 * value, 10)) if place % 2 == 0 else value
    return f"{digits}{-total % 10}"


# --- cards


@pytest.mark.parametrize(
    ("length", "first"),
    [
        *((14, first) for first in ("300", "305", "36", "38", "39")),
        *((15, first) for first in ("34", "37")),
        *((16, first) for first in ("51", "55", "2221", "2720")),
        *((length, first) for length in (16, 19) for first in ("4", "6011", "644", "659")),
        *((length, first) for length in (16, 17, 18, 19) for first in ("3528", "3589", "62")),
    ],
)
def test_an_issuer_has_its_lengths_and_first_digits(length: int, first: str) -> None:
    assert secret_in(f"card {card(first, length)}") == "a card number"


@pytest.mark.parametrize(
    ("length", "first"),
    [
        *((14, first) for first in ("299", "306", "35", "37", "40", "4", "62")),
        *((15, first) for first in ("33", "35", "36", "38", "4", "300", "62")),
        *((16, first) for first in ("50", "56", "2220", "2721", "34", "3", "5", "6010", "6012", "643", "660", "300")),
        *((17, first) for first in ("4", "51", "6011", "3527", "3590", "61", "63")),
        *((18, first) for first in ("4", "51", "644", "3527", "3590", "61", "63")),
        *((19, first) for first in ("51", "2221", "6010", "6012", "643", "660", "3527", "3590", "61", "63", "5")),
    ],
)
def test_other_numbers_are_of_no_issuer(length: int, first: str) -> None:
    assert secret_in(f"card {card(first, length)}") is None


@pytest.mark.parametrize("first", ["4111", "4929", "5105", "2223", "3530"])
def test_each_digit_counts_for_the_check_digit(first: str) -> None:
    number = card(f"{first}8397246105", 16)
    assert secret_in(f"card {number}") == "a card number"
    for place in range(4, 16):
        wrong = f"{number[:place]}{(int(number[place]) + 1) % 10}{number[place + 1 :]}"
        assert secret_in(f"card {wrong}") is None, place


@pytest.mark.parametrize(
    ("length", "first", "is_covered"), [(14, "36", False), (15, "34", True), (16, "4", True), (19, "4", False)]
)
def test_a_number_alone_is_covered_if_it_has_the_length_of_most_cards(
    length: int, first: str, is_covered: bool
) -> None:
    number = card(first, length)
    assert (redact(f"order {number}") == f"order {REDACTED}") is is_covered
    assert secret_in(f"order {number}") is None
    assert redact(f"card {number}") == f"card {REDACTED}"


def test_a_word_within_60_characters_makes_a_number_a_card() -> None:
    number = card("4", 16)
    between = "x " * 27
    assert secret_in(f"visa  {between}{number}") == "a card number"
    assert secret_in(f"visa   {between}{number}") is None
    assert secret_in(f"{number}  {between}visa") == "a card number"
    assert secret_in(f"{number}   {between}visa") is None


def test_a_card_is_found_where_it_stands() -> None:
    number = card("36", 14)
    (found,) = find_cards(number, named=True)
    assert (found.start, found.end, found.sure) == (0, 14, True)
    assert list(find_cards(number)) == []
    (grouped,) = find_cards("4111 1111 1111 1111")
    assert grouped.sure is True
    (bare,) = find_cards(card("4", 16))
    assert bare.sure is False


# --- tokens


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("bearer " + LOWER[:24], True),
        ("bearer " + LOWER[:23], False),
        ("bearer Instruments", False),
        ("bearer instruMents", True),
        ("bearer instrument5", True),
        ("basic " + "aGVsbG86", True),  # hello:
        ("basic " + "aGVsbG8h", False),  # hello!
        ("basic " + "aGVsbG86a", False),  # no Base64
        ("sk-" + "aB3dEfGhIjKlMnOpQrSt", True),
        ("sk-" + "ab3defghijklmnopqrst", True),  # a run of 20
        ("sk-" + "ab3defghijklmnopqrs-t", False),
        ("sk-" + "aBcdefghijklmnopqrstuv", False),  # no digit
        ("sk-" + "AB3DEFGHIJ-KLMNOPQRST", False),  # one case, in short runs
        ("s." + "aB3dEfGhIjKlMnOpQrStUvWx", True),
        ("s." + "ab3defghijklmnopqrstuvwx", False),
        ("s." + "AB3DEFGHIJKLMNOPQRSTUVWX", False),
        ("s." + "aBcdEfGhIjKlMnOpQrStUvWx", False),
        ("sig=" + "a1" * 10, True),
        ("sig=" + "ab" * 10, False),
        ("eyJ" + "a" * 9 + "." + "b" * 10 + "." + "c" * 6, True),  # 12 characters, and 30 in all
        ("eyJ" + "a" * 8 + "." + "b" * 10 + "." + "c" * 9, False),
        ("eyJ" + "a" * 9 + "." + "b" * 10 + "." + "c" * 5, False),
        ("eyJ" + "a" * 60, False),
        ("https://" + "a1" * 10 + "@host", True),
        ("https://" + "ab" * 10 + "@host", False),
        ("curl -u bob:hunter2", True),
        ("curl -u bob:1000", False),
        ("curl -u bob:***", False),
        ("://:a@", True),
        ("://a@", False),
    ],
)
def test_a_token_is_told_from_words_by_its_length_and_its_characters(text: str, is_secret: bool) -> None:
    assert (secret_in(text) is not None) is is_secret
    assert (redact(text) != text) is is_secret


def alternating(runs: int) -> str:
    """Forty characters in so many runs of one class, with both cases."""
    return "".join(("a", "B")[n % 2] for n in range(runs - 1)).ljust(40, ("a", "B")[(runs - 1) % 2])


def test_forty_random_characters_are_a_key_of_aws_where_a_word_says_so() -> None:
    key = alternating(16)
    assert len(key) == 40
    assert secret_in(f"aws {key}") == "an AWS secret key"
    assert secret_in(key) is None
    assert secret_in(f"aws {alternating(15)}") is None, "a path of words has so few runs"
    assert secret_in(f"aws {alternating(40).lower()}") is None
    assert secret_in(f"aws {alternating(40).upper()}") is None
    for sign in "/+":
        assert secret_in(f"{key[:38]}{sign}B") is None, "thirty bytes in Base64 look like this"
        assert secret_in(f"aws {key[:38]}{sign}B") == "an AWS secret key"
    assert secret_in("aws " + "x " * 28 + key) == "an AWS secret key", "60 characters before"
    assert secret_in("aws " + "x " * 29 + key) is None
    assert redact(f"aws {key}, then") == f"aws {REDACTED}, then"


# --- names with their values


@pytest.mark.parametrize(
    ("text", "is_sure"),
    [
        ("password=abcd", True),
        ("password=abc", False),
        ("--password abcd", True),
        ("--password abc", False),
        ("('password', 'abcd')", False),  # two words beside each other may be a sentence
        ("the password: abcd9", False),
        ("password: abcd9", True),
        ("password: abcde", False),  # a word after a colon
        ("password: abcd9 or so", False),
        ('"password": "abcde"', True),
        ("Key (token)=(f3a9) already exists.", True),
        ("Key (name)=(f3a9) already exists.", False),
    ],
)
def test_a_value_is_refused_if_it_is_surely_one_and_covered_in_any_case(text: str, is_sure: bool) -> None:
    assert (secret_in(text) is not None) is is_sure
    assert (REDACTED in redact(text)) is ("(name)" not in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an unexpected token: " + LOWER[:15], "an unexpected token: " + LOWER[:15]),
        ("an unexpected token: " + LOWER[:16], "an unexpected token: [redacted]"),
        ("an unexpected token: comma1", "an unexpected token: [redacted]"),
        ("token=comma", "token=[redacted]"),
        ("(f(password=abc))", "(f(password=[redacted]))"),
        ("password=[abcd]", "password=[[redacted]]"),
        ("password=9(b)c)", "password=[redacted])"),
        ("password=(a)b", "password=[redacted]"),
        ("password=f(" + "x" * 150 + ")", "password=f(" + "x" * 150 + ")"),
        ("password=f(" + "x" * 300 + ")", "password=[redacted]"),
        ("password=f(x\n)", "password=[redacted]\n)"),
        ("Cookie: a=b; c='d e'; f=g", "Cookie: [redacted]"),
        ('Cookie: sid="s3cr3t"\nHost: x', "Cookie: [redacted]\nHost: x"),
        ('{"header": "Cookie: sid=\\"s3cr3t\\"; a=b", "n": 1}', '{"header": "Cookie: [redacted]", "n": 1}'),
        ('Authorization: Digest username="bob", response="6629fae4"', "Authorization: [redacted]"),
        ("curl -H 'Cookie: a=b' https://x", "curl -H 'Cookie: [redacted]' https://x"),
        ('["Cookie: a=b", "n"]', '["Cookie: [redacted]", "n"]'),
        ("password=a password=b", "password=[redacted] password=[redacted]"),
        ("password=token=abc", "password=[redacted]"),
        ("Key (id, token)=(1, f3a9", "Key (id, token)=([redacted]"),
        ("Key (token)=(***)", "Key (token)=(***)"),
        ("password=B'hunter2'", "password=B'[redacted]'"),
        ("password=Environ['PW']", "password=Environ['PW']"),
        ("<token> *** </token>", "<token> *** </token>"),
        ("password=abc, api_key=def", "password=[redacted], api_key=[redacted]"),
    ],
)
def test_what_is_covered_is_the_value_and_nothing_around_it(text: str, expected: str) -> None:
    assert redact(text) == expected


# --- texts, names and values


@pytest.mark.parametrize("unseen", ["\u200b", "\ufe00", "\ufe0f", "\U000e0100", "\U000e01ef", "\u3164", "\x00", "\x7f"])
def test_a_character_without_a_shape_hides_nothing(unseen: str) -> None:
    assert redact(f"pass{unseen}word=hunter2") == "password=[redacted]"
    assert redact(f"pass{ascii(unseen)[1:-1]}word=hunter2") == "password=[redacted]"


@pytest.mark.parametrize(
    "seen", ["\ufdff", "\ufe10", "\U000e00ff", "\U000e01f0", "é", "\\x41", "\\U00110000", "\\u00e9"]
)
def test_a_character_with_a_shape_parts_what_is_around_it(seen: str) -> None:
    assert redact(f"pass{seen}word=hunter2") == f"pass{seen}word=hunter2"


def test_spaces_and_ends_of_lines_are_read_as_such() -> None:
    assert redact("card\u30004111\u20031111\u00a01111\u20091111") == "card [redacted]"
    assert redact("a\u2028b\u2029password: hunter2\tand\u2003c") == "a\nb\npassword: [redacted]\tand c"


def test_many_different_characters_are_read_and_not_all_remembered() -> None:
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 20_900)))
    for _ in range(2):
        assert redact(many + " pass\u200bword=hunter2").endswith(" password=[redacted]")
        assert len(invisible._SEEN) <= invisible._MOST + 1


def test_a_value_is_redacted_at_any_depth_with_its_names() -> None:
    value = {"a": ["password=hunter2", ("token=abc", 5)], "password=hunter2": None, "n": 1.5}
    assert redact_value(value) == {
        "a": ["password=[redacted]", ["token=[redacted]", 5]],
        "password=[redacted]": None,
        "n": 1.5,
    }


def test_a_name_is_shown_up_to_80_characters_and_not_at_all_if_it_is_a_secret() -> None:
    assert safe_name("x" * 80) == "x" * 80
    assert safe_name("x" * 81) == "x" * 80 + "…"
    assert safe_name("password=hunter2") == REDACTED
    assert safe_name("a\0b\ud800") == "ab?"


def test_the_first_500_characters_of_a_name_are_looked_at() -> None:
    end = f" card {card('4', 16)}"
    assert safe_name("x" * (500 - len(end)) + end) == REDACTED
    assert safe_name("x" * (501 - len(end)) + end) != REDACTED
    assert safe_name("x\u200b" * (500 - len(end)) + end) == REDACTED, "of those that are seen"


def test_a_reason_has_neither_the_value_nor_an_unsafe_name() -> None:
    assert safe_reason("Invalid enum value 'hunter2' - at `$.a`") == "Invalid enum value - at `$.a`"
    assert safe_reason("Object contains unknown field `token=abcd`") == f"Object contains unknown field `{REDACTED}`"
    assert safe_reason("Object contains unknown field `colour`") == "Object contains unknown field `colour`"


def test_a_text_that_is_nothing_but_a_secret_is_covered_whole() -> None:
    assert redact(card("4", 16)) == REDACTED
    assert redact("password=abc") == f"password={REDACTED}"


def test_overlapping_secrets_are_covered_once() -> None:
    chance = random.Random(7)
    for _ in range(20):
        text = "".join(
            chance.choices(["password=", "abc9", " ", "token=", "'", '"', "(", ")", "4111111111111111"], k=12)
        )
        assert redact(redact(text)) == redact(text)


# --- signatures, tokens of URLs, secret keys


@pytest.mark.parametrize(
    ("query", "signed"),
    [
        ("signature=" + "a" * 18 + "1", False),
        ("signature=" + "a" * 19 + "1", True),
        ("signature=" + "a" * 40, False),  # a word
        ("sig=abc12d", False),
        ("x-goog-signature=abc12d", True),
        ("sv=2022-11-02&sig=abc12d", True),
        ("sig=abc12d&sv=2022-11-02", True),
        ("sv=2022-11-02&" + "x" * (300 - 14) + "sig=abc12d", False),  # not a name of its own
        ("sv=2022-11-02&" + "x" * (300 - 15) + "&sig=abc12d", True),
        ("sv=2022-11-02&" + "x" * (300 - 14) + "&sig=abc12d", False),
        ("sig=abc12d&" + "x" * (300 - 15) + "&sv=2022-11-02", True),
        ("sig=abc12d&" + "x" * (300 - 14) + "&sv=2022-11-02", False),
    ],
)
def test_a_short_signature_takes_the_name_of_a_cloud_or_its_version_near_by(query: str, signed: bool) -> None:
    assert (secret_in(query) == "a signed URL") is signed


@pytest.mark.parametrize(
    ("user", "scheme", "token"),
    [
        ("a" * 19 + "1", "ssh", True),
        ("a" * 18 + "1", "ssh", False),
        ("a" * 20, "ssh", False),
        ("a" * 18 + "1", "https", False),  # a login with a number
        ("a1b2cdef", "https", True),
        ("a1bcdefg", "https", False),
        ("a1b2cdef", "ssh", False),
        ("a1b2c3d4", "https", True),
    ],
)
def test_the_user_of_a_url_is_a_token_if_no_login_looks_so(user: str, scheme: str, token: bool) -> None:
    assert (secret_in(f"{scheme}://{user}@example.org/") == "a URL with a token") is token


PLAIN_KEY = "a8Kd03jfLq9aPw7Zx1Cv5Bn2Mm4Qs6Wd8Er0Ty3U"


@pytest.mark.parametrize(
    ("text", "covered", "refused"),
    [
        (PLAIN_KEY, False, False),
        (PLAIN_KEY.replace("L", "/"), True, False),
        (PLAIN_KEY.replace("L", "+"), True, False),
        (PLAIN_KEY[:-1], False, False),
        (PLAIN_KEY + "x", False, False),
        (f"aws {PLAIN_KEY}", True, True),
        (f"{PLAIN_KEY} (aws)", True, True),
        (f"{PLAIN_KEY} {'-' * 55} aws", True, True),
        (f"{PLAIN_KEY} {'-' * 56} aws", False, False),
    ],
)
def test_a_secret_key_of_aws_takes_a_sign_or_a_word_near_by(text: str, covered: bool, refused: bool) -> None:
    assert (REDACTED in redact(text)) is covered
    assert (secret_in(text) == "an AWS secret key") is refused


def test_a_login_in_base64_is_read_only_if_it_is_base64() -> None:
    assert secret_in("basic dXNlcjpwYXNz") == "a password"
    assert secret_in("basic dXNlcjpwYXNzA") is None
