from ralph.core.events import RunFinished
from ralph.show.outlet import EMOJI, Style
from ralph.show.summary import table
from ralph.show.tally import Row
from ralph.show.words import width

DONE = RunFinished("done", "", 3, 0.42, 72.0, 0)
FREE = RunFinished("done", "", 3, None, 72.0, 0)


def test_one_row_for_each_iteration_and_a_total() -> None:
    rows = [
        Row(1, (("make test", False), ("make lint", True)), 12, 0.12, 62.0, "claim refused: checks"),
        Row(2, (), 0, None, 2.5, "failed: exit 1"),
        Row(3, (("make test", True), ("make lint", True)), 8, 0.3, 7.5, "done"),
    ]
    assert table(rows, DONE, Style(EMOJI)) == [
        "  #  checks           tools   cost   time  what happened",
        "  1  ✗ 1/2 make test     12  $0.12   1m2s  claim refused: checks",
        "  2                       0          2.5s  failed: exit 1",
        "  3  ✓ 2/2                8  $0.30   7.5s  done",
        "                         20  $0.42  1m12s  total",
    ]


def test_columns_that_nobody_filled_are_left_out() -> None:
    assert table([Row(1, (), None, None, 3.0, "done")], FREE, Style(EMOJI)) == [
        "  #  time  what happened",
        "  1    3s  done",
    ]


def test_nothing_happened_nothing_is_drawn() -> None:
    assert table([], FREE, Style(EMOJI)) == []


def test_the_table_fits_a_narrow_terminal() -> None:
    rows = [Row(n, (("x" * 60, False), ("日本" * 20, False)), 3, 0.1, 9.0, "failed: " + "y" * 90) for n in (1, 2)]
    for room in (60, 80, 120):
        assert max(map(width, table(rows, DONE, Style(EMOJI), room))) <= room


def test_a_very_long_run_shows_its_two_ends() -> None:
    rows = [Row(n, (), 1, None, 1.0, "no claim") for n in range(1, 201)]
    lines = table(rows, FREE, Style(EMOJI))
    assert len(lines) == 63
    assert lines[31] == "  … 140 more iterations"
    assert lines[-2].split()[0] == "200"
    assert lines[-1].split() == ["200", "1m12s", "total"]
