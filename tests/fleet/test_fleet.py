"""Many machines and one backlog, as their users know it: the real command, real PostgreSQL, real gits and a remote."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.fleet.machines import Fleet
from tests.fleet.postgres import Postgres, Relay

pytestmark = pytest.mark.timeout(240)
TAKEOVER = 15.0  # seconds


def test_one_machine_alone_works_off_a_list(fleet: Fleet) -> None:
    home = fleet.machine("a")
    assert home.work().wait(120) == 0, home.said
    assert home.said.rstrip().splitlines()[-1] == "ralph: 4 of 4 landed on origin/main"
    fleet.audit()
    done = home.ralph("show")
    assert done.returncode == 0
    assert "4 of 4 landed on origin/main" in done.stdout
    fleet.nothing_survives()


def test_three_machines_share_a_list_and_every_one_can_tell_of_it(tmp_path: Path, postgres: Postgres) -> None:
    fleet = Fleet(tmp_path, postgres, items=9, hot=3)
    try:
        first, *others = (fleet.machine(name) for name in "abc")
        fleet.hold("T1", "T2", "T4", "T5")
        workers = [other.worker() for other in others]
        work = first.work()
        fleet.wait(lambda: all(map(fleet.has_begun, ("T1", "T2", "T4", "T5"))))
        status = first.ralph("work", "status", "--db", fleet.url)
        assert "heard" in status.stdout
        assert len({event["worker"] for event in fleet.all("item_started")}) == 3, "each has something to do"
        rows = [
            json.loads(line)
            for line in others[0].ralph("work", "status", "--db", fleet.url, "--json").stdout.splitlines()
        ]
        assert {row["worker"] for row in rows if "worker" in row} >= {"b", "c"}
        fleet.let_go()
        assert work.wait(120) == 0, fleet.told()
        fleet.audit()
        for other, worker in zip(others, workers, strict=True):
            assert "9 of 9 landed" in other.ralph("report", "--markdown").stdout, "its machine has it all"
            worker.terminate()
            assert worker.wait(30) == 130
        fleet.nothing_survives()
    finally:
        fleet.close()


def test_a_worker_that_is_killed_is_taken_over_from_its_last_pushed_iteration(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, other = fleet.machine("a"), fleet.machine("b")
    work = first.work(slots=4)
    fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
    other.worker(slots=4)
    fleet.wait(lambda: "looks for work" in other.said)
    first.kill()
    began = time.monotonic()
    fleet.wait_for("item_started", worker="b")
    assert time.monotonic() - began < TAKEOVER
    assert work.returncode == -signal.SIGKILL
    assert not list(first.processes()), "nothing of it survives"
    fleet.let_go()
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()


def test_a_worker_that_is_stopped_keeps_its_connection_and_is_taken_over_all_the_same(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, other = fleet.machine("a"), fleet.machine("b")
    work = first.work(slots=4)
    fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
    other.worker(slots=4)
    fleet.wait(lambda: "looks for work" in other.said)
    os.kill(work.pid, signal.SIGSTOP)
    began = time.monotonic()
    fleet.wait_for("item_started", worker="b")
    assert time.monotonic() - began < TAKEOVER
    fleet.let_go()  # now the loops of both come to their ends, and only one of them may push
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()
    os.kill(work.pid, signal.SIGCONT)
    assert work.wait(60) == 0, first.said
    assert fleet.landed()
    assert len(fleet.landed()) == len(fleet.keys)
    assert {event["worker"] for event in fleet.all("item_started")[4:]} == {"b"}


def test_a_worker_that_is_cut_off_goes_on_looping_and_pushes_nothing_until_it_is_in_charge_again(fleet: Fleet) -> None:
    relay = Relay(fleet.postgres.port)
    apart = fleet.machine("a", url=fleet.url.replace(f":{fleet.postgres.port}/", f":{relay.port}/"))
    try:
        fleet.hold(*fleet.keys)
        work = apart.work(slots=4)
        fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
        relay.cut()
        charge = next(apart.folder.glob(".ralph/runs/*/charge"))
        fleet.wait(lambda: float(charge.read_text()) < time.monotonic(), "it knows that it is cut off")
        fleet.let_go()
        trees = apart.home / ".local/state/ralph/worktrees"
        fleet.wait(lambda: len(list(trees.glob("*/items/T*"))) == len(fleet.keys), "it goes on looping")
        heads = fleet.git("branch", "--list", "--format=%(refname:short)", cwd=fleet.remote)
        assert heads == "main", "it pushes nothing"
        assert fleet.landed() == []
        relay.mend()
        assert work.wait(120) == 0, apart.said
        fleet.audit()
        assert len(fleet.all("item_started")) == len(fleet.keys), "nobody had taken its items: they are its own again"
    finally:
        relay.close()


def test_who_was_cut_off_while_another_took_over_drops_its_own_and_lands_nothing(fleet: Fleet) -> None:
    relay = Relay(fleet.postgres.port)
    apart = fleet.machine("a", url=fleet.url.replace(f":{fleet.postgres.port}/", f":{relay.port}/"))
    other = fleet.machine("b")
    try:
        fleet.hold(*fleet.keys)
        work = apart.work(slots=4)
        fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
        other.worker(slots=4)
        fleet.wait(lambda: "looks for work" in other.said)
        relay.cut()
        fleet.wait(lambda: len([1 for event in fleet.all("item_started") if event["worker"] == "b"]) == 4)
        fleet.let_go()
        fleet.wait_for("work_finished", exit_code=0)
        relay.mend()
        assert work.wait(120) == 0, apart.said
        fleet.audit()
        runs = {event["run"] for event in fleet.all("item_ready")}
        assert runs == {event["run"] for event in fleet.all("item_started") if event["worker"] == "b"}
    finally:
        relay.close()
