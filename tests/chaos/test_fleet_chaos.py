"""A fleet whose workers, gate holders, loops, merges and gits are killed, and whose PostgreSQL is restarted, until
all has merged. Nothing is lost, nothing is merged twice, no commit of the target is red, nothing survives.

RALPH_CHAOS_FLEET_KILLS and RALPH_CHAOS_SEED choose how many kills there are, and which; each fleet prints its seed.
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
from tests.fleet.machines import Fleet, Machine
from tests.fleet.postgres import Postgres, Relay

__all__ = ["server"]

KILLS = int(os.environ.get("RALPH_CHAOS_FLEET_KILLS", "60"))
SEED = int(os.environ.get("RALPH_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
NIGHT = int(os.environ.get("RALPH_CHAOS_NIGHT", "30"))
KINDS = {"worker": 4, "gate": 3, "run-task": 3, "run-gate": 3, "git": 3, "postgres": 2, "freeze": 1}
FREEZE = 12.0  # seconds: long enough that others take over
GATE = "SELECT by FROM ralph_events WHERE line LIKE '%\"gate_started\"%' ORDER BY work DESC, seq DESC LIMIT 1"


class Sufferers:
    """Three machines on one list."""

    def __init__(self, folder: Path, server: Postgres, seed: int, tasks: int = 12, hot: int = 3) -> None:
        self.seed, self.random, self.server = seed, random.Random(seed), server
        self.fleet = Fleet(folder, server, tasks=tasks, hot=hot)
        self.machines = [self.fleet.machine(name) for name in "abc"]
        self.kills: Counter[str] = Counter()
        self.ends = 0
        self.frozen: dict[int, float] = {}

    def begin(self) -> None:
        self.machines[0].work("--returns", "20")
        self.fleet.wait(lambda: self.fleet.all("work_started"), "it begins")
        self.keep_alive()

    def keep_alive(self) -> None:
        """Who was killed is started again, as its keeper would."""
        for machine in self.machines:
            if machine.process is None or machine.process.poll() is not None:
                machine.worker()

    def is_over(self) -> bool:
        return bool(self.fleet.all("work_finished"))

    def suffer(self, most: int) -> None:
        while sum(self.kills.values()) < most and not self.is_over():
            time.sleep(self.random.uniform(0.0, 1.0))
            kind = self.random.choices([*KINDS], [*KINDS.values()])[0]
            if self.strike(kind):
                self.kills[kind] += 1
            self.thaw(time.monotonic())
            self.keep_alive()

    def thaw(self, until: float) -> None:
        """Let frozen workers continue whose time is over."""
        for pid, end in [*self.frozen.items()]:
            if end <= until:
                del self.frozen[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def strike(self, kind: str) -> bool:
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
            self.ended(machine)
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

    def ended(self, machine: Machine) -> None:
        """Nothing of a worker outlives it."""
        self.fleet.wait(lambda: not list(machine.processes()), f"seed {self.seed}: processes survive")

    def finish(self) -> None:
        """Lets it come to its end. Anyone who was killed too often is parked, and is tried again."""
        self.thaw(math.inf)
        for _ in range(10):
            self.keep_alive()
            self.fleet.wait(lambda: self._state() is not None, f"seed {self.seed}: it comes to an end")
            parked = self._state() or []
            if not parked:
                break
            for key in parked:
                self.machines[1].ralph("work", "retry", key, "--db", self.fleet.url)
        for machine in self.machines:
            assert machine.process is not None
            if machine.process.poll() is None:
                machine.process.terminate()
                machine.process.wait(60)
        said = self.fleet.told()
        assert "internal error" not in said, said
        assert "Traceback" not in said, said

    def _state(self) -> list[str] | None:
        """The tasks that are parked, once the work is over."""
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
def test_a_fleet_that_is_killed_again_and_again(
    tmp_path: Path, server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    began, seed, commits = time.monotonic(), SEED, 0
    kills: Counter[str] = Counter()
    while sum(kills.values()) < KILLS:
        one = Sufferers(tmp_path / str(seed), server, seed)
        try:
            one.begin()
            one.suffer(min(KILLS - sum(kills.values()), 30))
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
def test_a_night_of_thirty_conflicting_items_two_workers_killed_and_one_cut_off(
    tmp_path: Path, server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other task wants the same line; the target is checked commit by commit in the morning."""
    relay = Relay(server.port)
    night = Sufferers(tmp_path, server, SEED, tasks=NIGHT, hot=2)
    first, second, apart = night.machines
    apart.url = apart.url.replace(f":{server.port}/", f":{relay.port}/")
    try:
        night.begin()
        night.fleet.wait(lambda: len(night.fleet.merged()) >= 4, "the first tasks merge")
        relay.cut()
        for victim in (first, second):
            before = len(night.fleet.merged())
            victim.kill()
            night.ended(victim)
            victim.worker()
            enough = min(before + 3, NIGHT)
            night.fleet.wait(lambda enough=enough: len(night.fleet.merged()) >= enough, "it goes on")
        relay.mend()
        night.finish()
        night.fleet.nothing_survives()
        commits = night.fleet.audit()
        attempts = Counter(event["key"] for event in night.fleet.all("task_started"))
        with capsys.disabled():
            print(
                f"\na night: {NIGHT} tasks in {commits} merges, {sum(attempts.values())} loops; two killed, one cut off"
            )
    finally:
        relay.close()
        night.fleet.close()
