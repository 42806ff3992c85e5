"""A worker in a few lines of psycopg: it uses nothing but the functions of `queues` and `internal`.

`dutiful sql-worker` does the same with leases that it renews, many tasks at once and a clean shutdown. This one shows
that any client can do it, and lets tests stop between two steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

Json = dict[str, Any]
Provider = Callable[[Json], Json]


@dataclass(frozen=True)
class Task:
    task_id: UUID
    task_type: str
    payload: Json


class SmallWorker:
    """Logs in as worker_service_user; `providers` do the work of channels, by task type."""

    def __init__(self, url: str, providers: Mapping[str, Provider]) -> None:
        # Each statement is a transaction: to claim and to run are two.
        self.session = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        self._providers = providers

    def run_all(self) -> int:
        """Runs tasks until none is available; returns how many."""
        count = 0
        while (task := self.dequeue()) is not None:
            self.run(task)
            count += 1
        return count

    def dequeue(self) -> Task | None:
        statement = "select task_id, task_type, payload from queues.dequeue_next_available_task()"
        row = self.session.execute(statement).fetchone()
        assert row is not None
        return None if row["task_id"] is None else Task(**row)

    def run(self, task: Task) -> None:
        """Does what the task asks for, and completes it, whatever came of it."""
        problem = self._call(task) if task.task_type == "db_function" else self._send(task)
        if problem is not None:
            self.session.execute("select queues.fail_task(%s, %s)", [task.task_id, problem])
        self.complete(task)

    def complete(self, task: Task) -> None:
        self.session.execute("select queues.complete_task(%s)", [task.task_id])

    def _call(self, task: Task) -> str | None:
        return self.run_function(task.payload.get("db_function"), task.payload)[0]

    def _send(self, task: Task) -> str | None:
        problem, request = self.run_function(task.payload.get("before_handler"), task.payload)
        if problem is None:
            try:
                answer = self._providers[task.task_type](request)
            except Exception as error:
                problem = f"{task.task_type}: {error}".replace("\0", "\N{REPLACEMENT CHARACTER}")  # no text has a NUL
            else:
                done = {"original_payload": task.payload, "worker_payload": answer}
                return self.run_function(task.payload.get("success_handler"), done)[0]
        failed = {"original_payload": task.payload, "error": problem}
        return self.run_function(task.payload.get("error_handler"), failed)[0] or problem

    def run_function(self, name: str | None, payload: Json) -> tuple[str | None, Json]:
        """Returns the problem, if there was one, and the payload of the answer."""
        statement = "select internal.run_function(%s, %s) as answer"
        try:
            row = self.session.execute(statement, [name, Jsonb(payload)]).fetchone()
        except psycopg.Error as error:
            return f"{name}: {error}", {}
        assert row is not None
        problem, answer = read_envelope(row["answer"])
        return None if problem is None else f"{name}: {problem}", answer

    def close(self) -> None:
        self.session.close()


def read_envelope(answer: Any) -> tuple[str | None, Json]:
    """Reads either form of an envelope: the problem, if there was one, and the payload."""
    match answer:
        case {"status": str(status)} if status != "succeeded":
            return status, {}
        case {"error": str(problem)} if problem:
            return problem, {}
        case {"validation_failure_message": str(problem)} if problem:
            return problem, {}
        case {"status": "succeeded"} | {"success": True}:
            return None, answer.get("payload") or {}
        case {"success": False}:
            return "it did not succeed", {}
    return f"{answer!r:.100} is no envelope", {}
