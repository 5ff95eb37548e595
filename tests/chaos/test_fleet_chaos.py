"""Kill workers, loops, merges and git at random, suspend workers and restart PostgreSQL until every task is merged.

No task may be lost or merged twice, each commit on the target must pass the check, and no process may be left.
RALPH_CHAOS_FLEET_KILLS and RALPH_CHAOS_SEED choose how many kills there are, and which; the seed is printed.
"""

import json
import math
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from tests.chaos.test_backlog_chaos import without_keepers
from tests.fleet.conftest import server
from tests.fleet.machines import PATIENCE, Fleet, Machine
from tests.fleet.postgres import Postgres, Relay

__all__ = ["server"]

KILLS = int(os.environ.get("RALPH_CHAOS_FLEET_KILLS", "60"))
SEED = int(os.environ.get("RALPH_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
NIGHT = int(os.environ.get("RALPH_CHAOS_NIGHT", "30"))
KINDS = {"worker": 4, "gate": 3, "run-task": 3, "run-gate": 3, "git": 3, "postgres": 2, "freeze": 1}
FREEZE = 12.0  # seconds: long enough that others take over
GATE = "SELECT by FROM ralph_events WHERE line LIKE '%\"gate_started\"%' ORDER BY work DESC, seq DESC LIMIT 1"


class ChaosFleet:
    """Three machines that work off one backlog."""

    def __init__(self, folder: Path, server: Postgres, seed: int, tasks: int = 12, hot: int = 3) -> None:
        self.seed, self.random, self.server = seed, random.Random(seed), server
        self.fleet = Fleet(folder, server, tasks=tasks, hot=hot)
        self.machines = [self.fleet.machine(name) for name in "abc"]
        self.kills: Counter[str] = Counter()
        self.ends = 0
        self.frozen: dict[int, float] = {}

    def begin(self) -> None:
        self.machines[0].work("--returns", "20")
        self.fleet.wait(lambda: self.fleet.all("work_started"), "the start")
        self.keep_alive()

    def keep_alive(self) -> None:
        """Start killed workers again, as systemd would."""
        for machine in self.machines:
            if machine.process is None or machine.process.poll() is not None:
                machine.worker()

    def is_over(self) -> bool:
        return bool(self.fleet.all("work_finished"))

    def disturb(self, most: int) -> None:
        while sum(self.kills.values()) < most and not self.is_over():
            time.sleep(self.random.uniform(0.0, 1.0))
            kind = self.random.choices([*KINDS], [*KINDS.values()])[0]
            if self.hit(kind):
                self.kills[kind] += 1
            self.thaw(time.monotonic())
            self.keep_alive()

    def thaw(self, until: float) -> None:
        """Continue the workers that are to be suspended until then."""
        for pid, end in [*self.frozen.items()]:
            if end <= until:
                del self.frozen[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def hit(self, kind: str) -> bool:
        """Kill, restart or suspend something of this kind; return False if there is nothing of it now."""
        if kind == "postgres":
            self.server.stop(self.random.choice((signal.SIGINT, signal.SIGQUIT)))
            time.sleep(self.random.uniform(0.0, 1.0))
            self.server.start()
            return True
        if kind == "freeze":
            process = self.random.choice(self.machines).process
            if process is None or process.poll() is not None or process.pid in self.frozen:
                return False
            os.kill(process.pid, signal.SIGSTOP)
            self.frozen[process.pid] = time.monotonic() + FREEZE
            return True
        if kind in ("worker", "gate"):
            machine = self.random.choice(self.machines) if kind == "worker" else self.gate_holder()
            if machine is None or machine.process is None or machine.process.poll() is not None:
                return False
            machine.kill()
            self.wait_for_end(machine)
            return True
        found = [pid for machine in self.machines for pid in machine.processes(kind)]
        found = found if kind == "git" else without_keepers(found)
        with suppress(ProcessLookupError, IndexError):
            os.kill(self.random.choice(found), signal.SIGKILL)
            return True
        return False

    def gate_holder(self) -> Machine | None:
        try:
            with psycopg.connect(self.fleet.url, connect_timeout=5) as connection:
                names = [by.partition("/")[0] for (by,) in connection.execute(GATE).fetchall()]
        except psycopg.Error:
            return None
        found = [machine for machine in self.machines for name in names if name.split("-")[0] == machine.name]
        return found[0] if found else self.machines[0]

    def wait_for_end(self, machine: Machine) -> None:
        """Wait until every process of a killed worker has ended."""
        self.fleet.wait(lambda: not list(machine.processes()), f"seed {self.seed}: processes survive")

    def finish(self) -> None:
        """Wait until every task is merged. Retry those that are parked because their process was killed too often."""
        self.thaw(math.inf)
        for _ in range(10):
            self.keep_alive()
            self.fleet.wait(lambda: self._state() is not None, f"seed {self.seed}: the end")
            parked = self._state() or []
            if not parked:
                break
            for key in parked:
                self.machines[1].ralph("work", "retry", key, "--db", self.fleet.url)
        for machine in self.machines:
            assert machine.process is not None
            if machine.process.poll() is None:
                machine.process.terminate()
                machine.process.wait(PATIENCE)
        said = self.fleet.describe()
        assert "internal error" not in said, said
        assert "Traceback" not in said, said

    def _state(self) -> list[str] | None:
        """Return the parked tasks once nothing else is left to do; until then None."""
        done = self.machines[1].ralph("work", "status", "--db", self.fleet.url, "--json")
        with suppress(ValueError):
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            states = {row["key"]: row["state"] for row in rows if "key" in row}
            self.keep_alive()
            if states and set(states.values()) <= {"merged", "parked", "blocked"}:
                return [key for key, state in states.items() if state == "parked"]
            if (ends := len(self.fleet.all("work_finished"))) > self.ends:  # the gate was killed three times in a row
                self.ends = ends
                self.machines[1].ralph("work", "resume", "--db", self.fleet.url)
        return None


@pytest.mark.timeout(1500)
def test_a_fleet_loses_and_repeats_nothing_however_often_it_is_killed(
    tmp_path: Path, server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    began, seed, commits = time.monotonic(), SEED, 0
    kills: Counter[str] = Counter()
    while sum(kills.values()) < KILLS:
        one = ChaosFleet(tmp_path / str(seed), server, seed)
        try:
            one.begin()
            one.disturb(min(KILLS - sum(kills.values()), 30))
            one.finish()
            one.fleet.nothing_survives()
            commits += one.fleet.audit()
        finally:
            one.fleet.close()
        kills += one.kills
        seed += 1
    with capsys.disabled():
        works = f"{seed - SEED} fleets, {commits} commits checked again"
        print(f"\n{sum(kills.values())} kills in {time.monotonic() - began:.0f} s: {works}; first seed {SEED}")
        print("of:", ", ".join(f"{name} {count}" for name, count in kills.most_common()))


@pytest.mark.timeout(1200)
def test_thirty_conflicting_tasks_merge_with_two_workers_killed_and_one_cut_off(
    tmp_path: Path, server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other task changes the same line. At the end each commit on the target is checked."""
    relay = Relay(server.port)
    night = ChaosFleet(tmp_path, server, SEED, tasks=NIGHT, hot=2)
    first, second, apart = night.machines
    apart.url = apart.url.replace(f":{server.port}/", f":{relay.port}/")
    try:
        night.begin()
        night.fleet.wait(lambda: len(night.fleet.merged()) >= 4, "the first merged tasks")
        relay.cut()
        for victim in (first, second):
            before = len(night.fleet.merged())
            victim.kill()
            night.wait_for_end(victim)
            victim.worker()
            enough = min(before + 3, NIGHT)
            night.fleet.wait(lambda enough=enough: len(night.fleet.merged()) >= enough, "more merged tasks")
        relay.restore()
        night.finish()
        night.fleet.nothing_survives()
        commits = night.fleet.audit()
        attempts = Counter(event["key"] for event in night.fleet.all("task_started"))
        with capsys.disabled():
            print(f"\n{NIGHT} tasks in {commits} merges, {sum(attempts.values())} loops; two killed, one cut off")
    finally:
        relay.close()
        night.fleet.close()
