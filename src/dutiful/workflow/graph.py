"""A graph of jobs that are stored in one transaction, each after those that it depends on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from dutiful.context import CURRENT
from dutiful.core.errors import UnknownDependency, UsageError
from dutiful.core.job import NewJob, OnFailure
from dutiful.core.json import check_name
from dutiful.handle import Enqueuer
from dutiful.options import one_of, read_id
from dutiful.workflow.call import Call, References, Result, each_reference, nodes_in
from dutiful.workflow.fits import accepts_none, fits, fits_all, returned_by
from dutiful.workflow.handle import SyncWorkflowHandle, WorkflowHandle

if TYPE_CHECKING:
    from dutiful.workflow.shapes import Chain, Group

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Parent = Any  # a Node of the workflow; or a job that exists, by its handle, record or id
MOST = 100_000  # jobs of one workflow: they are stored in one transaction


class Node(Generic[R_co]):
    """A job of a workflow that is not enqueued yet."""

    __slots__ = ("_flow", "call", "number", "parents", "references")

    def __init__(self, flow: "Workflow", number: int, call: Call[R_co], references: References) -> None:
        self._flow = flow
        self.number = number
        self.call = call
        self.references = references
        self.parents: dict[Node[Any] | UUID, OnFailure] = {}

    @property
    def result(self) -> R_co:
        """Stands for its result, in the arguments of a job that runs after it."""
        return cast(R_co, Result(self))

    def after(self, *parents: Parent, on_failure: OnFailure | str = OnFailure.CANCEL) -> "Node[R_co]":
        """Makes it wait for these; `on_failure`: what happens to it if one of them fails or is cancelled."""
        policy = one_of(OnFailure, on_failure, "on_failure")
        for parent in _flat(parents):
            if isinstance(parent, Node):
                self._flow.check_own(parent, f"{self.call.kind.name} cannot run after it")
                self.parents[parent] = policy
            else:
                self.parents[read_id(parent, "after")] = policy
        return self

    def __repr__(self) -> str:
        return f"job {self.number + 1} ({self.call.kind.name})"


class Block:
    """Jobs that were added together: those that nothing in it waits for, whose results are its own."""

    __slots__ = ("several", "tails")

    def __init__(self, tails: Sequence[Node[Any]], *, several: bool = False) -> None:
        self.tails = tails
        self.several = several

    @property
    def result(self) -> Any:
        results = [Result(node) for node in self.tails]
        return results if self.several else results[0]


class Workflow:
    """`app.workflow("nightly")`: add calls, say what runs after what, and enqueue all of them or none."""

    def __init__(
        self,
        enqueuer: Enqueuer,
        name: str | None = None,
        *,
        tenant: str | None = None,
        correlation_id: str | None = None,
        joins: UUID | None = None,
        id_of: Callable[[NewJob, Iterable[UUID]], UUID] | None = None,
    ) -> None:
        """`joins`: what waits for that job waits for the last ones of these too.

        `id_of` makes the id of a job, given those of the jobs before it.
        """
        self.name = None if name is None else check_name(name, "workflow")
        self._enqueuer = enqueuer
        self._tenant = tenant
        self._correlation_id = correlation_id
        self._nodes: list[Node[Any]] = []
        self._joins = joins
        self._id_of = id_of

    def add(
        self,
        call: "Call[R] | Chain | Group",
        *,
        after: Parent | Iterable[Parent] = (),
        on_failure: OnFailure | str = OnFailure.CANCEL,
    ) -> Node[R]:
        """Adds a job, or a chain or group of them; returns the last.

        It runs after the jobs in `after`, and those whose results are among its arguments; they may be jobs that exist.
        """
        from dutiful.workflow.shapes import expand

        began = len(self._nodes)
        block = expand(self, call, None, OnFailure.CANCEL)
        parents = list(_flat(after))
        for node in self._nodes[began:]:
            if not node.parents:
                node.after(parents, on_failure=on_failure)
            own = set(nodes_in(node.references))
            node.after([one for one in own if one not in node.parents], on_failure=on_failure)
        if len(block.tails) > 1 and not isinstance(call, Call):
            raise UsageError("a group is added with `then`, or its calls one by one: what runs after it needs one job")
        return cast(Node[R], block.tails[0])

    def make_node(self, call: Call[R], previous: Any = None) -> Node[R]:
        """Adds a job that does not wait for others yet, but for those whose results it gets."""
        if call.kind._enqueuer is not self._enqueuer:
            raise UsageError(f"{call!r} is of another app than the workflow: a transaction has one database")
        if len(self._nodes) >= MOST:
            raise UsageError(f"a workflow has at most {MOST:,} jobs: divide it, and enqueue the rest from a handler")
        _, references = call.split(previous)
        for parent in nodes_in(references):
            self.check_own(parent, f"its result cannot be an argument of {call.kind.name}")
        node = Node(self, len(self._nodes), call, references)
        self._nodes.append(node)
        return node

    def check_own(self, node: Node[Any], what: str) -> None:
        if node._flow is not self:
            raise UsageError(f"{node!r} is of another workflow: {what}")

    def __len__(self) -> int:
        return len(self._nodes)

    def encrypted_kind(self) -> str | None:
        """The first encrypted kind of a job that has no id of its own yet."""
        calls = (node.call for node in self._nodes)
        return next((call.kind.name for call in calls if call.options.id is None and call.kind.encrypted), None)

    # --- enqueueing

    async def enqueue(self, *, within: Any = None) -> WorkflowHandle:
        """Stores all jobs in one transaction, or none; once this returns, they are durable."""
        ordered, jobs = self.prepare()
        with _keys_named(ordered, jobs):
            handles = await self._enqueuer.submit_many(jobs, within)
        by_node = dict(zip(ordered, handles, strict=True))
        return WorkflowHandle(self._enqueuer, _correlation(jobs), jobs[0].tenant, by_node, _tails(ordered))

    def enqueue_sync(self, *, within: Any = None) -> SyncWorkflowHandle:
        ordered, jobs = self.prepare()
        with _keys_named(ordered, jobs):
            handles = self._enqueuer.submit_many_sync(jobs, within)
        return SyncWorkflowHandle(_correlation(jobs), dict(zip(ordered, handles, strict=True)), _tails(ordered))

    @property
    def sync(self) -> "SyncWorkflow":
        """The same for blocking code: flow.sync.enqueue()."""
        return SyncWorkflow(self)

    def prepare(self) -> tuple[list[Node[Any]], list[NewJob]]:
        """The jobs, checked, each after those that it depends on."""
        if not self._nodes:
            raise UsageError("the workflow has no jobs: add some, as in flow.add(send_email.call(…))")
        ordered = _in_order(self._nodes)
        awaited = {parent for node in ordered for parent in node.parents if isinstance(parent, Node)}
        made: dict[Node[Any], NewJob] = {}
        correlation_id = self._correlation_id
        for node in ordered:
            if len(ordered) > 1:
                _check_key(node, node in awaited)
            job = self._job(node, made, correlation_id, node in awaited or self._joins is not None)
            if self._joins is not None and node not in awaited:
                job = msgspec.structs.replace(job, joins=self._joins)
            current = CURRENT.get()
            if correlation_id is None and (current is None or current.correlation_id is None):
                # That of the first one, which its id is unless it has another.
                correlation_id = job.correlation_id or str(job.id)
                job = msgspec.structs.replace(job, correlation_id=correlation_id)
            made[node] = job
        _check_tenants(list(made.values()))
        return ordered, list(made.values())

    def _job(
        self, node: Node[Any], made: Mapping[Node[Any], NewJob], correlation_id: str | None, awaited: bool
    ) -> NewJob:
        call, kind = node.call, node.call.kind
        for parent in nodes_in(node.references):
            if parent not in node.parents:
                raise UsageError(f"{node!r} gets {Result(parent)!r}, and does not run after it: add that to `after`")
        options = call.options
        if options.within is not None:
            raise UsageError(f"{node!r} has the option within: give it to the workflow, as in flow.enqueue(within=…)")
        if options.tenant is None and self._tenant is not None:
            options = replace(options, tenant=self._tenant)
        if options.correlation_id is None and correlation_id is not None:
            options = replace(options, correlation_id=correlation_id)
        references = node.references
        job = kind.prepare(options, _known(node), later=frozenset(references))
        if self._id_of is not None and options.id is None:
            before = [made[one].id for one in node.parents if isinstance(one, Node)]
            job = msgspec.structs.replace(job, id=self._id_of(job, before))
        _check_types(node)
        own = dict(
            zip(options.depends_on, (options.on_failure or OnFailure.CANCEL,) * len(options.depends_on), strict=True)
        )
        edges = own | {made[one].id if isinstance(one, Node) else one: policy for one, policy in node.parents.items()}
        details: dict[str, Any] = {}
        if references:
            details["results"] = each_reference(references, lambda parent: made[parent].id)
        if awaited:
            details["awaited"] = True
        if self.name is not None:
            details["workflow"] = self.name
        if details:
            kept = {} if job.options is None else msgspec.json.decode(job.options)
            job = msgspec.structs.replace(job, options=msgspec.json.encode(kept | details).decode())
        return msgspec.structs.replace(job, depends_on=tuple(edges), policies=tuple(edges.values()))


class SyncWorkflow:
    """The blocking form."""

    __slots__ = ("_flow",)

    def __init__(self, flow: Workflow) -> None:
        self._flow = flow

    def enqueue(self, *, within: Any = None) -> SyncWorkflowHandle:
        return self._flow.enqueue_sync(within=within)


def _flat(parents: Any) -> Iterable[Any]:
    if isinstance(parents, list | tuple | set | frozenset):
        for one in parents:
            yield from _flat(one)
    elif isinstance(parents, Result):
        raise UsageError(f"after: {parents!r} is a result; name the job itself, as in after=[x]")
    else:
        yield parents


def _in_order(nodes: list[Node[Any]]) -> list[Node[Any]]:
    """Parents first; as they were added, if that is such an order."""
    needs = {node: [one for one in node.parents if isinstance(one, Node)] for node in nodes}
    if all(parent.number < node.number for node, parents in needs.items() for parent in parents):
        return nodes
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        path = " → ".join(map(repr, reversed(error.args[1])))
        raise UsageError(f"the workflow has a cycle, so none of these could ever run: {path}") from None


def _known(node: Node[Any]) -> dict[str, Any]:
    return {name: value for name, value in node.call.payload.items() if name not in node.references}


def _check_key(node: Node[Any], awaited: bool) -> None:
    if node.call.options.unique is not None and not awaited:
        raise UsageError(
            f"{node!r} has a unique key, and nothing runs after it: if the key were taken, the others would be stored "
            "all the same. Give the key to the first job"
        )


@contextmanager
def _keys_named(ordered: Sequence[Node[Any]], jobs: Sequence[NewJob]) -> Iterator[None]:
    """Says why a job of the workflow is missing that others depend on: it is not stored if its key is taken."""
    try:
        yield
    except UnknownDependency as error:
        for node, job in zip(ordered, jobs, strict=True):
            if job.id == error.job_id and job.unique is not None:
                raise UsageError(
                    f"{node!r}: another job holds its unique key {job.unique.key!r}, so nothing is stored"
                ) from None
        raise


def _check_types(node: Node[Any]) -> None:
    """Compares the types of results and parameters; what they leave open is checked when the job starts."""
    if not node.references:
        return
    kind = node.call.kind
    fields = {field.name: field for field in kind.signature.fields()}
    for name, found in node.references.items():
        if name not in fields:
            raise UsageError(f"{kind.name} has no parameter {name!r}: its fields are: {', '.join(fields) or 'none'}")
        parents = [one.node for one in (found if isinstance(found, list) else [found]) if one.node is not None]
        returned = [_returned(one.call.kind) for one in parents]
        expected = fields[name].hint
        good = fits_all(returned, expected) if isinstance(found, list) else fits(returned[0], expected)
        if not good:
            raise UsageError(
                f"{node!r}: {name} is declared as {_spelled(expected)}, but is to get {found!r}, which is declared as "
                f"{', '.join(sorted(set(map(_spelled, returned))))}"
            )
        may_lack = not isinstance(found, list) and node.parents[parents[0]] is OnFailure.RUN
        if may_lack and fields[name].required and not accepts_none(expected):
            raise UsageError(
                f"{node!r} runs even if {parents[0]!r} fails, so {name} may have no result: declare it as "
                f"{_spelled(expected)} | None, or give it a default"
            )


def _returned(kind: Any) -> Any:
    """The type of its jobs' results; a pipeline, and a handler of batches, say nothing about it."""
    return Any if kind.phases or kind.batch is not None else returned_by(kind.function)


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not getattr(hint, "__args__", ()) else str(hint)


def _check_tenants(jobs: Sequence[NewJob]) -> None:
    tenants = {job.tenant: job for job in jobs}
    if len(tenants) > 1:
        one, other, *_ = tenants.values()
        raise UsageError(
            f"jobs of a workflow have one tenant: {one.kind} has {one.tenant!r}, and {other.kind} has {other.tenant!r}"
        )


def _correlation(jobs: Sequence[NewJob]) -> str:
    return jobs[0].correlation_id or str(jobs[0].id)


def _tails(ordered: Sequence[Node[Any]]) -> list[Node[Any]]:
    awaited = {parent for node in ordered for parent in node.parents}
    return [node for node in ordered if node not in awaited]
