"""Which connections are closed when a server has too many."""

from dataclasses import dataclass, field

import pytest

from dutiful.web.connections import make_room


@dataclass
class Connection:
    name: str
    bucket: str
    free_since: float
    waits_for_client: bool = True
    is_closed: bool = False
    transport: "Connection" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.transport = self

    def is_closing(self) -> bool:
        return self.is_closed

    def cut(self) -> None:
        self.is_closed = True


def closed(most: int, *connections: Connection) -> list[str]:
    make_room(connections, most)
    return [one.name for one in connections if one.is_closed]


def of(*clients: str) -> list[Connection]:
    """One after the other; the name of each is its client's and a number."""
    return [Connection(f"{client}{number}", client, number) for number, client in enumerate(clients)]


def test_the_older_half_of_those_of_the_client_with_most_is_closed() -> None:
    assert closed(4, *of("a", "b", "b", "b", "a", "b")) == ["b1", "b2"]
    assert closed(4, *reversed(of("a", "b", "b", "b"))) == []


def test_one_is_closed_if_each_client_has_one() -> None:
    assert closed(2, *of("a", "b", "c")) == ["a0"]


@pytest.mark.parametrize("most", [1, 2])
def test_those_that_are_answered_or_closed_already_are_left_alone(most: int) -> None:
    answered, silent, gone = of("a", "b", "c")
    answered.waits_for_client = False
    gone.is_closed = True
    assert closed(most, answered, silent, gone) == (["b1", "c2"] if most == 1 else ["c2"])
