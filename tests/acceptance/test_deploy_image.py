"""The image and the compose file: linted, and their very commands run from the wheel that the image installs.

There is no container engine in a test, so a folder and a virtual environment stand for the image: they get the files
that its instructions copy and the wheel that they build, and dependencies from this environment, not the network.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from deployment import DEPLOY, ROOT, Command, by_kind, containerfile, enqueue_pod, rendered, run

from databases import Postgres
from faults import Process, until
from servers import free_port

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
BUILD, FINAL = containerfile()


@dataclass(frozen=True, slots=True)
class Image:
    """What the image would contain."""

    app: Path
    programs: Path
    env: dict[str, str]

    def start(self, args: list[str], log: Path, **env: str) -> Process:
        return Process([str(self.programs / "dutiful"), *args], self._environment(env), log, folder=self.app)

    def run(self, args: list[str], **env: str) -> str:
        command = [str(self.programs / "dutiful"), *args]
        done = subprocess.run(command, cwd=self.app, env=self._environment(env), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _environment(self, env: dict[str, str]) -> dict[str, str]:
        return {"PATH": f"{self.programs}:{os.defpath}", **self.env, **env}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    source, app, wheels, venv = (folder / name for name in ("src", "app", "wheels", "venv"))
    defaults = dict(i.text.split("=", 1) for i in [*BUILD, *FINAL] if i.name == "ARG")
    for copied in (instruction.words for instruction in BUILD if instruction.name == "COPY"):
        _copy(copied, source)
    (wheel,) = (instruction.text for instruction in BUILD if instruction.name == "RUN")
    command = [defaults["EXTRAS"].join(word.split("${EXTRAS}")) for word in shlex.split(wheel)]
    offline = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    words = [str(wheels) if word == "/wheels" else word for word in command[1:]]
    subprocess.run([sys.executable, "-m", "pip", *words, *offline], cwd=source, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    # Only its folder: the link to this checkout that it also has is not followed from here.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", *offline[1:-1]]
    subprocess.run([*pip, *map(str, wheels.glob("*.whl"))], check=True)
    for copied in (instruction.words for instruction in FINAL if instruction.name == "COPY"):
        _copy([word.replace("${APP}", defaults["APP"]) for word in copied], app)
    pairs = (pair.split("=", 1) for instruction in FINAL if instruction.name == "ENV" for pair in instruction.words)
    return Image(app, venv / "bin", dict(pairs))


def _copy(words: list[str], to: Path) -> None:
    *sources, target = words
    for name in sources:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / target, dirs_exist_ok=True)
        else:
            (to / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / target)


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    name = f"image_{os.getpid()}"
    yield postgres18.create_database(name)
    postgres18.drop_database(name)


@pytest.mark.req("L69")
def test_the_containerfile_is_clean_for_hadolint() -> None:
    assert run("hadolint", "--no-color", DEPLOY / "Containerfile").stdout == ""


@pytest.mark.req("L69")
def test_one_image_has_worker_as_its_command_and_every_other_as_an_argument() -> None:
    last = {instruction.name: instruction for instruction in FINAL}
    assert (last["ENTRYPOINT"].words, last["CMD"].words) == (["dutiful"], ["worker"])
    user, _, group = last["USER"].text.partition(":")
    assert int(user) > 0 and int(group) > 0, "a number, so that Kubernetes can see that it is not root"
    assert all((ROOT / word).exists() for i in BUILD if i.name == "COPY" for word in i.words[:-1])


def test_the_compose_file_is_valid_and_has_the_roles_of_one_image() -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    services = COMPOSE["services"]
    roles = {name: found for name, found in services.items() if found["image"] == "dutiful-app"}
    assert set(services) - set(roles) == {"postgres", "redis"}
    assert {name: found["command"][0] for name, found in roles.items()} == {
        "migrate": "migrate", "server": "server", "worker": "worker",
    }  # fmt: skip
    build = roles["worker"]["build"]
    context = DEPLOY / build["context"]
    assert context.resolve() == ROOT and (context / build["dockerfile"]).exists()
    for name, found in roles.items():
        assert set(found["depends_on"]) <= set(services), name
    grace = roles["worker"]["command"][roles["worker"]["command"].index("--grace") + 1]
    assert int(roles["worker"]["stop_grace_period"].rstrip("s")) > int(grace.rstrip("s"))
    assert {name for name, found in services.items() if found.get("restart") != "unless-stopped"} == {"migrate"}


def test_migrate_waits_until_postgres_answers_where_it_connects() -> None:
    """On its socket it answers already while the image prepares a new database."""
    services = COMPOSE["services"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    check = services["postgres"]["healthcheck"]["test"]
    assert check[:2] == ["CMD", "pg_isready"] and check[check.index("--host") + 1] == "127.0.0.1"


@pytest.mark.req("L68", "L69", "D106", "D107")
async def test_the_commands_of_image_compose_and_chart_work_together(
    image: Image, database: str, empty_redis: str, tmp_path: Path
) -> None:
    services = COMPOSE["services"]
    env = {"DUTIFUL_DATABASE_URL": database, "DUTIFUL_REDIS_URL": empty_redis}
    assert set(env) == set(services["worker"]["environment"]) and "--arq" in services["worker"]["command"]
    port = free_port()
    server = [str(port) if word == "8000" else word for word in services["server"]["command"]]
    cron = Command.of(
        enqueue_pod(by_kind(rendered(), "CronJob")["docverse-lifecycle-eval"]),
        JOB_NAME="docverse-lifecycle-eval-29384940",
    )
    (image.app / "jobs.py").write_text(
        (image.app / "jobs.py").read_text()
        + "\n\n@app.job\nasync def lifecycle_eval() -> str:\n    return 'evaluated'\n"
    )

    image.run(services["migrate"]["command"], **env)
    processes = [image.start(server, tmp_path / "server", **env)]
    try:
        enqueued = image.run(cron.args, **env).strip()
        await until(lambda: _answers(f"http://127.0.0.1:{port}/readyz"), "the server is ready")
        shown = _shown(image, enqueued, env)
        assert shown["state"] == "ready" and shown["backend_job_id"], "delivered; but the server runs no job"
        processes.append(image.start(services["worker"]["command"], tmp_path / "worker", **env))
        greeting = image.run(["enqueue", "greet", "name=Ada", "--wait", "--timeout", "60s"], **env)
        assert greeting.splitlines()[1] == '"Hello, Ada"'
        assert image.run(cron.args, **env).strip() == enqueued
        assert _shown(image, enqueued, env)["result"] == "evaluated"
        for process in processes:
            process.signal(signal.SIGTERM)
        assert [await process.ended() for process in processes] == [0, 0], [found.output for found in processes]
    finally:
        for process in processes:
            process.close()


def _shown(image: Image, job: str, env: dict[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(image.run(["jobs", "show", job, "--json"], **env))
    return shown


async def _answers(url: str) -> bool:
    async with httpx2.AsyncClient() as http:
        try:
            return (await http.get(url, timeout=5)).status_code == 200
        except httpx2.TransportError:
            return False
