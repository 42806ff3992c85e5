"""Which columns a terminal has room for."""

from dutiful.cli.output.printing import TableColumn, fit

LETTERS = [
    TableColumn("id", 31),
    TableColumn("kind", 12),
    TableColumn("tenant", 6, empty=True),
    TableColumn("status", 14),
    TableColumn("class", 9),
    TableColumn("error", 170),
]


def test_a_wide_terminal_shows_everything_whole() -> None:
    assert fit(LETTERS, 300) == {"id": 31, "kind": 12, "tenant": 6, "status": 14, "class": 9, "error": 170}


def test_text_is_cut_before_a_column_goes() -> None:
    assert fit(LETTERS, 120) == {"id": 31, "kind": 12, "tenant": 6, "status": 14, "class": 9, "error": 38}


def test_what_is_empty_goes_first_then_what_stands_furthest_to_the_right() -> None:
    assert list(fit(LETTERS, 95)) == ["id", "kind", "status", "error"]
    assert list(fit(LETTERS, 80)) == ["id", "kind", "error"]


def test_a_state_outlives_its_queue() -> None:
    jobs = [
        TableColumn("id", 31),
        TableColumn("kind", 10),
        TableColumn("queue", 7),
        TableColumn("state", 9),
        TableColumn("error", 170),
    ]
    assert fit(jobs, 80) == {"id": 31, "kind": 10, "state": 9, "error": 24}


def test_at_last_the_error_goes_and_then_all_but_the_first() -> None:
    assert fit(LETTERS, 60) == {"id": 31, "kind": 12, "error": 13}
    assert fit(LETTERS, 50) == {"id": 31, "kind": 12}
    assert fit(LETTERS, 40) == {"id": 31}
    assert fit(LETTERS, 20) == {"id": 31}, "whole, whatever becomes of the line"


def test_what_is_shown_is_never_wider_than_the_room() -> None:
    for room in range(31, 300):
        widths = fit(LETTERS, room)
        assert sum(widths.values()) + 2 * (len(widths) - 1) <= room
        assert all(
            widths[column.name] == column.width for column in LETTERS if column.name in widths and not column.text
        )
