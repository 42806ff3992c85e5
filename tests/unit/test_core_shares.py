"""Which tenants' jobs a fair lane starts next."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.shares import HEAVIEST, Shares, Tenant

TENANTS = st.sampled_from(["acme", "zeta", "moon", None])


def holding(**held: int) -> Shares:
    shares = Shares()
    for tenant, count in held.items():
        shares.took(tenant, count, 1)
    return shares


def test_tenants_with_equal_weights_get_equally_many() -> None:
    assert Shares().choose({"acme": 1, "zeta": 1}, 6, 0) == {"acme": 3, "zeta": 3}


def test_a_tenant_gets_slots_in_proportion_to_its_weight() -> None:
    assert Shares().choose({"acme": 3, "zeta": 1}, 8, 0) == {"acme": 6, "zeta": 2}


def test_who_holds_less_is_next() -> None:
    assert holding(acme=4).choose({"acme": 1, "zeta": 1}, 4, 0) == {"zeta": 4}


def test_what_is_reserved_is_only_for_those_that_hold_nothing() -> None:
    shares = holding(acme=2)
    assert shares.choose({"acme": 1}, 0, 1) == {}
    assert shares.choose({"acme": 1, "zeta": 1, "moon": 1}, 0, 1) == {"zeta": 1}
    assert shares.choose({"acme": 1, "zeta": 1}, 1, 2) == {"zeta": 1}, "nor for what they would hold then"


def test_of_those_that_hold_as_many_the_one_that_was_served_least_is_next() -> None:
    shares = Shares()
    order: list[Tenant] = []
    for _ in range(8):
        ((tenant, _),) = shares.choose({"acme": 3, "zeta": 1}, 1, 0).items()
        shares.took(tenant, 1, 3 if tenant == "acme" else 1)
        shares.gave_back(tenant)
        order.append(tenant)
    assert Counter(order) == {"acme": 6, "zeta": 2}, "weights count for a single slot, too"
    assert Counter(order[:4]) == {"acme": 3, "zeta": 1}


def test_who_holds_less_is_next_though_it_was_served_more() -> None:
    shares = holding(acme=1)
    for _ in range(3):
        shares.took("zeta", 1, 1)
        shares.gave_back("zeta")
    assert shares.choose({"acme": 1, "zeta": 1}, 1, 0) == {"zeta": 1}


def test_who_had_no_jobs_for_a_while_has_saved_up_nothing() -> None:
    shares = Shares()
    for _ in range(100):
        shares.took("acme", 1, 1)
        shares.gave_back("acme")
    order = []
    for _ in range(4):
        ((tenant, _),) = shares.choose({"acme": 1, "zeta": 1}, 1, 0).items()
        shares.took(tenant, 1, 1)
        shares.gave_back(tenant)
        order.append(tenant)
    assert order == ["zeta", "acme", "zeta", "acme"]


def test_one_that_is_new_comes_before_those_that_were_served_although_there_is_room_for_several() -> None:
    shares = Shares()
    for tenant in ("acme", "moon"):
        shares.took(tenant, 1, 2)
        shares.gave_back(tenant)
    assert shares.choose({"acme": 2, "moon": 2, "zeta": 1}, 2, 0) == {"zeta": 1, "acme": 1}


def test_what_is_being_chosen_counts_as_served() -> None:
    ahead = Shares()
    ahead.took("acme", 1, 2)  # half a turn
    assert ahead.choose({"zeta": 1, "acme": 1}, 2, 0) == {"zeta": 1, "acme": 1}
    far_ahead = Shares()
    far_ahead.took("acme", 3, 2)
    for _ in range(2):
        far_ahead.gave_back("acme")
    assert far_ahead.choose({"zeta": 1, "acme": 1}, 2, 0) == {"zeta": 2}
    assert Shares().choose({"acme": 2, "zeta": 1}, 4, 0) == {"acme": 3, "zeta": 1}, "by weight"


def test_a_job_that_ended_is_one() -> None:
    shares = holding(acme=2)
    shares.gave_back("acme")
    assert shares.held == {"acme": 1} and shares.total == 1


def test_tenants_that_are_not_ahead_take_no_memory() -> None:
    shares = Shares()
    for n in range(1_000):
        shares.took(str(n), 1, 1)
        shares.gave_back(str(n))
    for _ in range(3):
        shares.took("acme", 1, 1)
    assert shares._served.keys() == {"acme"}


def test_the_heaviest_weight_is_that_of_the_tables() -> None:
    assert HEAVIEST == 1_000


def test_of_very_many_that_hold_nothing_each_has_its_turn() -> None:
    shares = Shares()
    waiting: dict[Tenant, int] = {str(n): 1 for n in range(1_000)}
    served: Counter[Tenant] = Counter()
    for _ in range(200):
        for tenant, count in shares.choose(waiting, 5, 0).items():
            shares.took(tenant, count, 1)
            served[tenant] += count
            shares.gave_back(tenant)
    assert served == dict.fromkeys(waiting, 1)
    assert shares.total == 0 and not shares.held


@given(
    held=st.dictionaries(TENANTS, st.integers(1, 9)), waiting=st.dictionaries(TENANTS, st.integers(1, 5), min_size=1),
    room=st.integers(0, 9), reserved=st.integers(0, 3),
)  # fmt: skip
def test_no_tenant_gets_more_while_another_has_less(
    held: dict[Tenant, int], waiting: dict[Tenant, int], room: int, reserved: int
) -> None:
    shares = Shares()
    for tenant, count in held.items():
        shares.took(tenant, count, waiting.get(tenant, 1))

    chosen = shares.choose(waiting, room, reserved)

    total = sum(chosen.values())
    assert room <= total <= room + reserved and chosen.keys() <= waiting.keys()
    after = {one: held.get(one, 0) + chosen.get(one, 0) for one in waiting}
    if total < room + reserved:
        assert all(after.values()), "nothing is left to one that holds none"
    for one in chosen:
        assert all((after[one] - 1) / waiting[one] <= after[other] / waiting[other] for other in waiting)
