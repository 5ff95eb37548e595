"""How a fleet scales (`python -m bench.fleet`): the engine alone with 1,000 tasks that take no time, an idle worker,
and tasks per hour for each number of workers, measured up to 8 and simulated up to 1,000.

The simulation uses the decisions of `core/backlog`. The times of a loop, of a merge and of the database are given, or
were measured before.
"""

import argparse
import asyncio
import heapq
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.fleet.machines import Fleet
from tests.fleet.postgres import Postgres

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_order import BacklogOrder
from ralph.backlog.backlog_source import BacklogSource
from ralph.backlog.children import TaskProcess, TaskProcesses
from ralph.backlog.gate import MergeRequest
from ralph.core import backlog_events
from ralph.core.backlog import BacklogTask, Board, GateVerdict, Job, TaskResult, next_batch, next_starts
from ralph.core.backlog_events import GATE
from ralph.fleet import local_backlog
from ralph.fleet.database import Database, fetch_all
from ralph.fleet.log import BacklogLog, add_backlog
from ralph.fleet.worker import Worker
from ralph.git.remote import Remote
from ralph.settings import Settings

LOOP, CHECKS = 20 * 60.0, 60.0  # seconds: what a loop and the checks of a merge take in the simulation
OVERHEAD = 2.0  # seconds of git at the gate for each merge, over a network
AN_ITEM = 0.025  # seconds that the database is busy for a task
# As in the other benchmarks: half a million files of worktrees are made and removed, and a disk may take a millisecond
# of a processor for each.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class NoChild(TaskProcess):
    """Takes the place of a loop or a merge, and takes no time."""

    verdict = GateVerdict()

    def poll_exit(self) -> bool:
        return True

    def result(self, kind: type) -> Any:
        if kind is TaskResult:
            key = self.key
            return TaskResult(outcome="done", reason="", exit_code=0, run=key, tip=key, files=(key,))
        return self.verdict if kind is GateVerdict else None


class NoChildren(TaskProcesses):
    def start_task(self, key: str, holder: str = "") -> NoChild:
        self.running[key] = child = NoChild(key, "", holder)
        return child

    def start_gate(self, request: MergeRequest, holder: str = "") -> NoChild:
        child, keys = self.start_task(GATE, holder), tuple(one.key for one in request.branches)
        child.verdict = GateVerdict(tried=keys, merged=keys, commit="e" * 40)
        return child


