"""What does a backlog cost beside its loops? Twelve items beside the same loops without a list, a thousand items, and a
coordinator while its agents think. ITEMS=100 measures fewer than a thousand."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.lab import Lab
from bench.samples import Row, Sample, Wanted, taking_turns
from ralph.core.work_events import ItemReady, ItemStarted
from ralph.records.journal import read

SLOTS, FEW = 4, 12
MANY = int(os.environ.get("ITEMS", "1000"))
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
        Row(f"work off {FEW} items, {SLOTS} at a time", few.pop("ralph"), "s", few, Wanted(1.3, ALONE)),
        Row(f"work off {MANY:,} items, beyond their loops", Sample((took - looped / SLOTS,)), "s", {}, Wanted(10)),
        Row("coordinator of 1,000 items, memory", Sample((megabytes,)), "MB", {}, Wanted(30)),
        Row("coordinator while agents work, processor time", Sample((share,)), "%", {}, Wanted(0.1)),
    ]


def _repository(lab: Lab, items: int) -> Path:
    folder = lab.folder("backlog")
    (folder / "TASKS.md").write_text("".join(f"- [ ] T{number} Make number {number}\n" for number in range(items)))
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder, env=lab.env, check=True)
    return folder


def _words(lab: Lab, agent: str) -> list[str]:
    return [lab.ralph, "work", "TASKS.md", "-j", str(SLOTS), "--check", "true", "--agent", agent, "--quiet"]


def _worked(lab: Lab, agent: str, items: int) -> tuple[float, float]:
    """Seconds that a whole list took, and that its loops took one after the other."""
    folder = _repository(lab, items)
    began = time.monotonic()
    subprocess.run(_words(lab, agent), cwd=folder, env=lab.env, check=True, capture_output=True)
    took, looped = time.monotonic() - began, 0.0
    (journal,) = (path.parent / "journal.ndjson" for path in folder.glob(".ralph/runs/*/work.json"))
    began_at: dict[str, float] = {}
    for entry in read(journal):
        match entry.event():
            case ItemStarted(key=key):
                began_at[key] = entry.at
            case ItemReady(key=key):
                looped += entry.at - began_at[key]
    return took, looped


def _alone(lab: Lab, agent: str) -> float:
    """The same loops and checks without a list: as many at a time, each in a worktree of its own, with a last check."""
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
    """Megabytes and per cent of a core that the coordinator of a thousand items takes while its agents think."""
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
