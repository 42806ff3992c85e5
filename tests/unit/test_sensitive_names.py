"""What the words of a name say about its value."""

import pytest

from dutiful.core.redaction.sensitive_names import MAIL, PASSWORD, TOKEN, ends_with, field_name, meaning, words


@pytest.mark.parametrize("name", ["apiKey", "API-Key", "api_key", "Api Key", "api\u200bKey", "APIKey"])
def test_a_name_has_the_same_words_however_it_is_spelt(name: str) -> None:
    assert words(name) == ("api", "key")


def test_digits_are_words_of_their_own_and_a_name_without_words_has_none() -> None:
    assert words("line2text") == ("line", "2", "text")
    assert words("--") == ()
    assert field_name("--").meaning is field_name("--").flagged is None


def test_the_last_words_decide() -> None:
    assert ends_with(("old", "customer", "iban"), [("iban",)])
    assert ends_with(("old", "customer", "iban"), [("x",), ("customer", "iban")])
    assert not ends_with(("old", "iban", "hash"), [("iban",)])
    assert not ends_with((), [("iban",)])


def test_the_name_of_a_flag_or_a_number_has_no_meaning_unless_a_text_has_it() -> None:
    flag = field_name("has_password")
    assert (flag.meaning, flag.flagged) == (None, PASSWORD)
    assert field_name("include_body").flagged == MAIL
    assert field_name("has_colour").flagged is None
    plain = field_name("password")
    assert (plain.meaning, plain.flagged) == (PASSWORD, None)


@pytest.mark.parametrize(("name", "is_card"), [("card", True), ("card_number_2", True), ("cc", True), ("order", False)])
def test_a_number_may_be_a_cards_if_a_word_says_so(name: str, is_card: bool) -> None:
    assert field_name(name).card is is_card


@pytest.mark.parametrize(
    "name", ["my_page_token", "next_page_token", "nextpage_token", "list_nextPageToken", "pagetoken"]
)
def test_a_position_in_a_list_is_harmless_whatever_precedes_it(name: str) -> None:
    assert meaning(name) is None


@pytest.mark.parametrize("name", ["page_access_token", "next_token_secret", "token_page_token_value_token"])
def test_a_harmless_word_elsewhere_changes_nothing(name: str) -> None:
    assert meaning(name) is not None


@pytest.mark.parametrize("name", ["userpassword", "userpasswords", "dbpasswd", "old_mypassphrase_2"])
def test_a_password_is_known_at_the_end_of_a_word(name: str) -> None:
    assert meaning(name) == PASSWORD


def test_the_last_200_characters_of_a_name_decide() -> None:
    assert meaning("x_" * 98 + "password") == PASSWORD
    longest = "has_" + "x_" * 94 + "password"
    assert (len(longest), meaning(longest)) == (200, None)
    assert meaning("has_x" + "x_" * 94 + "password") == PASSWORD, "that it is a flag is too far away"
    assert meaning("token" + "\u200b" * 300) == TOKEN
