"""Credentials of organizations, encrypted with Fernet; a list of keys lets them be rotated."""

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from examples.docverse.database import Database


class CredentialEncryptor:
    """Encrypts with the first key, decrypts with any of them."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def encrypt(self, plaintext: str) -> str:
        return self._fernet.encrypt(plaintext.encode()).decode()

    def decrypt(self, token: str) -> str:
        try:
            return self._fernet.decrypt(token.encode()).decode()
        except InvalidToken:
            raise CredentialError("a credential was encrypted with a key that is not configured any more") from None

    def rotate(self, token: str) -> str:
        """The same credential under the first key; it is never returned as plain text."""
        try:
            return self._fernet.rotate(token.encode()).decode()
        except InvalidToken:
            raise CredentialError("a credential was encrypted with a key that is not configured any more") from None


class CredentialError(Exception):
    """A credential is missing or cannot be read."""


class Credentials:
    def __init__(self, database: Database, encryptor: CredentialEncryptor) -> None:
        self._database = database
        self._encryptor = encryptor

    def within(self, transaction: Database) -> "Credentials":
        return Credentials(transaction, self._encryptor)

    async def put(self, org_id: int, label: str, plaintext: str) -> None:
        await self._database.run("put_credential", org_id, label, self._encryptor.encrypt(plaintext))

    async def get(self, org_id: int, label: str) -> str:
        token = await self._database.value("credential", org_id, label)
        if token is None:
            raise CredentialError(f"organization {org_id} has no credential {label}")
        return self._encryptor.decrypt(token)
