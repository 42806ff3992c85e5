"""The settings of the host, from the environment of its processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """`folder` has the object store, the edge's keys and the git repositories that projects may name."""

    database_url: str
    folder: Path
    edge_url: str
    edge_secret: str  # the edge derives from it the token of each organization
    fernet_keys: tuple[str, ...]  # the first one encrypts; all of them decrypt
    superuser_token: str
    job_retention: timedelta = timedelta(days=7)  # of the records of ended jobs
    backoff: str = "10s"  # before the second attempt of a job; doubled before each further one
    redis_url: str | None = None  # if it is set, Arq delivers the jobs through it

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Config":
        return cls(
            database_url=environment["DUTIFUL_DATABASE_URL"],
            folder=Path(environment["DOCVERSE_FOLDER"]),
            edge_url=environment["DOCVERSE_EDGE_URL"],
            edge_secret=environment["DOCVERSE_EDGE_SECRET"],
            fernet_keys=tuple(environment["DOCVERSE_FERNET_KEYS"].split(",")),
            superuser_token=environment["DOCVERSE_SUPERUSER_TOKEN"],
            job_retention=timedelta(days=float(environment.get("DOCVERSE_JOB_RETENTION_DAYS", 7))),
            backoff=environment.get("DOCVERSE_BACKOFF", cls.backoff),
            redis_url=environment.get("DUTIFUL_REDIS_URL"),
        )

    def environment(self) -> dict[str, str]:
        """The variables that `read` reads."""
        redis = {} if self.redis_url is None else {"DUTIFUL_REDIS_URL": self.redis_url}
        return {
            **redis,
            "DUTIFUL_DATABASE_URL": self.database_url,
            "DOCVERSE_FOLDER": str(self.folder),
            "DOCVERSE_EDGE_URL": self.edge_url,
            "DOCVERSE_EDGE_SECRET": self.edge_secret,
            "DOCVERSE_FERNET_KEYS": ",".join(self.fernet_keys),
            "DOCVERSE_SUPERUSER_TOKEN": self.superuser_token,
            "DOCVERSE_JOB_RETENTION_DAYS": str(self.job_retention / timedelta(days=1)),
            "DOCVERSE_BACKOFF": self.backoff,
        }

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def repositories(self) -> Path:
        return self.folder / "repositories"
