from dutiful.store.queries import JobFilter
from dutiful.stores.listing import SEARCHED, Walk, listing


def test_jobs_of_a_kind_on_very_many_queues_are_found_without_a_look_at_each_queue() -> None:
    for queues in (10, 600, 10_000):
        looking = listing(JobFilter(kind="fetch", limit=20))
        next(looking)
        walk = looking.send([("fetch", f"queue {number}") for number in range(queues)])
        assert isinstance(walk, Walk) and len(walk.branches) * walk.each <= SEARCHED
