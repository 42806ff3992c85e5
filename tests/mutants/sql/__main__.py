"""Breaks the stores' SQL on purpose, one mutant at a time, and checks that the named tests notice.

    PYTHONPATH=tests python -m mutants.sql                 # all of them: `make mutants`
    PYTHONPATH=tests python -m mutants.sql keys webhook    # those whose name contains a word
    PYTHONPATH=tests python -m mutants.sql --table         # and write the table of docs/explanation/mutants-sql.md

The lists are the TOML files beside this one. A mutant has a `name`, the `file` below src/dutiful, the text to `find`
there (it must occur exactly once, unless `nth` says which) and to `replace`, the `tests` that must all fail, and `why`
it matters. It is applied to a copy of src, never to src itself. First all named tests must pass without a mutant.

A mutant is *killed* if each of its tests failed, *survived* if one passed, *broken* if it does not apply, or if a test
could not even start, for example because the SQL is malformed: that would prove nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from servers import PostgresServer, database_url

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "explanation" / "mutants-sql.md"
BEGIN, END = "<!-- begin: python -m mutants.sql --table -->", "<!-- end -->"
SLOWEST = 60  # seconds for one test: a mutant may make it wait for ever


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    file: str
    find: str
    replace: str
    tests: list[str]
    why: str
    nth: int | None = None

    def applied_to(self, text: str) -> str | None:
        """The mutated text; None if the text to find is not there, or not clearly."""
        parts = text.split(self.find)
        if len(parts) < 2 or (len(parts) > 2) != (self.nth is not None):
            return None
        at = self.nth or 1
        return self.find.join(parts[:at]) + self.replace + self.find.join(parts[at:]) if at < len(parts) else None


class Verdict(msgspec.Struct, frozen=True):
    mutant: Mutant
    word: str  # killed, survived, broken
    detail: str = ""


def listed() -> list[Mutant]:
    found = [
        mutant
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for mutant in msgspec.convert(tomllib.loads(path.read_text()), dict[str, list[Mutant]])["mutant"]
    ]
    names = [mutant.name for mutant in found]
    assert len(set(names)) == len(names), "two mutants have the same name"
    return found


class Bench:
    """A copy of the sources, and one server for all runs."""

    def __init__(self, sources: Path, environment: dict[str, str]) -> None:
        self._package = sources / "dutiful"
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, tests: Sequence[str]) -> tuple[set[str], str]:
        """The failed tests, and the output; a test that could not start is an AssertionError."""
        command = [
            sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--tb=no",
            f"--timeout={SLOWEST}", "-k", "not postgres16", *tests,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)
        failed = {
            line.split(" - ")[0].removeprefix("FAILED ") for line in done.stdout.splitlines() if "FAILED " in line
        }
        # 0: all passed, 1: some failed; 4 and 5: a test does not exist.
        if done.returncode not in (0, 1) or (done.returncode == 1 and not failed):
            raise AssertionError(done.stdout[-2_000:] + done.stderr[-2_000:])
        return failed, done.stdout

    def judge(self, mutant: Mutant) -> Verdict:
        path = self._package / mutant.file
        original = path.read_text()
        mutated = mutant.applied_to(original)
        if mutated is None:
            return Verdict(mutant, "broken", "the text to find is not there exactly once")
        path.write_text(mutated)
        try:
            failed, _ = self.run(mutant.tests)
        except AssertionError as error:
            return Verdict(mutant, "broken", str(error))
        finally:
            path.write_text(original)
        passed = [test for test in mutant.tests if not any(one.startswith(test) for one in failed)]
        return Verdict(mutant, "survived", ", ".join(passed)) if passed else Verdict(mutant, "killed")


@contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="dutiful-mutants-") as folder:
        sources = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        if url := database_url(18):
            yield Bench(sources, {"DUTIFUL_TEST_PG18_URL": url})
            return
        with PostgresServer(18, {"fsync": "off", "full_page_writes": "off"}) as server:
            yield Bench(sources, {"DUTIFUL_TEST_PG18_URL": server.dsn()})


def write_table(verdicts: Sequence[Verdict]) -> None:
    """Replaces what is between the two marks of the page."""
    rows = ["| mutant | file | verdict | noticed by |", "|---|---|---|---|"]
    for verdict in verdicts:
        mutant = verdict.mutant
        tests = ", ".join(f"`{test.split('::')[-1]}`" for test in mutant.tests)
        rows.append(f"| {mutant.name} | `{mutant.file.removeprefix('stores/')}` | {verdict.word} | {tests} |")
    before, rest = TABLE.read_text().split(BEGIN)
    TABLE.write_text(before + "\n".join([BEGIN, "", *rows, "", END]) + rest.split(END)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose names contain one of these")
    parser.add_argument("--table", action="store_true", help=f"write the table of {TABLE.relative_to(ROOT)}")
    asked = parser.parse_args()
    if asked.table and asked.words:
        parser.error("the table is of all mutants: leave out the words")
    mutants = [one for one in listed() if not asked.words or any(word in one.name for word in asked.words)]
    verdicts = []
    with bench() as ready:
        failed, output = ready.run(sorted({test for mutant in mutants for test in mutant.tests}))
        if failed:
            print(output)
            print("These fail without any mutant: mend them first.", file=sys.stderr)
            return 2
        for mutant in mutants:
            began = time.monotonic()
            verdicts.append(verdict := ready.judge(mutant))
            print(f"{verdict.word:8}  {mutant.name}  ({time.monotonic() - began:.0f} s)  {verdict.detail}", flush=True)
    if asked.table:
        write_table(verdicts)
    killed = sum(verdict.word == "killed" for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} killed")
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
