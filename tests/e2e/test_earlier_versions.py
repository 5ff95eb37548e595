"""What an earlier version of ralph has stored can be resumed and accepted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Start = Callable[..., Any]


def as_stored_before(order: Path) -> None:
    """Write a stored order as versions did in which `setup` belonged to `work`."""
    stored = json.loads(order.read_text())
    stored["settings"]["work"]["setup"] = stored["settings"].pop("setup")
    order.write_text(json.dumps(stored))


def test_a_run_of_an_earlier_version_is_resumed_and_accepted_with_its_setup(
    ralph: Start, agent: Callable[..., str], environment: dict[str, str], repository: Path
) -> None:
    check = ("--check", "test -e made -a -e two")
    works = agent("[ -e one ] && touch two; touch one; echo '<response>DONE</response>'")
    words = ("run", "g", "-m", "1", "--worktree", "--commit", "--setup", "touch made", *check)
    assert "exhausted" in ralph(*words, "--agent", works).last_line
    (order,) = Path(environment["HOME"], ".local/state/ralph/orders").glob("*/run.json")
    as_stored_before(order)
    resumed = ralph("resume", "-m", "1")
    assert resumed.code == 0, resumed.err
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert (repository / "two").exists()
