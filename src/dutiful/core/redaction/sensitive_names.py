"""What a field's name says about its value: a password, a token, a mail's body, or nothing of the kind."""

import functools
import re
from collections.abc import Collection

from dutiful.core.redaction.invisible import visible

PASSWORD = "a password"
TOKEN = "a token"
SECRET = "a secret"
KEY = "a secret key"
HEADER = "credentials of a request"
MAIL = "the body of a mail"
CONTENT = "the content of a document"
CREDENTIALS = frozenset({PASSWORD, TOKEN, SECRET, KEY, HEADER})

# How a name ends, separators left out; a name's last words decide, as in `connection_token`.
_ENDINGS = {
    PASSWORD: "password passwd passwort kennwort pwd pw passphrase passcode passwordhash otp cvv cvc cardpin userpin",
    TOKEN: "token jwt accesstoken refreshtoken authtoken sessiontoken bearertoken idtoken resettoken csrftoken "
    "apitoken bottoken devicetoken githubpat",
    SECRET: "secret credential creds clientsecret sharedsecret appsecret webhooksecret",
    KEY: "apikey accesskey secretkey privatekey signingkey encryptionkey decryptionkey masterkey sharedkey authkey "
    "hmackey sshkey stripekey accountkey",
    HEADER: "authorization authorisation cookie setcookie basicauth httpauth authheader authorizationheader "
    "cookieheader",
    MAIL: "mailbody emailbody messagebody msgbody htmlbody textbody plainbody rawbody mimebody letterbody smsbody "
    "mailtext emailtext mailhtml emailhtml rawmail rawemail rawmime rawmessage mailraw emailraw messageraw mailcontent "
    "emailcontent messagecontent eml",
    CONTENT: "documentcontent doccontent filecontent attachmentcontent pagecontent pdfcontent rawcontent htmlcontent "
    "textcontent blobcontent uploadcontent contentbytes documentbody documenttext documentbytes documentdata "
    "filebytes filedata filetext attachmentbytes attachmentdata ocrtext",
}
MEANINGS = {ending: meaning for meaning, endings in _ENDINGS.items() for ending in endings.split()}
# Only as the whole name: there are governing bodies and tables of contents.
WHOLE = {"body": MAIL, "bodies": MAIL, "content": CONTENT, "contents": CONTENT, "pass": PASSWORD}
# `imap_pass`, but not `boarding_pass`.
_SERVICES = (
    "admin app db database ftp http imap ldap login mail mongo mqtt mysql pg pop postgres proxy rabbit redis root sftp "
    "smtp ssh user vpn wifi"
)
MEANINGS |= {f"{service}pass": PASSWORD for service in _SERVICES.split()}
MEANINGS |= {
    f"{noun}{form}": CONTENT
    for noun in ["document", "doc", "file", "pdf", "attachment", "image", "scan", "upload"]
    for form in ("base64", "b64")
}
# Positions in a list, consents and payment orders have such names, too.
HARMLESS = frozenset(
    f"{before}{what}"
    for befores, what in (
        ("page nextpage prevpage sync nextsync delta continuation continue resume cursor next skip scroll", "token"),
        ("prior pre payment credit", "authorization"),
    )
    for before in befores.split()
)
_CARDS = frozenset(
    ("card", "cards", "cardno", "cardnumber", "cardnum", "creditcard", "debitcard", "cc", "ccnumber", "ccnum", "pan")
)
INNER = ("password", "passwd", "passphrase")  # also inside one word: userpassword
# These name the value's form, and do not change its meaning.
FORMS = re.compile(
    r"\d+|value|text|raw|string|str|plain|plaintext|encrypted|enc|b|base|bytes|pem|data|html|markdown|new|old|current"
    r"|confirm|confirmation|again|v|prod|production|staging|stage|dev|live|test|sandbox|backup"
)
# A name that begins with these is a flag or a number, unless a text has it.
ABOUT = re.compile(r"has|is|needs|include|includes|with|without|requires|max|min|num|number|total|count|used")
# One that ends with these is a number, unless a text has it: `password_length`.
_MEASURES = frozenset(("length", "len", "count", "size"))
_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PART = re.compile(r"[^\W\d_]+|\d+")
_ASCII_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")  # the same in one step
_SEPARATORS = re.compile(r"[\W_]+")
_LONGEST = 200  # longer than any field's name


# Each name that means anything has one of these in it, separators left out. Most names have none, and are not taken
# apart: a payload may have thousands, each another one.
_CUES = (
    "pass pw key token text auth data content raw body secret mail cred card cc pan pin pat otp cvv cvc jwt cookie "
    "html mime message eml bytes b64 base64 bodies kennwort"
)
CUES = tuple(_CUES.split())


class FieldName:
    """What a name says."""

    __slots__ = ("_visible", "_words", "card", "flagged", "meaning")

    meaning: str | None  # of its value, if payloads must not contain it
    flagged: str | None  # the same for a text under the name of a flag or a number, as `has_password`
    card: bool  # whether a number would be a payment card's

    def __init__(self, name: str) -> None:
        self._visible = visible(name)
        self._words: tuple[str, ...] | None = None
        self.meaning = self.flagged = None
        self.card = False
        joined = self._visible.lower()
        if not joined.isalnum():
            joined = _SEPARATORS.sub("", joined)
        for cue in CUES:
            if cue in joined:
                break
        else:
            return
        parts = self.words
        about = parts[1:] if parts and ABOUT.fullmatch(parts[0]) else parts
        named = about[:-1] if about and about[-1] in _MEASURES else about
        if named is parts:
            self.meaning = _meaning(parts)
        else:
            self.flagged = _meaning(named)
        self.card = not _CARDS.isdisjoint(parts)

    @property
    def words(self) -> tuple[str, ...]:
        if self._words is None:
            name = self._visible
            parts = _ASCII_PART.findall(name) if name.isascii() else _PART.findall(_CASE_CHANGE.sub("_", name))
            self._words = tuple(map(str.lower, parts))
        return self._words


def field_name(name: str) -> FieldName:
    return _field_name(name if len(name) <= _LONGEST else visible(name)[-_LONGEST:])


def words(name: str) -> tuple[str, ...]:
    """The words of a name: `apiKey`, `API-Key` and `api_key` have the same."""
    return field_name(name).words


def meaning(name: str) -> str | None:
    """What a value of this name would be, if payloads must not contain it; None for all others."""
    return field_name(name).meaning


def ends_with(words: tuple[str, ...], endings: Collection[tuple[str, ...]]) -> bool:
    """Whether the last words are those of one of `endings`."""
    return any(words[-len(ending) :] == ending for ending in endings)


@functools.lru_cache(maxsize=4096)  # names are few, and come again and again
def _field_name(name: str) -> FieldName:
    return FieldName(name)


def _meaning(parts: tuple[str, ...]) -> str | None:
    if not parts:
        return None
    while True:
        found = _ending(parts) or (WHOLE.get(parts[0]) if len(parts) == 1 else None)
        if found or len(parts) == 1 or not FORMS.fullmatch(parts[-1]):
            return found
        parts = parts[:-1]


def _ending(parts: tuple[str, ...]) -> str | None:
    if "".join(parts[-2:]) in HARMLESS:  # of three words, the last two decide: `next_page_token`
        return None
    joined = ""
    for part in reversed(parts[-3:]):
        joined = part + joined
        found = MEANINGS.get(joined) or MEANINGS.get(_singular(joined))
        if found:
            return found
    return PASSWORD if _singular(parts[-1]).endswith(INNER) else None


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") else word
