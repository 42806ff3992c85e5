"""`make mutants`: the share of mutants that the tests notice, by module.

    python -m mutants [--jobs 2] [--sample 30] [--seed 1] [--write] [core/cron.py …]

`--sample` tries so many of each module, chosen at random. `--write` puts the rows into docs/explanation/mutants.md.
"""

import argparse
import importlib.util
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.suites import EQUIVALENT, SUITES, tests_of
from mutants.trial import INVALID, KILLED, SURVIVED, TIMEOUT, of_module

REPORT = Path(__file__).parents[2] / "docs" / "explanation" / "mutants.md"
WANTED = 0.9  # of those tried in each module
_RULE = "|---|---|---|---|---|---|\n"
_ROW = re.compile(r"^(?=\| `([\w/]+\.py)`)(.*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Score:
    module: str
    all: int
    tried: int
    killed: int
    survivors: list[str]
    equivalent: list[str]

    @property
    def rate(self) -> float:
        """Of those that can be noticed."""
        counted = self.tried - len(self.equivalent)
        return self.killed / counted if counted else 1.0

    @property
    def row(self) -> str:
        tried = str(self.tried) if self.tried == self.all else f"{self.tried} of {self.all}"
        numbers = f"{tried} | {self.killed} | {len(self.survivors)} | {len(self.equivalent)} | {self.rate:.0%}"
        return f"| `{self.module}` | {numbers} |"


def score(module: str, jobs: int, sample: int | None, seed: int) -> Score:
    _, found = of_module(module)
    indices = list(range(len(found)))
    if sample is not None and sample < len(indices):
        indices = sorted(random.Random(f"{seed} {module}").sample(indices, sample))
    command = [sys.executable, "-m", "mutants.trial", module, str(jobs), *map(str, indices), "--", *tests_of(module)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(ended.stdout + ended.stderr)
    verdicts = {int(index): verdict for index, verdict in json.loads(ended.stdout.splitlines()[-1]).items()}
    killed = [index for index, verdict in verdicts.items() if verdict in (KILLED, TIMEOUT)]
    unnoticed = [index for index, verdict in sorted(verdicts.items()) if verdict == SURVIVED]
    known = EQUIVALENT.get(module, {})
    return Score(
        module,
        all=len(found),
        tried=sum(verdict != INVALID for verdict in verdicts.values()),
        killed=len(killed),
        survivors=[f"{found[i].line}: {found[i].name}" for i in unnoticed if found[i].name not in known],
        equivalent=[found[i].name for i in unnoticed if found[i].name in known],
    )


def write(scores: Sequence[Score]) -> None:
    """Replaces the rows of these modules, or adds them; the table has the order of the suites."""
    head, rule, rest = REPORT.read_text().partition(_RULE)
    old = {row[1]: row[2] for row in _ROW.finditer(rest)}
    rows = old | {one.module: one.row for one in scores}
    REPORT.write_text(head + rule + "".join(f"{rows[one]}\n" for one in SUITES if one in rows) + _ROW.sub("", rest))


def main() -> int:
    reader = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    reader.add_argument("modules", nargs="*", metavar="MODULE", help=f"default: {', '.join(SUITES)}")
    reader.add_argument("--jobs", type=int, default=2)
    reader.add_argument("--sample", type=int)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--write", action="store_true")
    given = reader.parse_args()
    scores = []
    for module in given.modules or SUITES:
        one = score(module, given.jobs, given.sample, given.seed)
        scores.append(one)
        print(one.row, flush=True)
        for survivor in one.survivors:
            print(f"    {module}:{survivor}", flush=True)
    if given.write:
        write(scores)
    weak = [one.module for one in scores if one.rate < WANTED]
    if weak:
        print(f"fewer than {WANTED:.0%} were noticed in: {', '.join(weak)}")
    others = not given.modules and importlib.util.find_spec("mutants.sql.__main__") is not None
    of_sql = subprocess.run([sys.executable, "-m", "mutants.sql"], check=False).returncode if others else 0
    return 1 if weak or of_sql else 0


if __name__ == "__main__":
    sys.exit(main())
