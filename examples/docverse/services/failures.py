"""Work on many things, of which some may fail."""

from collections.abc import Iterator
from contextlib import contextmanager

from examples.docverse.ports import Job


class Failures:
    """Lets a night's work go on with the next thing when one fails, and raises the first error at the end.

    Otherwise what fails every night would keep everything behind it from its turn.
    """

    def __init__(self, job: Job | None = None) -> None:
        self._job = job
        self._errors: list[Exception] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._job is not None and self._job.ends_by(error):
                raise
            self._errors.append(error)

    def raise_first(self) -> None:
        if self._errors:
            raise self._errors[0]
