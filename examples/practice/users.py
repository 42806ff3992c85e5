"""The people of the firms: how they sign in, and what the admin API lets them do."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from starlette.requests import Request

from dutiful import Principal, Role
from examples.practice.firms import Firm, Firms

COOKIE = "practice_session"
SAMPLE_PASSWORD = "tea-at-four"


@dataclass(frozen=True)
class User:
    firm_id: int
    name: str
    is_staff: bool
    is_manager: bool

    @property
    def role(self) -> Role:
        """The admin API is for managers who are staff: a manager from outside, such as an auditor, only views."""
        if not self.is_staff:
            return Role.VIEWER
        return Role.MANAGER if self.is_manager else Role.STAFF

    @property
    def principal(self) -> Principal:
        return Principal(name=self.name, role=self.role, tenant=str(self.firm_id))


class Sessions:
    """Who is signed in, by a cookie; they end with the process."""

    def __init__(self, firms: Firms) -> None:
        self._firms = firms
        self._open: dict[str, User] = {}

    def sign_in(self, name: str, password: str) -> str | None:
        """The new session's secret; None if name or password is wrong."""
        row = self._firms.user(name)
        # Hashed in any case, so that the time it takes does not tell which names exist.
        known = str(row["password"]) if row is not None else add_salt("", "")
        if not _matches(known, password) or row is None:
            return None
        secret = secrets.token_urlsafe(32)
        self._open[secret] = User(row["firm_id"], row["name"], bool(row["is_staff"]), bool(row["is_manager"]))
        return secret

    def sign_out(self, request: Request) -> None:
        self._open.pop(request.cookies.get(COOKIE, ""), None)

    def user(self, request: Request) -> User | None:
        return self._open.get(request.cookies.get(COOKIE, ""))

    def principal(self, request: Request) -> Principal | None:
        """What the admin API asks of its host; None leaves the request to its tokens."""
        user = self.user(request)
        return None if user is None else user.principal


def add_user(firm: Firm, name: str, *, staff: bool, manager: bool, password: str = SAMPLE_PASSWORD) -> None:
    firm.add(
        "add_user", name=name, password=add_salt(secrets.token_hex(16), password), is_staff=staff, is_manager=manager
    )


def add_salt(salt: str, password: str) -> str:
    digest = hashlib.scrypt(password.encode(), salt=salt.encode(), n=2**12, r=8, p=1).hex()
    return f"{salt}${digest}"


def _matches(known: str, password: str) -> bool:
    return hmac.compare_digest(known, add_salt(known.partition("$")[0], password))
