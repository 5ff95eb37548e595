"""How far does a fleet go? `python -m bench.fleet`: the engine alone with 1,000 tasks that take no time, a worker that
has nothing to do, and tasks per hour against workers: measured here to 8, by simulation to 1,000.

The simulation makes the decisions of `core/backlog` itself; what takes time in it (a loop, a merge, the database's
share of a task) is given, or was measured before.
"""

import argparse
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

from msgspec.structs import replace
from tests.fleet.machines import Fleet
from tests.fleet.postgres import Postgres

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_source import BacklogSource
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import BacklogTask, Board, GateVerdict, Job, is_over, next_batch, next_starts
from ralph.git.remote import Remote
from ralph.settings import Settings

LOOP, CHECKS = 20 * 60.0, 60.0  # seconds: what a loop and the checks of a merge take in the simulation
OVERHEAD = 2.0  # seconds of git at the gate for each merge, over a network
AN_ITEM = 0.025  # seconds that the database is busy for a task
# As in the other benchmarks: half a million files of worktrees are made and removed, and a disk may take a millisecond
# of a processor for each.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def order(folder: str, name: str) -> WorkOrder:
    return WorkOrder(
        id=f"20260101-000000-{name}",
        name=name,
        workspace=folder,
        source=BacklogSource(word="list", name=name),
        settings=Settings(),
        target="",
        base="0" * 40,
        remote=Remote("origin", "main"),
    )


def take_part(url: str, folder: str, work: str, name: str) -> None:
    """A worker whose loops and merges take no time: all that is left is what they tell each other."""
    from ralph.core.secrets import Redactor
    from ralph.fleet.database import Database
    from ralph.fleet.shared_ledger import SharedLedger
    from ralph.fleet.worker import register
    from ralph.store.folder import RunFolder

    database = Database(url)
    place = RunFolder(Path(folder) / name, work)
    place.make()
    ledger = SharedLedger(place, [], Redactor(), database, register(database, name, 4))
    ledger.open()
    while not ledger.finished:
        ledger.hear()
        if ledger.takes_gate() or ledger.has_gate():
            while batch := next_batch(ledger.board):
                tips = [work_events.TaskMerged(key, "f" * 40, "e" * 40) for key in batch]
                ledger.tell(work_events.GateStarted(batch))
                ledger.tell(work_events.GateFinished(GateVerdict(tried=batch, merged=batch)), *tips)
            if is_over(ledger.board):
                done = {"outcome": "done", "reason": "", "merged": 0, "parked": 0, "blocked": 0, "tasks": 0}
                ledger.tell(work_events.WorkFinished(**done, cost_usd=None, duration_s=0.0, exit_code=0))
        for key in ledger.apart(next_starts(ledger.board)):
            if ledger.claims(key):
                run = f"{name}-{key}"
                ledger.tell(work_events.TaskStarted(key, 1, run, name))
                ledger.tell(work_events.TaskReady(key=key, tip=key, files=(key,), run=run))
    database.close()


def engine(server: Postgres, tasks: int, workers: int) -> tuple[float, float, float]:
    """So many tasks that take no time: seconds, and seconds of a processor, of all workers and of the server. On a
    machine that is busy with other things the latter are what can be compared."""
    from ralph.fleet.database import Database, ready
    from ralph.fleet.worker import enter, register

    url = server.database()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        database = Database(url)
        ready(database)
        made = order(folder, "flat")
        began, before, busy = time.monotonic(), os.times(), server.spent()
        listed = BacklogContent(tuple(BacklogTask(key=f"T{n}", title="x") for n in range(tasks)))
        enter(database, made, listed, register(database, "bringer", 0, brings=True))
        context = multiprocessing.get_context("spawn")
        parts = [
            context.Process(target=take_part, args=(url, folder, made.id, f"w{number}")) for number in range(workers)
        ]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        took, after, served = time.monotonic() - began, os.times(), server.spent() - busy
        used = after.children_user + after.children_system - before.children_user - before.children_system
        ((count,),) = database.do(
            lambda transaction: transaction.ask("SELECT count(*) FROM ralph_events WHERE line LIKE '%%task_merged%%'")
        )
        assert count == tasks, count
        database.close()
    return took, used, served


def idle(server: Postgres, seconds: float = 20.0) -> tuple[float, float]:
    """What a worker takes that has nothing to do: megabytes, and per cent of a core."""
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
    """Tasks per hour of so many real workers of two, whose agents do nothing but take their time."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder), server, tasks=tasks)
        fleet.agent.write_text(fleet.agent.read_text().replace("echo COMPLETE", f"sleep {loop}; echo COMPLETE"))
        try:
            others = [fleet.machine(f"m{number}") for number in range(1, workers)]
            for other in others:
                other.worker()
            fleet.wait(lambda: all("looks for work" in other.said for other in others))
            began = time.monotonic()
            assert fleet.machine("m0").work().wait(600) == 0, fleet.told()
            took = time.monotonic() - began
            fleet.audit()
        finally:
            fleet.close()
    return tasks / took * 3600


def instant(server: Postgres, tasks: int, workers: int = 3) -> tuple[float, float, float]:
    """So many real loops, merges and pushes of an agent that takes no time: seconds in all, those beyond the loops
    (were every slot always at work on one), and a processor's seconds."""
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
            assert done.wait(7200) == 0, fleet.told()
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
    """Tasks per hour of so many workers of two, by the same decisions."""
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
            board = work_events.after(board, work_events.TaskStarted(key, 1, key), now)
            number += 1
            heapq.heappush(ends, (busy + loop * chance.uniform(0.5, 1.5), number, key))
        if not ends:
            return tasks / now * 3600
        now, _, what = heapq.heappop(ends)
        if isinstance(what, tuple):
            board = work_events.after(board, work_events.GateFinished(GateVerdict(tried=what, merged=what)), now)
            for key in what:
                board = work_events.after(board, work_events.TaskMerged(key, "f", "e"), now)
        else:
            board = work_events.after(board, work_events.TaskReady(key=str(what), tip="f", files=(str(what),)), now)


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
