"""Jobs that belong together, as the tree that they grew into."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.correlation_tree import CorrelationTree, Member, Need, Relation
from dutiful.core.job import JobRecord, OnFailure
from dutiful.core.states import State

T0 = datetime(2030, 1, 1, tzinfo=UTC)


def member(number: int, parent: int | None = None, retry_of: int | None = None, **fields: Any) -> Member:
    """The later made, the higher its number."""
    facts: dict[str, Any] = {
        "id": UUID(int=number),
        "kind": "greet",
        "queue": "default",
        "state": State.COMPLETED,
        "attempt": 1,
        "max_attempts": 5,
        "tenant": None,
        "created_at": T0 + timedelta(seconds=number),
        "created_by": None,
        "run_at": None,
        "started_at": None,
        "finished_at": None,
        "gate": None,
        "parent_id": None if parent is None else UUID(int=parent),
        "retry_of": None if retry_of is None else UUID(int=retry_of),
    }
    return Member(**facts | fields)


def drawn(*members: Member, cut: bool = False) -> list[tuple[int, int]]:
    """The tree, line by line: number and depth."""
    return [(one.id.int, one.depth) for one in CorrelationTree.of("c", members, cut=cut).tree()]


def needing(number: int, parent: int | None, *needs: int) -> Member:
    return member(number, parent, needs=tuple(Need(UUID(int=need), OnFailure.CANCEL) for need in needs))


@pytest.mark.req("L98")
def test_children_stand_under_their_parents_brothers_and_sisters_by_age() -> None:
    assert drawn(member(5, 2), member(1), member(4, 1), member(3, 2), member(2, 1), member(6)) == [
        (1, 0), (2, 1), (3, 2), (5, 2), (4, 1), (6, 0),
    ]  # fmt: skip


@pytest.mark.req("L97")
def test_members_are_listed_in_the_order_in_which_they_were_made_whatever_their_ids() -> None:
    """A clock that is behind gives a child a smaller id than its parent's."""
    child = member(1, 2, created_at=T0 + timedelta(seconds=9))
    family = CorrelationTree.of("c", [child, member(3), member(2)])

    assert [one.id.int for one in family.members] == [2, 3, 1]
    assert drawn(child, member(3), member(2)) == [(2, 0), (1, 1), (3, 0)]


def test_a_retry_stands_under_the_job_that_it_repeats_not_beside_it() -> None:
    family = CorrelationTree.of("c", [member(1), member(2, 1), member(3, 1, retry_of=2)])

    assert [(one.under and one.under.int, one.relation) for one in family.members] == [
        (None, None), (1, Relation.CHILD), (2, Relation.RETRY),
    ]  # fmt: skip


def test_whose_parent_is_gone_stands_at_the_root_and_a_retry_of_one_under_its_parent() -> None:
    assert drawn(member(2, 1), member(3, 99, retry_of=98), member(4, 2, retry_of=97)) == [(2, 0), (4, 1), (3, 0)]


def test_a_job_that_waits_for_siblings_stands_after_the_newest_of_them() -> None:
    family = CorrelationTree.of("c", [member(1), member(2, 1), member(3, 1), needing(4, 1, 2, 3)])

    last = family.members[-1]
    assert (last.under, last.relation) == (UUID(int=3), Relation.AFTER)


def test_a_job_that_waits_for_others_than_siblings_stands_under_its_parent_and_after_them_if_it_has_none() -> None:
    others = (member(1), member(2, 1), member(3))

    assert drawn(*others, needing(4, 3, 2), needing(5, 3, 99)) == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 1)]
    assert drawn(*others, needing(4, None, 2)) == [(1, 0), (2, 1), (4, 2), (3, 0)]
    assert member(1).needs_total == 0


def test_branches_with_failed_jobs_come_first_only_in_a_tree_that_is_cut() -> None:
    failed: dict[str, Any] = {"state": State.FAILED}
    healthy = (member(1), member(2, 1), member(3))
    branch = (member(4, 3), member(5, 3, **failed), member(6, 5), member(7, 3, **failed))

    assert drawn(*healthy, *branch, cut=True) == [(3, 0), (5, 1), (6, 2), (7, 1), (4, 1), (1, 0), (2, 1)]
    assert drawn(*healthy, *branch) == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 1), (6, 2), (7, 1)]


@pytest.mark.timeout(20)
def test_rings_of_parents_are_cut_at_their_oldest() -> None:
    assert drawn(member(1, 3), member(2, 1), member(3, 2)) == [(1, 0), (2, 1), (3, 2)]
    assert drawn(member(1, 1)) == [(1, 0)]
    assert drawn(member(1, 4), member(3, 4), member(4, 3)) == [(3, 0), (4, 1), (1, 2)]


def test_a_chain_of_a_thousand_is_no_matter_of_recursion() -> None:
    family = CorrelationTree.of("c", [member(number, number - 1) for number in range(1, 1_001)])

    assert [one.depth for one in family.tree()] == list(range(1_000))


def test_a_member_has_the_facts_of_its_job_and_of_its_error_no_traceback() -> None:
    facts = {name: getattr(member(2, 1), name) for name in Member.__struct_fields__}
    known = {name: value for name, value in facts.items() if name in JobRecord.__struct_fields__}
    others: dict[str, Any] = {"payload": {"secret": 1}, "priority": 100, "crashes": 0}
    error = {"type": "ValueError", "message": "oops", "class": "retryable"}

    assert Member.of(JobRecord(**known, **others)) == member(2, 1)
    failed = Member.of(JobRecord(**known, **others, errors=[{**error, "traceback": "File x, line 1"}]))
    assert failed == member(2, 1, error=error)


def test_a_tree_is_whole_unless_it_is_told_that_there_are_more() -> None:
    assert CorrelationTree.of("c", [member(1)]).cut is CorrelationTree("c", ()).cut is False
    assert CorrelationTree.of("c", [member(1)], cut=True).cut is True


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
def test_whatever_people_claim_of_parents_everybody_stands_in_the_tree_once(claims: list[tuple[int, int]]) -> None:
    members = [member(number, parent, retry) for number, (parent, retry) in enumerate(claims, 1)]
    tree = CorrelationTree.of("c", members).tree()

    assert sorted(one.id.int for one in tree) == list(range(1, len(claims) + 1))
    depths = {None: -1} | {one.id: one.depth for one in tree}
    assert all(one.depth == depths[one.under] + 1 for one in tree)