def clone_of(folder: str, name: str) -> Path:
    """Make a repository, the same for every name."""
    place = Path(folder, name)
    who = {f"GIT_{who}_{what}": "bench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    when = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
    for words in (
        ("init", "-q", "-b", "main", str(place)),
        ("-C", str(place), "commit", "-q", "--allow-empty", "-m", "first"),
        ("-C", str(place), "remote", "add", "origin", str(place)),
    ):
        subprocess.run(["git", *words], check=True, env={**os.environ, **who, **when})
    return place


def take_part(url: str, folder: str, name: str) -> None:
    """Run a worker whose loops and merges take no time: only communication is left."""
    setattr(local_backlog, "TaskProcesses", NoChildren)  # noqa: B010
    Worker(url, clone_of(folder, name), slots=4, name=name, is_quiet=True).run(once=True)


async def bring(url: str, order: BacklogOrder, tasks: int) -> None:
    content = BacklogContent(tuple(BacklogTask(key=f"T{n}", title="x") for n in range(tasks)))
    async with Database(url).connect() as database:
        await database.transact(add_backlog, BacklogLog(database, order.id), 0, order, order.base[:20], content)


async def count_merged(url: str) -> int:
    async with Database(url).connect() as database:
        ((count,),) = await database.transact(
            fetch_all, "SELECT count(*) FROM ralph_events WHERE line LIKE '%task_merged%'"
        )
    return int(count)


def engine(server: Postgres, tasks: int, workers: int) -> tuple[float, float, float]:
    """Run this many tasks that take no time. Return the seconds, and the CPU seconds of all workers and of the server,
    which can be compared even if the machine is busy with other things."""
    url = server.database()
    with tempfile.TemporaryDirectory() as folder:
        place = clone_of(folder, "home")
        base = subprocess.check_output(["git", "-C", place, "rev-parse", "HEAD"], text=True).strip()
        order = BacklogOrder(
            id="20260101-000000-flat",
            name="flat",
            workspace="",
            source=BacklogSource(name="flat"),
            settings=Settings(),
            target="",
            base=base,
            remote=Remote("origin", "main"),
        )
        began, before, busy = time.monotonic(), os.times(), server.spent()
        asyncio.run(bring(url, order, tasks))
        context = multiprocessing.get_context("spawn")
        parts = [context.Process(target=take_part, args=(url, folder, f"w{number}")) for number in range(workers)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        took, after, served = time.monotonic() - began, os.times(), server.spent() - busy
        used = after.children_user + after.children_system - before.children_user - before.children_system
        assert asyncio.run(count_merged(url)) == tasks
    return took, used, served


def idle(server: Postgres, seconds: float = 20.0) -> tuple[float, float]:
    """Return the memory (MB) and the share of a core (%) that an idle worker takes."""
    url = server.database()
    with tempfile.TemporaryDirectory() as folder:
        for words in (
            ("init", "-q"),
            ("-c", "user.name=b", "-c", "user.email=b", "commit", "-qm", "x", "--allow-empty"),
        ):
            subprocess.run(["git", *words], cwd=folder, check=True)
        env = {**os.environ, "HOME": folder}
        worker = subprocess.Popen(
            [sys.executable, "-m", "ralph", "worker", "--db", url, "--quiet"], cwd=folder, env=env
        )
        time.sleep(5)  # it has come to rest
        before = spent(worker.pid)
        time.sleep(seconds)
        share = (spent(worker.pid) - before) / seconds * 100
        status = Path("/proc", str(worker.pid), "status").read_text()
        resident = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
        worker.terminate()
        worker.wait()
    return resident, share


def spent(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(server: Postgres, workers: int, tasks: int, loop: float) -> float:
    """Return the tasks per hour of this many real workers with two slots each, whose agents only sleep."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder), server, tasks=tasks)
        fleet.agent.write_text(fleet.agent.read_text().replace("echo COMPLETE", f"sleep {loop}; echo COMPLETE"))
        try:
            others = [fleet.machine(f"m{number}") for number in range(1, workers)]
            for other in others:
                other.worker()
            fleet.wait(lambda: all("looks for work" in other.said for other in others))
            began = time.monotonic()
            assert fleet.machine("m0").work().wait(600) == 0, fleet.describe()
            took = time.monotonic() - began
            fleet.audit()
        finally:
            fleet.close()
    return tasks / took * 3600


def instant(server: Postgres, tasks: int, workers: int = 3) -> tuple[float, float, float]:
    """Run this many real loops, merges and pushes with an agent that takes no time.

    Return the seconds, those beyond the loops if every slot had always been busy, and the CPU seconds.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        fleet = Fleet(Path(folder), server, tasks=tasks)
        try:
            machines = [fleet.machine(f"m{number}") for number in range(workers)]
            for other in machines[1:]:
                other.worker()
            fleet.wait(lambda: all("looks for work" in other.said for other in machines[1:]))
            began, before = time.monotonic(), os.times()
            words = ("--agent", str(fleet.agent), "--check", "test -e TASKS.md", "-j", "2", "--quiet")
            done = machines[0].start("work", "TASKS.md", "--db", fleet.url, "--push=origin/main", *words)
            assert done.wait(7200) == 0, fleet.describe()
            took = time.monotonic() - began
            for other in machines[1:]:
                assert other.process is not None
                other.process.terminate()
                other.process.wait()
            after = os.times()
            assert sorted(fleet.merged()) == sorted(fleet.keys)
            at = {(event["type"], event["data"].get("key")): event["timestamp"] for event in fleet.events}
            ends = [(at["task_started", key], at["task_ready", key]) for key in fleet.keys]
            loops = sum((datetime.fromisoformat(b) - datetime.fromisoformat(a)).total_seconds() for a, b in ends)
        finally:
            fleet.close()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return took, took - loops / (2 * workers), used


def simulate(
    workers: int, *, loop: float = LOOP, checks: float = CHECKS, overhead: float = OVERHEAD, tasks: int = 0
) -> float:
    """Return the simulated tasks per hour of this many workers with two slots each."""
    slots, chance = 2, random.Random(1)
    tasks = tasks or max(workers * slots * 3, 60)
    jobs = {f"T{n}": Job(task=BacklogTask(key=f"T{n}", title="x")) for n in range(tasks)}
    board = Board(jobs=jobs, slots=workers * slots)
    now, busy, ends, number = 0.0, 0.0, list[tuple[float, int, object]](), 0
    while True:
        if batch := next_batch(board):
            board = replace(board, trying=batch)
            number += 1
            heapq.heappush(ends, (now + checks + overhead, number, batch))
        for key in next_starts(board):
            busy = max(busy, now) + AN_ITEM  # one after the other: each event of a work has its place in one order
            board = backlog_events.apply_event(board, backlog_events.TaskStarted(key, 1, key), now)
            number += 1
            heapq.heappush(ends, (busy + loop * chance.uniform(0.5, 1.5), number, key))
        if not ends:
            return tasks / now * 3600
        now, _, what = heapq.heappop(ends)
        if isinstance(what, tuple):
            board = backlog_events.apply_event(
                board, backlog_events.GateFinished(GateVerdict(tried=what, merged=what)), now
            )
            for key in what:
                board = backlog_events.apply_event(board, backlog_events.TaskMerged(key, "f", "e"), now)
        else:
            board = backlog_events.apply_event(
                board, backlog_events.TaskReady(key=str(what), tip="f", files=(str(what),)), now
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3, 4, 8])
    parser.add_argument("--measured", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--instant", type=int, default=0, help="so many real loops that take no time, with 3 workers")
    parser.add_argument("--simulated", type=int, nargs="*", default=[1, 10, 100, 300, 1000])
    given = parser.parse_args()
    server = Postgres()
    try:
        if given.workers:
            resident, share = idle(server)
            print(f"an idle worker: {resident:.0f} MB, {share:.2f} % of a core", flush=True)
        for workers in given.workers:
            took, used, served = engine(server, given.tasks, workers)
            each = (used + served) * 1000 / given.tasks
            print(f"{given.tasks} tasks, {workers} workers: {took:.1f} s; a processor's: {used:.1f} s of the workers,")
            print(f"  {served:.1f} s of PostgreSQL, {each:.1f} ms a task", flush=True)
        if given.instant:
            took, beyond, used = instant(server, given.instant)
            print(f"{given.instant} real loops that take no time, 3 workers of 2: {took:.1f} s, of them {beyond:.1f} s")
            print(f"  beyond the loops; {used:.1f} s of a processor, {used / given.instant:.2f} s a task", flush=True)
        for workers in given.measured:
            rate = measured(server, workers, tasks=32, loop=5.0)
            alike = simulate(workers, loop=5.0, checks=0.1, overhead=0.5, tasks=32)
            print(
                f"{workers} real workers of 2, loops of 5 s: {rate:.0f} tasks an hour (simulated: {alike:.0f})",
                flush=True,
            )
    finally:
        server.close()
    for workers in given.simulated:
        print(
            f"{workers} workers of 2, loops of 20 min, checks of 1 min: {simulate(workers):.0f} tasks an hour",
            flush=True,
        )


if __name__ == "__main__":
    main()
