"""The documentation is correct: its examples run, its commands exist, its tables are up to date.

- A Python or TOML block that begins with `# name.py` is that file; `# name.py (at the end)` is appended to it.
- Other Python blocks are cells: those of a page run one after the other in one event loop, so `await` may stand alone.
- `sh` blocks of the pages in TOURS are run line by line; a worker runs until the next one, or the end of the page.
- `<!-- not run: why -->` before a block leaves it out, `<!-- fails: 2 -->` gives its exit code.
- postgresql://localhost/shop stands for an empty database of the test's own.
"""

import ast
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest

import dutiful
from databases import Postgres
from dutiful.operator.explain import Why

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
TOURS = [ROOT / "README.md", DOCS / "tutorial.md"]
GUIDES = sorted((DOCS / "guides").glob("*.md"))
POSTGRES = "//localhost/shop"

BLOCK = re.compile(r"(?:<!-- (not run|fails): ([^\n]*?) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w/.-]+\.\w+)( \(at the end\))?$")
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
# Each cell is compiled under its page's name and padded, so that a traceback points into the page.
CELLS = """
import ast, asyncio, sys
async def run(page, cells):
    names = {"__name__": "cells"}
    for line, text in cells:
        code = compile("\\n" * line + text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, names)
        if waiting is not None:
            await waiting
asyncio.run(run(*ast.literal_eval(sys.stdin.read())))
"""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    line: int
    note: str | None
    detail: str

    @property
    def file(self) -> re.Match[str] | None:
        return FILE.match(self.text.partition("\n")[0])

    @property
    def lines(self) -> list[str]:
        """Commands, those that are continued joined, without comments."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in (part.partition("  #")[0].strip() for part in joined.splitlines()) if line]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        note, detail, language, body = found.groups()
        yield Block(language, body, text.count("\n", 0, found.start(4)), note, detail or "")


class Desk:
    """An empty directory, a shell's environment, and the worker that runs there."""

    def __init__(self, folder: Path, address: Callable[[], str]) -> None:
        self.folder = folder
        self._address = address
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = kept | {"PATH": path, "NO_COLOR": "1"}
        self._worker: subprocess.Popen[bytes] | None = None

    def fill_in(self, text: str) -> str:
        return text.replace(POSTGRES, self._address().partition(":")[2]) if POSTGRES in text else text

    def write(self, block: Block, name: re.Match[str]) -> None:
        with (self.folder / name[1]).open("a" if name[2] else "w") as file:
            file.write(self.fill_in(block.text))

    def run_cells(self, page: Path, cells: list[tuple[int, str]]) -> None:
        done = subprocess.run(
            [sys.executable, "-c", CELLS],
            input=repr((str(page), cells)),
            cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"

    def run_line(self, line: str, expected: int) -> None:
        line = self.fill_in(line)
        match shlex.split(line):
            case ["pip" | "make" | "git", *_]:
                return
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                self._environment[name] = value
            case ["dutiful", "worker", *options]:
                self.start_worker(options)
            case _:
                done = subprocess.run(
                    ["sh", "-c", line],
                    cwd=self.folder,
                    env=self._environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}\n{self._log()}"
                assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"

    def start_worker(self, options: list[str]) -> None:
        self.stop_worker()
        with (self.folder / "worker.log").open("wb") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "dutiful.cli", "worker", *options],
                cwd=self.folder, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while not re.search(r"worker \d+ on ", self._log()):
            assert self._worker.poll() is None and time.monotonic() < deadline, self._log()
            time.sleep(0.02)

    def stop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0, self._log()

    def _log(self) -> str:
        log = self.folder / "worker.log"
        return log.read_text() if log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.stop_worker()
        elif self._worker is not None:
            self._worker.kill()
            self._worker.wait()


@pytest.fixture
def bare_url(postgres18: Postgres) -> Iterator[str]:
    """A database of its own, not migrated: the examples make tables there."""
    name = f"docs_{uuid4().hex}"
    yield postgres18.create_database(name)
    postgres18.drop_database(name)


@pytest.fixture
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    with Desk(tmp_path, lambda: str(request.getfixturevalue("bare_url"))) as desk:
        yield desk


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", TOURS, ids=_named)
def test_a_tour_works_when_it_is_followed(page: Path, desk: Desk) -> None:
    for block in blocks(page):
        if block.note == "not run":
            continue
        if name := block.file:
            desk.write(block, name)
        elif block.language == "sh":
            for line in block.lines:
                desk.run_line(line, int(block.detail) if block.note == "fails" else 0)
        else:
            assert block.language in ("text", "toml"), f"{page}:{block.line} would not be run"
    desk.stop_worker()


