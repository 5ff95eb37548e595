"""Supervisors that are killed with -9 at random moments: no message is lost or torn, and no process survives."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

Agent = Callable[..., str]
pytestmark = pytest.mark.slow

DONE = 'echo fine > "$TASK_FOLDER/DONE"'


@pytest.mark.parametrize("seed", range(4))
def test_supervisors_killed_at_random_moments_leave_a_complete_history(
    task: Any, agent: Agent, mark: Any, seed: int
) -> None:
    chance = random.Random(seed)
    fake = agent(f"[ $N -gt 2 ] || setsid sleep {mark.seconds} & exit 1")
    for _ in range(4):
        process = task.start("--agent", fake, "--prompt", "x", "--json", "--max-restarts", "1000")
        for _ in itertools.islice(process.stdout, chance.randrange(1, 60)):
            pass
        process.kill()
        process.communicate()
    mark.wait_until_gone()
    assert task.supervise("--agent", agent(DONE, "last")).returncode == 0
    assert {run.status for run in task.attempts()} <= {"failed", "completed"}
    assert len({message.msg_id for message in task.folder.bus.read()}) == len(task.said())
    assert task.said()[-1] == "task completed (DONE marker present, no active children)"


def test_ralph_waits_for_children_that_start_slowly(task: Any, agent: Agent) -> None:
    child = agent('echo "$PROMPT" > "$RUN_FOLDER/output.md"', "child")
    many = f'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do ralph job --agent {child} -p "part $i" & done; {DONE}'
    result = task.supervise("--agent", agent(many), "--prompt", "x")
    assert result.returncode == 0, result.stderr
    assert [run.status for run in task.children()] == ["completed"] * 12
