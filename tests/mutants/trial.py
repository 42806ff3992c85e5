"""Runs the tests of one module against its mutants: `python -m mutants.trial MODULE JOBS INDEX… -- TEST…`.

Imports and collects once, then forks for each mutant and exchanges the code of the functions that it changes. A mutant
outside of functions, such as a constant, has to be imported, and one of a function that the import calls, too: it is
forked from a process without Dutiful.
"""

import ast
import gc
import importlib
import importlib.abc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.main import pytest_runtestloop as run_tests
from hypothesis import HealthCheck, Phase, settings

from mutants.mutations import Mutant, mutants

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "dutiful"
OPTIONS = ["-x", "-q", "-s", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
# One failing example is enough: it is not made smaller.
settings.register_profile(
    "mutants",
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
LEAST_SECONDS, TIMES = 20.0, 8.0  # what a mutant may take: so many times what the tests take without one
IMPORT_SECONDS = 60.0
KILLED, SURVIVED, TIMEOUT, INVALID = "killed", "survived", "timeout", "invalid"


def of_module(module: str) -> tuple[ast.Module, list[Mutant]]:
    tree = ast.parse((SOURCE / module).read_text())
    return tree, mutants(tree)


def compiled(module: str, index: int) -> CodeType:
    """The module with one mutant in it."""
    tree, found = of_module(module)
    found[index].apply()
    code: CodeType = compile(ast.fix_missing_locations(tree), str(SOURCE / module), "exec")
    return code


class Forks:
    """Child processes, each of which decides about one mutant by its exit code: 0 if it survives."""

    def __init__(self, jobs: int, seconds: float) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self._running: dict[int, tuple[int, float]] = {}  # by pid: the mutant, and when it must have ended
        self.verdicts: dict[int, str] = {}

    def start(self, index: int, decide: Callable[[], int]) -> None:
        """Waits until there is room for it."""
        while len(self._running) >= self._jobs:
            self._reap()
        self._running[fork(decide)] = (index, time.monotonic() + self._seconds)

    def wait(self) -> None:
        while self._running:
            self._reap()

    def _reap(self) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            index, _ = self._running.pop(pid)
            self.verdicts[index] = SURVIVED if status == 0 else KILLED
            return
        for late, (index, until) in list(self._running.items()):
            if time.monotonic() > until:
                os.killpg(late, signal.SIGKILL)
                os.waitpid(late, 0)
                self.verdicts[index] = TIMEOUT
                del self._running[late]
        time.sleep(0.005)


def fork(decide: Callable[[], int]) -> int:
    """Runs it in a silent child, in a process group of its own; returns the child's pid."""
    pid = os.fork()
    if pid:
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    code = 1
    exit_now = os._exit  # a test that fails may leave another one in its place
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        code = decide()
    finally:
        exit_now(code)


class Trial:
    """A pytest plugin that runs the collected tests once for each mutant, in processes forked from this one."""

    def __init__(self, module: str, indices: Sequence[int], jobs: int) -> None:
        self._module = module
        self._indices = indices
        self._jobs = jobs
        self.seconds = 0.0
        self.imported: list[int] = []
        self.verdicts: dict[int, str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        began = time.monotonic()
        _, status = os.waitpid(fork(lambda: _run(session, [])), 0)
        if status != 0:
            pytest.exit(f"{self._module}: its tests fail without a mutant, or there are none", returncode=2)
        self.seconds = max(LEAST_SECONDS, TIMES * (time.monotonic() - began))
        path = str(SOURCE / self._module)
        functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
        own = [one for one in functions if one.__code__.co_filename == path]
        forks = Forks(self._jobs, self.seconds)
        tree, found = of_module(self._module)
        called = called_by_import(tree)
        for index in self._indices:
            try:
                changes = _changed(own, compiled(self._module, index))
            except (SyntaxError, ValueError):
                self.verdicts[index] = INVALID
                continue
            if changes and found[index].function.partition(".")[0] not in called:
                forks.start(index, lambda changes=changes: _run(session, changes))  # type: ignore[misc]
            else:
                self.imported.append(index)
        forks.wait()
        self.verdicts |= forks.verdicts
        return True


def _run(session: pytest.Session, changes: list[tuple[FunctionType, CodeType]]) -> int:
    for function, changed in changes:
        function.__code__ = changed
    run_tests(session)
    return 0 if session.testscollected and not session.testsfailed else 1


def _changed(own: list[FunctionType], code: CodeType) -> list[tuple[FunctionType, CodeType]]:
    """The functions that a mutant changes, each with its new code; none if only an import would show the mutant."""
    new = {(one.co_qualname, one.co_firstlineno): one for one in _codes(code)}
    found = []
    for function in own:
        old = function.__code__
        changed = new.get((old.co_qualname, old.co_firstlineno))
        if changed is not None and changed != old:
            if changed.co_freevars != old.co_freevars:
                return []
            found.append((function, changed))
    return found


def called_by_import(tree: ast.Module) -> set[str]:
    """The functions of a module that its import calls, also by way of others."""
    own = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    called: set[str] = set()
    rest = _calls([one for one in tree.body if not isinstance(one, ast.FunctionDef)], inside=False)
    while rest:
        name = rest.pop()
        if name in own and name not in called:
            called.add(name)
            rest |= _calls([own[name]], inside=True)
    return called


def _calls(nodes: Sequence[ast.AST], *, inside: bool) -> set[str]:
    """The names that are called; `inside`: in the bodies of functions, too."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        if inside or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found |= _calls(list(ast.iter_child_nodes(node)), inside=inside)
    return found


def _codes(code: CodeType) -> list[CodeType]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [*inner, *(deeper for one in inner for deeper in _codes(one))]


class MutantLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with a mutant in it, in the place of the real one."""

    def __init__(self, module: str, index: int) -> None:
        self._path = SOURCE / module
        self._name = "dutiful." + module.removesuffix(".py").replace("/", ".")
        self._code = compiled(module, index)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = ModuleSpec(name, self, origin=str(self._path))
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _import_and_test(module: str, index: int, tests: Sequence[str]) -> int:
    sys.meta_path.insert(0, MutantLoader(module, index))
    return 0 if pytest.main([*OPTIONS, *tests]) == 0 else 1


def _preload(names: Sequence[str]) -> None:
    """Imports what the tests of a mutant need besides Dutiful, so that each fork has it."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def _foreign_modules() -> list[str]:
    """What is imported here from elsewhere."""
    ours = (str(TESTS), str(SOURCE))
    found = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [name for name, path in found if path and not path.startswith(ours) and not name.startswith("_")]


def main(module: str, jobs: int, indices: Sequence[int], tests: Sequence[str], report: Path) -> int:
    def in_functions() -> int:
        trial = Trial(module, indices, jobs)
        code = int(pytest.main([*OPTIONS, *tests], plugins=[trial]))
        found = [trial.verdicts, trial.imported, trial.seconds, _foreign_modules()]
        report.write_text(json.dumps(found))
        return code

    _, status = os.waitpid(fork(in_functions), 0)
    if os.waitstatus_to_exitcode(status) not in (0, int(pytest.ExitCode.NO_TESTS_COLLECTED)):
        sys.exit(f"{module}: its tests cannot be run, or fail without a mutant: {' '.join(tests)}")
    verdicts, imported, seconds, foreign = json.loads(report.read_text())
    _preload(foreign if imported else [])
    forks = Forks(jobs, seconds + IMPORT_SECONDS)
    for index in imported:
        forks.start(index, lambda index=index: _import_and_test(module, index, tests))  # type: ignore[misc]
    forks.wait()
    print(json.dumps({**verdicts, **forks.verdicts}))
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        split = sys.argv.index("--")
        numbers = [int(one) for one in sys.argv[3:split]]
        sys.exit(main(sys.argv[1], int(sys.argv[2]), numbers, sys.argv[split + 1 :], Path(folder, "report.json")))
