"""Credential re-encryption: after a key was added, every credential is encrypted with it."""

from examples.docverse.database import Database
from examples.docverse.records import Org
from examples.docverse.services.credentials import CredentialEncryptor, CredentialError


class Reencryption:
    def __init__(self, database: Database, encryptor: CredentialEncryptor) -> None:
        self._database = database
        self._encryptor = encryptor

    async def reencrypt(self, org: Org) -> int:
        """Rotates all credentials of an organization, whichever key they are under; the number of them.

        A token does not say which key made it. To rotate one again is harmless, and no plain text leaves the encryptor.
        """
        unreadable = []
        rows = await self._database.all("credentials_of_org", org.id)
        for row in rows:
            try:
                rotated = self._encryptor.rotate(row["encrypted_credential"])
            except CredentialError:
                unreadable.append(row["label"])
                continue
            await self._database.run("rotate_credential", row["id"], row["encrypted_credential"], rotated)
        if unreadable:
            raise CredentialError(
                f"organization {org.slug}: no configured key decrypts {', '.join(unreadable)}; add the key that "
                "encrypted it to DOCVERSE_FERNET_KEYS, or store it again"
            )
        return len(rows)