@pytest.mark.parametrize("page", GUIDES, ids=_named)
def test_the_examples_of_a_guide_run(page: Path, desk: Desk) -> None:
    cells = []
    for block in blocks(page):
        if block.note == "not run" or block.language != "python":
            continue
        if name := block.file:
            desk.write(block, name)
        else:
            cells.append((block.line, desk.fill_in(block.text)))
    if POSTGRES in page.read_text():
        desk.run_line(f"dutiful migrate --database-url postgresql:{POSTGRES}", 0)
    desk.run_cells(page, cells)


def test_the_sql_of_the_reference_runs(pg18_url: str) -> None:
    run = [
        block for block in blocks(DOCS / "reference" / "sql.md") if block.language == "sql" and block.note != "not run"
    ]
    assert run != []
    with psycopg.connect(pg18_url) as connection:
        for block in run:
            connection.execute(block.text.encode())
        connection.rollback()


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_every_block_can_be_read(page: Path) -> None:
    assert page.read_text().count("\n```") % 2 == 0
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_every_command_exists_with_its_options(page: Path, generate: ModuleType) -> None:
    verbs = dict(generate._verbs(generate.build(None), "dutiful"))
    groups = {path.rpartition(" ")[0] for path in verbs}
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.lines]
    lines += [" ".join(span.split()) for span in re.findall(r"`(dutiful [^`]+)`", page.read_text())]
    for line in lines:
        words = re.split(r" [|>&] ", line.removeprefix("$ "))[0].split()
        if words[0] != "dutiful" or words[1].startswith("-"):
            continue
        path = next((" ".join(words[:n]) for n in (3, 2) if " ".join(words[:n]) in verbs), " ".join(words[:2]))
        assert path in verbs or path in groups, f"{page}: there is no {path!r}, as in {line!r}"
        verb = next((word for word in words[2:3] if re.fullmatch(r"[a-z][a-z-]*", word)), None)
        assert path not in groups or verb is None, f"{page}: {path!r} has no verb {verb!r}, as in {line!r}"
        if path in verbs:
            rows = [generate._row(name, info, verbs[path]) for name, info in generate._parameters(verbs[path])]
            known = {"--app", "--database-url", "--help", *re.findall(r"`(--[\w-]+)", " ".join(rows))}
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= known, f"{page}: {path} has no {given - known}, as in {line!r}"


def test_the_generated_parts_are_up_to_date(generate: ModuleType) -> None:
    stale = [_named(page) for page in generate.stale()]

    assert stale == [], "run `python docs/generate.py`"


def test_each_generated_part_stands_in_a_page(generate: ModuleType) -> None:
    found = {part[1] for page in PAGES for part in generate.PART.findall(page.read_text())}

    assert found == set(generate.PARTS)


def test_every_requirement_that_a_test_names_has_a_sentence(generate: ModuleType) -> None:
    unknown = generate.marked().keys() - generate.sentences().keys()

    assert unknown == set(), "say in docs/requirements.toml what they ask for"


def test_every_requirement_with_a_sentence_has_a_test(generate: ModuleType) -> None:
    unproven = generate.sentences().keys() - generate.marked().keys()

    assert unproven == set(), "no test has a req mark with these IDs of docs/requirements.toml"


def test_every_requirement_stands_in_its_family(generate: ModuleType) -> None:
    assert {requirement[0] for requirement in generate.sentences()} == set(generate.families())
    for letter, family in generate.families().items():
        found = [requirement for _, sentences in generate._subjects(family) for requirement in sentences]
        assert found == sorted(found, key=lambda requirement: int(requirement[1:])), letter
        assert {requirement[0] for requirement in found} == {letter}


def links(page: Path) -> list[tuple[str, str]]:
    """The target and the anchor of each link outside code."""
    return LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL))


def test_links_and_anchors_are_found() -> None:
    found = links(ROOT / "CONTRIBUTING.md")

    assert ("docs/explanation/journey.md", "") in found and ("", "a-change-of-the-schema") in found


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        if target.startswith(("http:", "https:")):
            continue
        file = (page.parent / target) if target else page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {_slug(heading) for heading in headings}, f"{page}: {target}#{anchor}"


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_a_fresh_folder_can_begin_with_the_first_line_of_the_admin_guide(desk: Desk) -> None:
    first = next(block for block in blocks(DOCS / "guides" / "admin-api.md") if block.language == "sh")

    desk.run_line(first.lines[0], 0)


