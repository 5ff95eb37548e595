"""Cost of a backlog compared with its loops: twelve tasks, a thousand tasks, and a coordinator while its agents think.

TASKS=100 measures fewer than a thousand.
"""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.lab import Lab
from bench.samples import Row, Sample, Wanted, taking_turns
from ralph.core.backlog_events import TaskReady, TaskStarted
from ralph.store.journal import read_entries

SLOTS, FEW = 4, 12
MANY = int(os.environ.get("TASKS", "1000"))
ROUNDS = 3
SETTLING, WATCHED = 3.0, 10.0  # seconds
AGENT = 'key=$(sed -n "s/^\\(T[0-9]*\\) .*/\\1/p" | head -1); echo "$key" > "$key.txt"; echo COMPLETE'
THINKER = 'cat > /dev/null; touch "$HOME/thinks.$$"; exec sleep 600'
ALONE = "the loops alone"


def measure(lab: Lab) -> list[Row]:
    agent = lab.script("writer", AGENT)
    few = taking_turns({"ralph": lambda: _worked(lab, agent, FEW)[0], ALONE: lambda: _alone(lab, agent)}, ROUNDS)
    took, looped = _worked(lab, agent, MANY)
    megabytes, share = _resting(lab)
    return [
        Row(f"{FEW} backlog tasks, {SLOTS} at a time", few.pop("ralph"), "s", few, Wanted(3, ALONE)),
        Row(f"{MANY:,} backlog tasks, beyond their loops", Sample((took - looped / SLOTS,)), "s", {}, Wanted(60)),
        Row("coordinator of 1,000 tasks, memory", Sample((megabytes,)), "MB", {}, Wanted(60)),
        Row("coordinator while agents work, processor time", Sample((share,)), "%", {}, Wanted(1)),
    ]


def _repository(lab: Lab, tasks: int) -> Path:
    folder = lab.folder("backlog")
    (folder / "TASKS.md").write_text("".join(f"- [ ] T{number} Make number {number}\n" for number in range(tasks)))
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder, env=lab.env, check=True)
    return folder


def _words(lab: Lab, agent: str) -> list[str]:
    return [lab.ralph, "work", "TASKS.md", "-j", str(SLOTS), "--check", "true", "--agent", agent, "--quiet"]


def _worked(lab: Lab, agent: str, tasks: int) -> tuple[float, float]:
    """Return the seconds that the whole backlog took, and the sum of the seconds of its loops."""
    folder = _repository(lab, tasks)
    began = time.monotonic()
    subprocess.run(_words(lab, agent), cwd=folder, env=lab.env, check=True, capture_output=True)
    took, looped = time.monotonic() - began, 0.0
    (journal,) = (path.parent / "journal.ndjson" for path in folder.glob(".ralph/runs/*/work.json"))
    began_at: dict[str, float] = {}
    for entry in read_entries(journal):
        match entry.event():
            case TaskStarted(key=key):
                began_at[key] = entry.at
            case TaskReady(key=key):
                looped += entry.at - began_at[key]
    return took, looped


def _alone(lab: Lab, agent: str) -> float:
    """Run the same loops and checks without a backlog: as many at a time, each in its own worktree."""
    folder = _repository(lab, FEW)

    def loop(number: int) -> None:
        goal = f"T{number} Make number {number}"
        words = [lab.ralph, "run", goal, "--preset", "checks", "--worktree", "--check", "true", "--agent", agent]
        subprocess.run([*words, "--quiet"], cwd=folder, env=lab.env, check=True, capture_output=True)
        subprocess.run(["sh", "-c", "true"], check=True)

    began = time.monotonic()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(loop, range(FEW)))
    return time.monotonic() - began


def _resting(lab: Lab) -> tuple[float, float]:
    """Return the memory (MB) and share of a core (%) of a coordinator of 1,000 tasks while its agents think."""
    folder, home = _repository(lab, 1000), Path(lab.env["HOME"])
    work = subprocess.Popen(_words(lab, lab.script("thinker", THINKER)), cwd=folder, env=lab.env)
    try:
        while len([*home.glob("thinks.*")]) < SLOTS:
            time.sleep(0.05)
        time.sleep(SETTLING)
        before = _ticks(work.pid)
        time.sleep(WATCHED)
        share = (_ticks(work.pid) - before) / os.sysconf("SC_CLK_TCK") / WATCHED * 100
        status = Path(f"/proc/{work.pid}/status").read_text()
    finally:
        for number in (signal.SIGINT, signal.SIGINT):  # twice means now
            work.send_signal(number)
        work.wait()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), share


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
