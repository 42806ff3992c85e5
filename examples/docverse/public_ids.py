"""Public ids of builds and jobs: numbers in Crockford's Base32, with check digits and hyphens."""

import secrets
from uuid import UUID

import base32_lib

LENGTH, GROUP = 14, 4  # 12 characters carry 60 bits, 2 more the checksum


def new() -> int:
    return secrets.randbits(60)


def spell(number: int) -> str:
    spelling: str = base32_lib.encode(number, split_every=GROUP, min_length=LENGTH, checksum=True)
    return spelling.upper()


def read(text: str) -> int:
    """Reads exactly one spelling; ValueError for any other."""
    try:
        number: int = base32_lib.decode(text, checksum=True)
    except ValueError:
        number = -1
    if number < 0 or spell(number) != text:
        raise ValueError(f"{text[:40]!r} is not a build's id: copy it whole, as in {spell(0)}")
    return number


def spell_job(job_id: UUID | str) -> str:
    """As Dutiful spells it: seven characters a group."""
    spelling: str = base32_lib.encode(UUID(str(job_id)).int, split_every=7, min_length=28, checksum=True)
    return spelling.upper()
