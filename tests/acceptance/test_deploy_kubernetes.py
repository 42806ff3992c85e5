"""CronJobs and the chart: valid for Kubernetes, rendered by Helm itself, and their commands do what they should."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Project
from deployment import DEPLOY, Command, by_kind, check, enqueue_pod, helm, rendered

from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter

SCHEDULES = {
    "lifecycle_eval": "0 3 * * *",
    "git_ref_audit": "0 4 * * *",
    "purgatory_cleanup": "0 5 * * *",
    "credential_reencrypt": "0 2 * * 0",
}
JOBS = "from dutiful import Dutiful\n\napp = Dutiful()\n" + "".join(
    f"\n@app.job\nasync def {kind}(limit: int = 0, note: str = '') -> None: ...\n" for kind in SCHEDULES
)


def manifest(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / f"kubernetes/{kind.replace('_', '-')}.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return rendered()


@pytest.fixture
def project(tmp_path: Path, pg18_url: str) -> Project:
    (tmp_path / "jobs.py").write_text(JOBS)
    return Project(tmp_path, pg18_url)


@pytest.mark.req("D108", "D109", "D110", "D111", "D112")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_each_periodic_kind_has_a_valid_cron_job(kind: str, documents: list[dict[str, Any]]) -> None:
    job, of_chart = manifest(kind), by_kind(documents, "CronJob")[f"docverse-{kind.replace('_', '-')}"]

    check(job)
    assert {path.stem for path in (DEPLOY / "kubernetes").iterdir()} == {name.replace("_", "-") for name in SCHEDULES}
    for spec in (job["spec"], of_chart["spec"]):
        assert (spec["schedule"], spec["timeZone"]) == (SCHEDULES[kind], "Etc/UTC")
        pod = spec["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["restartPolicy"] == "OnFailure"
        command = Command.of(pod, JOB_NAME="docverse-29384940")
        assert (command.program, command.args[:2]) == ("dutiful", ["enqueue", kind])
    assert Command.of(enqueue_pod(job), JOB_NAME="x").args == Command.of(enqueue_pod(of_chart), JOB_NAME="x").args


@pytest.mark.req("D105", "D106", "D107", "D108")
@pytest.mark.parametrize("backend", ["postgres18"])
async def test_a_firing_enqueues_one_job_however_often_its_container_is_started(project: Project, store: Store) -> None:
    for kind in SCHEDULES:
        pod = enqueue_pod(manifest(kind))
        tonight, tomorrow = (Command.of(pod, JOB_NAME=f"docverse-{kind}-{minute}") for minute in (29384940, 29386380))
        answers = [project.run(*command.args) for command in (tonight, tonight, tomorrow)]
        assert [answer.code for answer in answers] == [0, 0, 0], answers
        assert answers[0].out == answers[1].out != answers[2].out

    jobs = await store.queries.jobs(JobFilter())
    assert sorted(job.kind for job in jobs) == sorted([*SCHEDULES] * 2)
    assert {job.state for job in jobs} == {State.READY}


@pytest.mark.req("D113")
def test_frequency_windows_and_suspension_are_values(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        """
cronDefaults: { timeZone: Europe/Helsinki, maintenanceWindows: ["0 1 * * SUN for 4h"] }
cronJobs:
  lifecycle-eval: { schedule: "0 */6 * * *" }
  git-ref-audit: { suspend: true }
  purgatory-cleanup: { enabled: false }
  credential-reencrypt: { args: [--priority, "10"] }
"""
    )
    jobs = by_kind(rendered("--values", values), "CronJob")

    assert set(jobs) == {"docverse-lifecycle-eval", "docverse-git-ref-audit", "docverse-credential-reencrypt"}
    often, suspended = jobs["docverse-lifecycle-eval"]["spec"], jobs["docverse-git-ref-audit"]["spec"]
    assert (often["schedule"], often["timeZone"], often["suspend"]) == ("0 */6 * * *", "Europe/Helsinki", False)
    assert suspended["suspend"] is True
    args = Command.of(enqueue_pod(jobs["docverse-credential-reencrypt"]), JOB_NAME="x").args
    assert args[-4:] == ["--not-during", "0 1 * * SUN for 4h in Europe/Helsinki", "--priority", "10"]
    everything = by_kind(rendered("--set", "cronDefaults.suspend=true"), "CronJob")
    assert [job["spec"]["suspend"] for job in everything.values()] == [True] * 4


@pytest.mark.req("D113")
def test_a_cron_job_may_have_maintenance_windows_of_its_own_or_none(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        """
cronDefaults: { maintenanceWindows: ["0 1 * * SUN for 4h"] }
cronJobs:
  lifecycle-eval: { maintenanceWindows: ["0 9 * * MON-FRI for 8h", "0 0 1 * * for 1d in Europe/Helsinki"] }
  purgatory-cleanup: { maintenanceWindows: [] }
