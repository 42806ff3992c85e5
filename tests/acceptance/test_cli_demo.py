"""`demo`, as it looks in a terminal of the usual width."""

from io import StringIO

from rich.console import Console

from dutiful.cli.commands.demo import LABELS, _table

EXPECTED = {kind: 200 if kind == "greet" else 12 for kind in LABELS}
BUSY = {"running": 4, "scheduled": 3, "retries": 12, "completed": 1}


def drawn(counted: dict[str, dict[str, int]]) -> list[str]:
    out = StringIO()
    Console(file=out, width=80).print(_table(counted, EXPECTED))
    return out.getvalue().splitlines()


def test_nothing_is_cut_of_what_came_of_it() -> None:
    counted = {kind: {"completed": total} for kind, total in EXPECTED.items()}
    counted["hopeless"] = {"failed": 12, "retries": 2}

    reported = "\n".join(drawn(counted))

    assert "…" not in reported
    assert "200/200" in reported and "2 retries, 12 dead letters" in reported


def test_numbers_are_whole_however_much_there_is_to_say() -> None:
    _, *rows = drawn(dict.fromkeys(EXPECTED, BUSY))

    for row, (kind, total) in zip(rows, EXPECTED.items(), strict=True):
        assert row.startswith(kind) and LABELS[kind] in row and f" 1/{total} " in row
