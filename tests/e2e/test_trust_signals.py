"""However a run ends, no process of its agent or checks survives. Setting the clock does not break a wait."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

Start = Callable[..., Any]
Agent = Callable[..., str]
Alive = Callable[[str], list[int]]

# In another group, in another session, as a daemon, and with an empty environment.
ESCAPES = """
sleep {0} &
setsid sleep {0} > /dev/null 2>&1 &
(setsid sh -c 'sleep {0} & exit' > /dev/null 2>&1 &)
env -i setsid sleep {0} > /dev/null 2>&1 &
echo begun
sleep {0}
"""
ENDS = {
    "the second Ctrl-C": (signal.SIGINT, signal.SIGINT),
    "the second SIGTERM": (signal.SIGTERM, signal.SIGTERM),
    "SIGTERM and no more time": (signal.SIGTERM,),
    "SIGHUP": (signal.SIGHUP,),
    "SIGKILL": (signal.SIGKILL,),
}


def end_by(end: str, run: Any) -> None:
    first, *then = ENDS[end]
    run.process.send_signal(first)
    for number in then:
        run.process.stderr.readline()  # the first signal was handled before the second is sent
        run.process.send_signal(number)
    assert run.end() == (-9 if end == "SIGKILL" else 130)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("who", ["agent", "check"])
def test_no_process_survives_the_end_of_a_run(
    live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any, workspace: Path, end: str, who: str
) -> None:
    (workspace / "escape.sh").write_text(ESCAPES.format(nap))
    fake = agent("sh escape.sh" if who == "agent" else "echo hello")
    run = live("run", "g", "--grace", "0.3", "--check", "sh escape.sh", "--agent", fake)
    run.until("agent_started" if who == "agent" else "check_started")
    eventually(lambda: len(alive(nap)) >= 5)
    end_by(end, run)
    eventually(lambda: not alive(nap))
    if end != "SIGKILL":
        assert run.kinds()[-1] == "run_finished"
        assert run.one("run_finished")["outcome"] == "interrupted"


@pytest.mark.parametrize("end", ["the second Ctrl-C", "SIGTERM and no more time", "SIGHUP", "SIGKILL"])
def test_a_commit_hook_that_hangs_does_not_survive(
    live: Start,
    agent: Agent,
    alive: Alive,
    nap: str,
    eventually: Any,
    repository: Path,
    git: Callable[..., str],
    end: str,
) -> None:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\nsleep {nap}\n")
    hook.chmod(0o755)
    fake = agent('case "$PROMPT" in *"commit message"*) echo Message;; *) echo x > work; echo hello;; esac')
    run = live("run", "g", "--grace", "0.3", "--check", "true", "--commit", "--agent", fake)
    eventually(lambda: alive(nap))
    end_by(end, run)
    eventually(lambda: not alive(nap))
    eventually(lambda: not (repository / ".git" / "index.lock").exists())
    assert git("log", "--format=%s").split() == ["first"]


def test_nothing_survives_a_terminal_that_is_closed(
    environment: dict[str, str], workspace: Path, agent: Agent, alive: Alive, nap: str, eventually: Any
) -> None:
    fake = agent(ESCAPES.format(nap))
    words = ["-m", "ralph", "run", "g", "--agent", fake]
    terminal = pexpect.spawn(
        sys.executable, words, cwd=str(workspace), env={**environment, "TERM": "xterm"}, timeout=60
    )
    terminal.expect("begun")
    eventually(lambda: len(alive(nap)) >= 5)
    os.close(terminal.child_fd)
    eventually(lambda: not alive(nap))
    terminal.closed = True
    os.waitpid(terminal.pid, 0)


CLOCKED = """
import os, sys, time
real, shift = time.time, sys.argv.pop(1)
time.time = lambda: real() + float(open(shift).read() or 0)
from ralph.__main__ import main
sys.exit(main())
"""


def test_a_wait_counts_down_and_ends_by_the_clock(
    environment: dict[str, str], workspace: Path, agent: Agent, tmp_path: Path
) -> None:
    """The machine is suspended, or its clock is set, in the middle of an hour's wait."""
    shift = tmp_path / "shift"
    shift.write_text("0")
    limit = int(time.time()) + 3600
    lines = (
        {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": limit}},
        {"type": "result", "subtype": "success", "is_error": True, "api_error_status": 429, "result": "hit your limit"},
    )
    stream = "\n".join(map(json.dumps, lines))
    done = '{"type":"result","subtype":"success","is_error":false,"result":"<response>DONE</response>"}'
    agent(f"if [ $N = 1 ]; then echo '{stream}'; exit 1; fi; echo '{done}'", "claude")
    words = ["-c", CLOCKED, str(shift), "run", "g", "--agent", "claude"]
    env = {**environment, "TERM": "xterm", "COLUMNS": "120"}
    terminal = pexpect.spawn(sys.executable, words, cwd=str(workspace), env=env, timeout=60, dimensions=(24, 120))
    terminal.expect("waiting (1h|59m)")
    terminal.expect("waiting 59m5\\ds until")
    terminal.expect("waiting 59m5\\ds until")
    shift.write_text("3700")
    terminal.expect("done")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
