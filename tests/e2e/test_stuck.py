"""A run that makes no progress hands the work over to the next agent, or ends as stalled."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]
Start = Callable[..., Any]

# Prints "3 failed, 97 passed" for three lines in `bugs`, as pytest does.
GREEN = 'test $n -gt 0 || { echo "100 passed in 0.1s"; exit; }'
COUNT = f'n=$(wc -l < bugs); {GREEN}; echo "$n failed, $((100 - n)) passed in 0.1s"; exit 1'


@pytest.fixture
def journal_file(workspace: Path) -> Callable[[], Path]:
    return lambda: next((workspace / ".ralph" / "runs").glob("*/journal.ndjson"))


@pytest.fixture
def check(workspace: Path, repository: Path, git: Git) -> str:
    """A check that counts the lines in the file `bugs`: 5 at first."""
    (workspace / "bugs").write_text("bug\n" * 5)
    (workspace / "count.sh").write_text(COUNT)
    git("add", "-A")
    git("commit", "-qm", "bugs")
    return "sh count.sh"


def fixes_down_to(number: int, then: str = "") -> str:
    """An agent that fixes one bug a turn until `number` are left; then it does something else."""
    stop = then or "true"
    return f'n=$(wc -l < bugs); if [ $n -gt {number} ]; then sed -i 1d bugs; else {stop}; fi; echo "I did step $N"'


def test_a_run_without_progress_ends_as_stalled_and_says_what_stayed_red(
    ralph: Ralph, agent: Agent, check: str
) -> None:
    words = ("loop", "fix it", "--check", check, "--stuck", "3", "--json", "--agent", agent(fixes_down_to(3)))
    result = ralph(*words)
    assert result.code == 1
    finished = result.one("run_finished")
    assert (finished["outcome"], finished["iterations"]) == ("stalled", 5)
    said = 'no progress for 3 iterations; "sh count.sh" has 3 failures (best: iteration 5)'
    assert finished["reason"] == said
    assert f"stalled: {said} (" in result.last_line
    assert "still failing" not in result.last_line
    assert re.search(r"ralph resume \w+ --then AGENT", result.err)


def test_eight_iterations_without_progress_are_enough_for_loop_and_none_for_run(
    ralph: Ralph, agent: Agent, check: str
) -> None:
    result = ralph("loop", "fix it", "--check", check, "--json", "--agent", agent("echo step $N"))
    assert result.one("run_finished")["iterations"] == 8
    result = ralph("run", "fix it", "-m", "9", "--check", check, "--json", "--agent", agent("echo step $N"))
    assert result.one("run_finished")["outcome"] == "exhausted"
    result = ralph("loop", "fix it", "-m", "9", "--stuck", "0", "--check", check, "--json", "--agent", agent("echo $N"))
    assert result.one("run_finished")["outcome"] == "exhausted"


def test_the_next_agent_takes_over_from_the_best_state(
    ralph: Ralph, agent: Agent, check: str, workspace: Path, git: Git
) -> None:
    first = agent('if [ $N = 1 ]; then sed -i 1d bugs; else seq $((N + 4)) > bugs; fi; echo "I did step $N"', "first")
    second = agent("wc -l < bugs > found; : > bugs; echo COMPLETE", "second")
    result = ralph(
        "loop", "fix it", "--check", check, "--stuck", "3", "--then", second, "--json", "--agent", first, "-m", "9"
    )
    assert result.code == 0, result.err
    assert [told["agent"] for told in result.all("agent_started")] == [first] * 4 + [second]
    assert (workspace / "found").read_text().strip() == "4", "the second agent began with the best state"
    done = result.one("handed_over")["hand_over"]
    assert (done["after"], done["agent"], done["to"], done["start"]) == (4, first, second, 1)
    assert git("show", f"{done['kept_as']}:bugs").count("\n") == 8, "what the first agent left is kept"
    home = Path(first).parent.parent
    prompt = (home / "second.prompt.1").read_text()
    assert "as they were after iteration 1, the best so far" in prompt
    rows = [line for line in prompt.splitlines() if re.match(r"\d+\. ", line)]
    assert len(rows) == 4
    assert "0 of 1 checks pass, 4 failures: fewer failures: I did step 1" in rows[0]
    assert "8 failures: no progress" in rows[3]
    errors = prompt.partition("# Errors")[2].partition("# Progress")[0]
    assert "4 failed, 96 passed" in errors, "the errors are those of the files that it finds"
    assert "8 failed" not in errors
    shown = " ".join(ralph("show").out.split())
    assert "progress fewer failures, 4 failures" in shown
    assert "with the files of iteration 1" in shown
    assert "takes over" in ralph("report", "-o", "-").out
    assert "fewer failures, 4 failures" in ralph("report", "-o", "-").out
    assert "takes over from" in result.err


def test_the_last_screen_says_how_to_go_back_to_the_best_state(ralph: Ralph, agent: Agent, check: str) -> None:
    worse = agent(fixes_down_to(4, "seq $((N + 4)) > bugs"))
    result = ralph("loop", "fix it", "--check", check, "--stuck", "1", "--agent", worse)
    assert "(best: iteration 1)" in result.last_line
    rewind = re.search(r"ralph (rewind \w+ 1)", result.err)
    assert rewind
    assert ralph(*rewind[1].split()).code == 0


def test_without_a_red_check_at_the_start_the_present_files_are_kept(
    ralph: Ralph, agent: Agent, workspace: Path
) -> None:
    first = agent("echo $N > kept; echo broken; touch broken", "first")
    second = agent("rm broken; echo COMPLETE", "second")
    words = ("loop", "x", "--check", "! test -e broken", "--stuck", "2", "--then", second, "--json", "--agent", first)
    result = ralph(*words)
    assert result.code == 0, result.err
    assert "start" not in result.one("handed_over")["hand_over"]
    assert (workspace / "kept").exists()


def test_agents_take_over_in_order_and_the_last_one_ends_the_run(ralph: Ralph, agent: Agent, check: str) -> None:
    names = [agent("echo nothing", name) for name in ("first", "second", "third")]
    words = ("loop", "x", "--check", check, "--stuck", "2", "--then", names[1], "--fallback-agent", names[2])
    result = ralph(*words, "--json", "--agent", names[0])
    assert [told["agent"] for told in result.all("agent_started")] == [one for one in names for _ in range(2)]
    assert result.one("run_finished")["outcome"] == "stalled"


def test_a_stalled_run_is_resumed_with_a_new_chance_or_with_another_agent_at_once(
    ralph: Ralph, agent: Agent, check: str
) -> None:
    first = agent("echo nothing", "first")
    words = ("loop", "x", "--check", check, "--stuck", "2", "--json", "--agent", first)
    assert ralph(*words).one("run_finished")["iterations"] == 2
    assert ralph("resume", "--json").one("run_finished")["iterations"] == 4
    second = agent(": > bugs; echo COMPLETE", "second")
    result = ralph("resume", "--then", second, "--json")
    assert result.code == 0, result.err
    assert [told["agent"] for told in result.all("agent_started")] == [second]


def test_a_killed_run_remembers_its_standstill_and_who_took_over(
    live: Start, ralph: Ralph, agent: Agent, check: str
) -> None:
    first = agent("echo nothing; if [ $N = 2 ]; then echo begun; sleep 1000; fi", "first")
    second = agent("echo begun; if [ $N = 2 ]; then sleep 1000; fi", "second")
    words = ("loop", "x", "--check", check, "--stuck", "3", "--then", second, "--agent", first)
    run = live(*words)
    run.until("iteration_finished")
    run.until("agent_text")
    run.end(signal.SIGKILL)
    run = live("resume")  # the standstill continues: two more turns of the first agent
    run.until("handed_over")
    run.until("iteration_finished")
    run.until("agent_text")
    run.end(signal.SIGKILL)
    result = ralph("resume", "--json")
    assert {told["agent"] for told in result.all("agent_started")} == {second}
    assert not result.all("handed_over")
    finished = result.one("run_finished")
    assert (finished["outcome"], finished["iterations"]) == ("stalled", 6)


def test_a_run_killed_between_restoring_and_recording_is_handed_over_again(
    live: Start, ralph: Ralph, agent: Agent, check: str, journal_file: Callable[[], Path], workspace: Path
) -> None:
    """As if ralph had been killed after it restored the files: the journal does not know of the hand-over."""
    first = agent(fixes_down_to(4, "seq 9 > bugs"), "first")
    second = agent("wc -l < bugs > found; sleep 1000", "second")
    run = live("loop", "x", "--check", check, "--stuck", "2", "--then", second, "--agent", first)
    run.until("handed_over")
    run.end(signal.SIGKILL)
    journal = journal_file()
    lines = journal.read_text().splitlines(keepends=True)
    end = next(at for at, line in enumerate(lines) if json.loads(line)["type"] == "handed_over")
    journal.write_text("".join(lines[:end]))
    agent("wc -l < bugs > found; : > bugs; echo COMPLETE", "second")
    result = ralph("resume", "--json")
    assert result.code == 0, result.err
    assert result.one("handed_over")["hand_over"]["start"] == 1
    assert (workspace / "found").read_text().strip() == "4"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--then", "nobody"), "nobody"),
        (("--then", "claud"), "--then claude"),
        (("--stuck", "-1"), "--stuck"),
        (("--stuck", "often"), "--stuck"),
        (("--then", "claude:"), "--then claude:"),
    ],
)
def test_bad_input_costs_nothing(ralph: Ralph, agent: Agent, words: tuple[str, ...], said: str) -> None:
    result = ralph("loop", "x", "--check", "false", *words, "--agent", agent("touch spent"))
    assert result.code == 2
    assert said in result.err
    assert not Path("spent").exists()


def test_a_failed_turn_that_changed_nothing_does_not_run_the_checks_again(
    ralph: Ralph, agent: Agent, repository: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    check = f"echo run >> {runs}; exit 1"
    failing = agent("if [ $N = 2 ]; then exit 1; fi; if [ $N = 3 ]; then touch changed; exit 1; fi; echo hm")
    result = ralph("loop", "x", "--check", check, "-m", "3", "--json", "--agent", failing)
    assert result.one("run_finished")["iterations"] == 3
    assert runs.read_text().count("run") == 3, "the baseline, the first turn, and the third, which changed a file"
    assert [len(told["record"]["checks"]) for told in result.all("iteration_finished")] == [1, 1, 1]