def test_every_action_is_in_the_table_of_the_audit_guide() -> None:
    listed: set[str] = set()
    for row in re.findall(r"^\|(.*)\| .*\|$", (DOCS / "guides" / "audit.md").read_text(), re.MULTILINE):
        noun = ""
        for before, verb in re.findall(r"`(\w*)\.(\w+)`", row):
            noun = before or noun
            listed.add(f"{noun}.{verb}")
    modules = [ast.parse(file.read_text()) for file in (ROOT / "src" / "dutiful" / "operator").rglob("*.py")]
    texts = {
        node.value
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    actions = {text for text in texts if re.fullmatch(r"(?!dutiful\.)[a-z_]+\.[a-z_]+", text)}
    assert "job.enqueue" in actions
    assert actions - listed == set()


def test_operating_lists_every_reason_to_wait_and_every_logger() -> None:
    page = (DOCS / "guides" / "operating.md").read_text()
    codes = {code for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}
    source = "".join(file.read_text() for file in (ROOT / "src" / "dutiful").rglob("*.py"))
    loggers = set(re.findall(r'getLogger\("(dutiful\.\w+)"\)', source))

    assert {why.value for why in Why} - codes == set()
    assert "dutiful.worker" in loggers
    assert [name for name in sorted(loggers) if f"`{name}`" not in page] == []


def test_every_error_is_importable_unless_its_page_says_otherwise(generate: ModuleType) -> None:
    table = "\n".join(generate.error_classes())
    sentence = re.search(
        r"^All are importable from `dutiful`, except (.*)$", (DOCS / "reference" / "errors.md").read_text(), re.M
    )
    assert sentence is not None

    missing = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) - set(dutiful.__all__)
    assert missing == set(re.findall(r"`(\w+)`", sentence[1]))


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join((DOCS / "reference" / page).read_text() for page in ("python.md", "errors.md"))

    assert [name for name in dutiful.__all__ if not re.search(rf"\b{name}\b", reference)] == []


def test_every_member_of_a_context_is_in_the_reference_or_its_guide() -> None:
    pages = "".join((DOCS / page).read_text() for page in ("reference/python.md", "guides/jobs.md"))

    members = {name for name in dir(dutiful.Context) if not name.startswith("_")}
    assert "spawn" in members
    assert [name for name in sorted(members) if not re.search(rf"\b{name}\b", pages)] == []


def test_every_subject_of_an_operator_is_in_the_reference_with_acts_that_exist() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    rows = dict(re.findall(r"^\| `operator\.(\w+)` \|(.*)\|$", page, re.MULTILINE))
    operator = vars(dutiful.Operator(Mock()))

    assert set(rows) == set(operator) - {"actor"}
    for subject, row in rows.items():
        assert [name for name in re.findall(r"`(\w+)`", row) if not hasattr(operator[subject], name)] == [], subject


PUBLIC = {"dutiful", "dutiful.arq_worker", "dutiful.channels", "dutiful.testing", "dutiful.web"}
INTERNAL = re.compile(r"^\s*(?:from|import) (dutiful(?:\.\w+)*)\b", re.MULTILINE)


@pytest.mark.parametrize("page", [*TOURS, *GUIDES, *sorted((ROOT / "examples").rglob("*.py"))], ids=_named)
def test_what_users_read_imports_only_what_is_public(page: Path) -> None:
    texts = (
        [page.read_text()] if page.suffix == ".py" else [one.text for one in blocks(page) if one.language == "python"]
    )

    assert {name for text in texts for name in INTERNAL.findall(text)} <= PUBLIC


WORD = re.compile(r"^\| ([\w ]+) \| .+ \| \[[^]]+\]\(([^)]+)\)((?:,? `\w+`)+) \|$", re.MULTILINE)


def test_each_word_of_the_glossary_is_defined_in_its_file() -> None:
    page = DOCS / "explanation" / "glossary.md"
    words = {word: (page.parent / file, names) for word, file, names in WORD.findall(page.read_text())}
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ") and "| file |" not in line]

    assert len(words) == len(rows) >= 40, "a row is a word, its meaning, and a file with its names; no word twice"
    for word, (file, names) in words.items():
        text = file.read_text()
        missing = [name for name in re.findall(r"\w+", names) if not re.search(rf"\b{name}\b", text)]
        assert missing == [], f"{word}: {file} does not name {missing}"


def test_the_journey_of_a_job_names_at_most_thirty_files() -> None:
    page = DOCS / "explanation" / "journey.md"
    files = {file for file, _ in LINK.findall(page.read_text()) if "/src/" in file}

    assert "../../src/dutiful/kind.py" in files
    assert [file for file in sorted(files) if not (page.parent / file).is_file()] == []
    assert len(files) <= 30


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
