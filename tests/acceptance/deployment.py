"""The files under `deploy/`, read and checked by the tools of their own field."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from databases import missing

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/dutiful"
DOCVERSE = DEPLOY / "helm/docverse.yaml"
VERSIONS = ("1.27", kubernetes_validate.latest_version())  # the oldest that the chart takes, and the newest known


def tool(name: str) -> str:
    """A program that a wheel has put beside the interpreter, or the system's own."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or missing(f"{name} is not installed: pip install -e '.[dev]'")


def run(name: str, *args: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([tool(name), *map(str, args)], capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done


def helm(verb: str, *args: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    release = ("docverse",) if verb == "template" else ()
    return run("helm", verb, *release, CHART, "--values", DOCVERSE, *args, ok=ok)


def rendered(*args: str | Path) -> list[dict[str, Any]]:
    """What the chart makes of Docverse's values, each document valid for Kubernetes."""
    documents = [found for found in yaml.safe_load_all(helm("template", *args).stdout) if found]
    for document in documents:
        check(document)
    return documents


def check(document: Mapping[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def by_kind(documents: Sequence[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in documents if found["kind"] == kind}


@dataclass(frozen=True, slots=True)
class Command:
    """What the only container of a pod runs, with the variables that it is given as they are."""

    program: str
    args: list[str]
    env: dict[str, str]

    @classmethod
    def of(cls, pod: Mapping[str, Any], **fields: str) -> "Command":
        """`fields` are the values of variables that Kubernetes fills in; $(NAME) stands for a variable."""
        (container,) = pod["containers"]
        (program,) = container["command"]
        env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry} | fields
        names = {entry["name"] for entry in container["env"]}

        def expanded(text: str) -> str:
            assert set(re.findall(r"(?<!\$)\$\((\w+)\)", text)) <= names, f"{text}: Kubernetes would leave it as it is"
            return re.sub(r"(?<!\$)\$\((\w+)\)", lambda match: env[match[1]], text).replace("$$(", "$(")

        return cls(program, [expanded(text) for text in container["args"]], env)


def enqueue_pod(cron_job: Mapping[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return list(json.loads(self.text)) if self.text.startswith("[") else self.text.split()


def containerfile() -> list[list[Instruction]]:
    """The instructions of each stage."""
    stages: list[list[Instruction]] = []
    for instruction in _instructions((DEPLOY / "Containerfile").read_text()):
        if instruction.name == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(instruction)
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield Instruction(name, rest.strip())
