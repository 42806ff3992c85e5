"""Chains and groups: the shapes that most workflows have."""

from collections.abc import Iterable
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.core.job import OnFailure
from dutiful.handle import Enqueuer
from dutiful.options import one_of
from dutiful.workflow.call import Call
from dutiful.workflow.graph import Block, SyncWorkflow, Workflow
from dutiful.workflow.handle import WorkflowHandle

Step = "Call[Any] | Chain | Group"


class Shape:
    """Jobs in an order, not enqueued yet."""

    def first_call(self) -> Call[Any]:
        raise NotImplementedError

    def workflow(self, name: str | None = None) -> Workflow:
        """A workflow of these jobs only."""
        enqueuer: Enqueuer = self.first_call().kind._enqueuer
        flow = Workflow(enqueuer, name)
        expand(flow, self, None, OnFailure.CANCEL)
        return flow

    async def enqueue(self, *, within: Any = None) -> WorkflowHandle:
        """Stores all jobs in one transaction, or none."""
        return await self.workflow().enqueue(within=within)

    @property
    def sync(self) -> SyncWorkflow:
        """The same for blocking code: chain(…).sync.enqueue()."""
        return self.workflow().sync


class Chain(Shape):
    """One after another."""

    def __init__(self, steps: tuple[Any, ...], on_failure: OnFailure) -> None:
        self.steps = steps
        self.on_failure = on_failure

    def first_call(self) -> Call[Any]:
        return _first(self.steps[0])


class Group(Shape):
    """Side by side, and then one more."""

    def __init__(self, members: list[Any], then: Any, on_failure: OnFailure) -> None:
        self.members = members
        self.then = then
        self.on_failure = on_failure

    def first_call(self) -> Call[Any]:
        return _first(self.members[0])


def chain(*steps: Any, on_failure: OnFailure | str = OnFailure.CANCEL) -> Chain:
    """Jobs that run one after another: `chain(extract.call(day), load.call(rows=PREVIOUS))`.

    A step is a call, a group or a chain. `on_failure`: what happens to a step if the one before fails or is cancelled.
    """
    return Chain(_checked(steps, "chain"), one_of(OnFailure, on_failure, "on_failure"))


def group(calls: Iterable[Any], then: Any = None, *, on_failure: OnFailure | str = OnFailure.RUN) -> Group:
    """Jobs that run side by side, and `then` one that runs when all have ended.

    PREVIOUS in its arguments is the list of their results, with None for a job that has none. `on_failure`: what
    happens to it if one fails or is cancelled; by default it runs, and `await ctx.parents()` says what became of each.
    """
    if then is not None:
        _checked((then,), "group")
    return Group(list(_checked(tuple(calls), "group")), then, one_of(OnFailure, on_failure, "on_failure"))


def expand(flow: Workflow, step: Any, previous: Block | None, policy: OnFailure) -> Block:
    """Adds the jobs of a step to the workflow, after those of `previous`."""
    match step:
        case Call():
            node = flow.make_node(step, None if previous is None else previous.result)
            if previous is not None:
                node.after(list(previous.tails), on_failure=policy)
            return Block([node])
        case Chain():
            for one in step.steps:
                previous, policy = expand(flow, one, previous, policy), step.on_failure
            assert previous is not None
            return previous
        case Group():
            blocks = [expand(flow, one, previous, policy) for one in step.members]
            together = Block([node for block in blocks for node in block.tails], several=True)
            return together if step.then is None else expand(flow, step.then, together, step.on_failure)
        case _:
            raise _no_step(step, "workflow")


def _checked(steps: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if not steps:
        raise UsageError(f"the {what} has no jobs: give it calls, as in {what}(send_email.call(…))")
    for step in steps:
        if not isinstance(step, Call | Shape):
            raise _no_step(step, what)
    return steps


def _no_step(step: Any, what: str) -> UsageError:
    return UsageError(
        f"{step!r:.80} cannot be part of a {what}: give a call, as in send_email.call(to=…), a chain or a group"
    )


def _first(step: Any) -> Call[Any]:
    return step if isinstance(step, Call) else step.first_call()