"""
    )
    windows = {}
    for name, job in by_kind(rendered("--values", values), "CronJob").items():
        args = Command.of(enqueue_pod(job), JOB_NAME="x").args
        windows[name] = [value for option, value in pairwise(args) if option == "--not-during"]
    assert windows == {
        "docverse-lifecycle-eval": ["0 9 * * MON-FRI for 8h in Etc/UTC", "0 0 1 * * for 1d in Europe/Helsinki"],
        "docverse-git-ref-audit": ["0 1 * * SUN for 4h in Etc/UTC"],
        "docverse-purgatory-cleanup": [],
        "docverse-credential-reencrypt": ["0 1 * * SUN for 4h in Etc/UTC"],
    }


def test_pods_mount_the_volumes_that_the_values_name(documents: list[dict[str, Any]]) -> None:
    pods = [found["spec"]["template"]["spec"] for found in documents if found["kind"] in ("Deployment", "Job")]
    pods += [enqueue_pod(found) for found in by_kind(documents, "CronJob").values()]
    for pod in pods:
        (container,) = pod["containers"]
        folder = next(entry["value"] for entry in container["env"] if entry["name"] == "DOCVERSE_FOLDER")
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
            "tmp": "/tmp", "docverse": folder,
        }  # fmt: skip
        assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "docverse"]


@pytest.mark.req("D113")
@pytest.mark.parametrize("backend", ["postgres18"])
async def test_a_payload_and_a_window_arrive_as_the_values_have_them(project: Project, store: Store) -> None:
    values = project.folder / "values.yaml"
    values.write_text(
        """
cronDefaults: { maintenanceWindows: ["0 0 1 1 * for 3h in Europe/Helsinki"] }
cronJobs:
  lifecycle-eval: { payload: { limit: 3, note: "it's \\"$(JOB_NAME)\\" {{ .Release.Name }}" } }
"""
    )
    job = by_kind(rendered("--values", values), "CronJob")["docverse-lifecycle-eval"]
    command = Command.of(enqueue_pod(job), JOB_NAME="docverse-lifecycle-eval-29384940")

    assert project.run(*command.args).code == 0

    (stored,) = await store.queries.jobs(JobFilter())
    assert stored.payload == {"limit": 3, "note": 'it\'s "$(JOB_NAME)" {{ .Release.Name }}'}


@pytest.mark.req("L68", "L69")
def test_the_chart_has_workers_a_server_and_a_migration_of_one_image(documents: list[dict[str, Any]]) -> None:
    deployments, jobs = by_kind(documents, "Deployment"), by_kind(documents, "Job")
    pods = {name: found["spec"]["template"]["spec"] for name, found in (deployments | jobs).items()}

    assert set(pods) == {"docverse-worker-default", "docverse-server", "docverse-migrate"}
    assert {pod["containers"][0]["image"] for pod in pods.values()} == {"registry.example.org/docverse:1.0.0"}
    verbs = {name.split("-")[1]: Command.of(pod).args[0] for name, pod in pods.items()}
    assert verbs == {"worker": "worker", "server": "server", "migrate": "migrate"}
    worker = pods["docverse-worker-default"]
    grace = Command.of(worker).args[Command.of(worker).args.index("--grace") + 1]
    assert worker["terminationGracePeriodSeconds"] > float(grace.rstrip("s"))
    (service,) = by_kind(documents, "Service").values()
    assert (
        service["spec"]["selector"].items()
        <= deployments["docverse-server"]["spec"]["template"]["metadata"]["labels"].items()
    )
    for pod in pods.values():
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
        secrets = [entry["valueFrom"]["secretKeyRef"] for entry in pod["containers"][0]["env"] if "valueFrom" in entry]
        assert {"name": "docverse", "key": "database-url"} in secrets


def test_workers_can_be_scaled_apart(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        'workers: { default: null, mail: { replicas: 1, processes: 2, grace: 60, args: [--lane, "mail=20:mail"] } }'
    )

    deployments = by_kind(rendered("--values", values, "--set", "server.enabled=false"), "Deployment")

    (worker,) = deployments.values()
    pod = worker["spec"]["template"]["spec"]
    expected = ["worker", "--arq", "--processes", "2", "--grace", "60s", "--lane", "mail=20:mail"]
    assert Command.of(pod).args == expected
    (without,) = by_kind(
        rendered("--values", values, "--set", "server.enabled=false,redis.secret.name="), "Deployment"
    ).values()
    plain = Command.of(without["spec"]["template"]["spec"])
    assert "--arq" not in plain.args and "DUTIFUL_REDIS_URL" not in str(without)
    assert pod["terminationGracePeriodSeconds"] == 75


def test_the_chart_is_clean_for_helm() -> None:
    helm("lint", "--strict", "--kube-version", "1.27")


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("image.tag=", "image.tag"),
        ("app=jobs", "app"),
        ("database.secret.name=", "database.secret.name"),
        ("cronJobs.lifecycle-eval.schedule=daily", "cronJobs.lifecycle-eval.schedule"),
        ("cronJobs.lifecycle-eval.kind=null", "cronJobs.lifecycle-eval.kind"),
        ("cronJobs.lifecycle-eval.supsend=true", "supsend is not allowed"),
        ("cronJobs.Lifecycle.kind=x", "Lifecycle"),
        ("cronDefaults.maintenanceWindows={nightly}", "cronDefaults.maintenanceWindows.0"),
        ("cronJobs.lifecycle-eval.maintenanceWindows={nightly}", "cronJobs.lifecycle-eval.maintenanceWindows.0"),
        ("volumeMounts[1].name=docverse", "volumeMounts.1"),
        ("cronDefaults.uniqueFor=a while", "cronDefaults.uniqueFor"),
        ("workers.default.processes=0", "workers.default.processes"),
        ("server.port=80", "server.port"),
        ("unknown=1", "unknown is not allowed"),
        (f"cronJobs.{'x' * 60}.kind=x,cronJobs.{'x' * 60}.schedule=0 3 * * *", "longer than 52 characters"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(setting: str, reported: str) -> None:
    refused = helm("template", "--set", setting, ok=False)

    assert reported in refused.stderr.replace("Additional property ", "")
