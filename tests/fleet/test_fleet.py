"""Several machines work off one backlog: the real command, PostgreSQL and git, and a remote."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.machines import Fleet, Machine
from tests.fleet.postgres import Postgres, Relay
from tests.web.conftest import Served

pytestmark = pytest.mark.timeout(240)
TAKEOVER = 20.0  # seconds


def test_one_machine_alone_works_off_a_list(fleet: Fleet) -> None:
    fleet.is_warm = False  # once with a Python of its own
    home = fleet.machine("a")
    assert home.work().wait(120) == 0, home.said
    assert home.said.rstrip().splitlines()[-1] == "ralph: 4 of 4 merged into origin/main"
    fleet.audit()
    done = home.ralph("show")
    assert done.returncode == 0
    assert "4 of 4 merged into origin/main" in done.stdout
    fleet.nothing_survives()


def test_three_machines_share_a_backlog_and_each_can_report_on_it(tmp_path: Path, postgres: Postgres) -> None:
    fleet = Fleet(tmp_path, postgres, tasks=9, hot=3, is_warm=sys.platform == "linux")
    try:
        first, *others = (fleet.machine(name) for name in "abc")
        fleet.hold("T1", "T2", "T4", "T5")
        workers = [other.worker() for other in others]
        work = first.work()
        fleet.wait(lambda: all(map(fleet.has_begun, ("T1", "T2", "T4", "T5"))))
        status = first.ralph("work", "status", "--db", fleet.url)
        assert "heard" in status.stdout
        assert len({event["worker"] for event in fleet.all("task_started")}) == 3, "each machine runs a task"
        rows = [
            json.loads(line)
            for line in others[0].ralph("work", "status", "--db", fleet.url, "--json").stdout.splitlines()
        ]
        assert {row["worker"] for row in rows if "worker" in row} >= {"b", "c"}
        fleet.let_go()
        assert work.wait(120) == 0, fleet.describe()
        fleet.audit()
        for other, worker in zip(others, workers, strict=True):
            fleet.wait(lambda one=other: "9 of 9 merged" in one.ralph("report").stdout, "a copy of the events")  # type: ignore[misc]
            worker.terminate()
            assert worker.wait(30) == 130
        fleet.nothing_survives()
    finally:
        fleet.close()


@pytest.mark.slow
def test_the_tasks_of_a_killed_worker_continue_elsewhere_from_their_last_pushed_iteration(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    (fleet.waits / "twice-T1").touch()
    first, other = fleet.machine("a"), fleet.machine("b")
    work = first.work(slots=4)
    fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
    heads = fleet.git("branch", "--list", "--format=%(refname:short)", cwd=fleet.remote).splitlines()
    assert [head for head in heads if head.endswith("/T1")], "its branch is pushed after every iteration"
    other.worker(slots=4)
    fleet.wait(lambda: "looks for work" in other.said)
    first.kill()
    began = time.monotonic()
    fleet.wait_for("task_started", worker="b")
    assert time.monotonic() - began < TAKEOVER
    assert work.returncode == -signal.SIGKILL
    fleet.wait(lambda: not list(first.processes()), "processes survive")
    fleet.let_go()
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()
    assert (fleet.waits / "halves").read_text().split() == ["T1"], "a pushed iteration was repeated"


def start_all_tasks_on_one_of_two_machines(fleet: Fleet) -> tuple[Machine, Any]:
    """Return a machine that runs every task, and its process. A second machine has free slots."""
    fleet.hold(*fleet.keys)
    first, other = fleet.machine("a"), fleet.machine("b")
    work = first.work(slots=4)
    fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
    other.worker(slots=4)
    fleet.wait(lambda: "looks for work" in other.said)
    return first, work


@pytest.mark.slow
def test_the_tasks_of_a_suspended_worker_continue_elsewhere_although_its_connections_stay_open(fleet: Fleet) -> None:
    first, work = start_all_tasks_on_one_of_two_machines(fleet)
    os.kill(work.pid, signal.SIGSTOP)
    began = time.monotonic()
    fleet.wait_for("task_started", worker="b")
    assert time.monotonic() - began < TAKEOVER
    fleet.let_go()  # now the loops on both machines end, and only one machine may push
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()
    os.kill(work.pid, signal.SIGCONT)
    assert work.wait(60) == 0, first.said
    assert fleet.merged()
    assert len(fleet.merged()) == len(fleet.keys)
    assert {event["worker"] for event in fleet.all("task_started")[4:]} == {"b"}


@pytest.mark.slow
def test_a_worker_without_the_database_keeps_working_and_reports_its_tasks_when_it_is_back(fleet: Fleet) -> None:
    relay = Relay(fleet.postgres.port)
    apart = fleet.machine("a", url=fleet.url.replace(f":{fleet.postgres.port}/", f":{relay.port}/"))
    try:
        fleet.hold(*fleet.keys)
        work = apart.work(slots=4)
        fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
        relay.cut()
        fleet.wait(lambda: "waiting for PostgreSQL" in apart.said, "the message")
        fleet.let_go()

        def pushed() -> bool:
            heads = fleet.git("for-each-ref", "--format=%(objectname)", "refs/heads/ralph", cwd=fleet.remote)
            return len(set(heads.split())) == len(fleet.keys)

        fleet.wait(pushed, "loops that continue and push")
        assert fleet.merged() == []
        relay.restore()
        assert work.wait(120) == 0, apart.said
        fleet.audit()
        assert len(fleet.all("task_started")) == len(fleet.keys), "no task was started twice"
    finally:
        relay.close()


@pytest.mark.slow
def test_a_worker_without_the_database_drops_the_tasks_that_another_has_taken(fleet: Fleet) -> None:
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
        fleet.wait(lambda: len([1 for event in fleet.all("task_started") if event["worker"] == "b"]) == 4)
        fleet.let_go()
        fleet.wait_for("work_finished", exit_code=0)
        relay.restore()
        assert work.wait(120) == 0, apart.said
        fleet.audit()
        runs = {event["run"] for event in fleet.all("task_ready")}
        assert runs == {event["run"] for event in fleet.all("task_started") if event["worker"] == "b"}
    finally:
        relay.close()


def test_a_backlog_run_can_be_steered_from_any_machine(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, other, elsewhere = fleet.machine("a"), fleet.machine("b"), fleet.machine("c")
    work = first.work(slots=1)
    worker = other.worker(slots=1)
    fleet.wait(lambda: len(fleet.all("task_started")) == 2, "a task on both machines")

    def say(*words: str) -> str:
        done = elsewhere.ralph("work", *words, "--db", fleet.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    mine = next(event["key"] for event in fleet.all("task_started") if event["worker"] == "b")
    assert say("withdraw", mine) == f"{mine} is withdrawn; its branch stays\n"
    fleet.let_go(mine)
    fleet.wait(lambda: len(fleet.all("task_started")) == 3, "the next task, after the withdrawn one")
    assert "pauses" in say("pause")
    fleet.let_go()
    fleet.wait(lambda: "paused" in say("status"))
    assert "continues" in say("resume")
    fleet.wait(lambda: len(fleet.merged()) == 3, "the other three tasks merged")
    assert work.wait(60) == 0, "every task is merged or withdrawn"
    assert f"{mine} is tried again" in say("retry", mine, "and", "be", "quick")
    fleet.wait(lambda: sorted(fleet.merged()) == sorted(fleet.keys), "the task that is tried again")
    fleet.wait(lambda: len(fleet.all("work_finished")) == 2, "the second end")
    assert "4 of 4 merged" in say("status")
    assert "this backlog run is over" in elsewhere.ralph("work", "stop", "--db", fleet.url).stderr
    worker.terminate()
    assert worker.wait(30) == 130


def test_a_stop_ends_all_loops_and_the_rest_can_be_resumed(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, other = fleet.machine("a"), fleet.machine("b")
    work = first.work(slots=2)
    other.worker(slots=2)
    fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
    assert other.ralph("work", "stop", "--db", fleet.url).returncode == 0
    fleet.let_go()
    assert work.wait(60) == 130
    fleet.wait(lambda: not list(first.processes()), "processes survive")
    before = fleet.merged()
    assert other.ralph("work", "resume", "--db", fleet.url).stdout.endswith("continues\n")
    fleet.wait(lambda: sorted(fleet.merged()) == sorted(fleet.keys), "all tasks merged")
    assert fleet.merged()[: len(before)] == before
    fleet.wait(lambda: fleet.all("work_finished")[-1]["exit_code"] == 0, "the end")
    fleet.audit()


@pytest.mark.slow
def test_after_ctrl_c_on_one_machine_its_tasks_continue_on_the_others(fleet: Fleet) -> None:
    first, work = start_all_tasks_on_one_of_two_machines(fleet)
    work.send_signal(signal.SIGINT)
    fleet.let_go()
    assert work.wait(60) == 130
    assert "the other workers continue" in first.said.splitlines()[-1]
    assert "it continues on other machines" in first.ralph("ps", "-a").stdout
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()


def test_ps_and_status_work_without_the_database_on_each_machine_that_takes_part(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, other = fleet.machine("a"), fleet.machine("b")
    first.work(slots=2)
    other.worker(slots=2)
    fleet.wait(lambda: len(fleet.all("task_started")) == 4)
    for machine in (first, other):
        fleet.wait(lambda machine=machine: "4 working" in machine.ralph("ps").stdout, "the list of runs")  # type: ignore[misc]
        assert " on b · " in machine.ralph("work", "status").stdout, "the workers of the tasks"
    assert other.ralph("work", "retry", "T1").returncode == 2


@pytest.mark.slow
def test_one_worker_takes_tasks_of_two_backlogs(fleet: Fleet) -> None:
    (fleet.seed / "MORE.md").write_text("- [ ] M1 More\n- [ ] M2 More\n")
    fleet.git("add", "-A", cwd=fleet.seed)
    fleet.git("commit", "-qm", "more", cwd=fleet.seed)
    fleet.git("push", "-q", str(fleet.remote), "HEAD:main", "HEAD:refs/heads/second", cwd=fleet.seed)
    first, second, third = fleet.machine("a"), fleet.machine("b"), fleet.machine("c")
    third.worker()
    works = [
        first.work(),
        second.start(*(w.replace("TASKS", "MORE").replace("/main", "/second") for w in second.words())),
    ]
    assert [work.wait(120) for work in works] == [0, 0], fleet.describe()
    assert sorted(fleet.merged()) == fleet.keys
    done = third.ralph("work", "status", "--db", fleet.url, "nope")
    assert "no backlog run nope in this database" in done.stderr


@pytest.mark.slow
def test_the_same_command_on_another_machine_replaces_the_machine_that_brought_the_backlog(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, other = fleet.machine("a"), fleet.machine("b")
    first.work()
    fleet.wait_for("task_started")
    first.kill()
    refused = other.ralph(*other.words())
    assert "already" in refused.stderr, "the first machine may still be there"
    fleet.silence("%")
    fleet.let_go()
    assert other.work(slots=4).wait(120) == 0, other.said
    assert "continues as it was started" in other.said
    assert len(fleet.all("work_started")) == 1
    fleet.audit()


def test_status_shows_the_tasks_and_workers_of_a_fleet_from_anywhere(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    elsewhere = fleet.machine("c")
    fleet.machine("a").work(slots=2)
    fleet.machine("b").worker(slots=2)
    fleet.wait(lambda: len(fleet.all("task_started")) == 4)
    told = elsewhere.ralph("work", "status", "--db", fleet.url)
    assert told.returncode == 0, told.stderr
    assert "4 working" in told.stdout
    assert re.search(r"\n b: T\d, T\d \(2 at a time, heard \d s ago\)", told.stdout)
    rows = map(json.loads, elsewhere.ralph("work", "status", "--json", "--db", fleet.url).stdout.splitlines())
    assert [row["slots"] for row in rows if "worker" in row and "slots" in row] == [2, 2]
    assert "no runs on this machine yet" in elsewhere.ralph("ps", "-a").stderr


COSTLY = """#!/bin/sh
PROMPT=$(cat)
key=$(printf '%s\\n' "$PROMPT" | sed -n 's/^\\([a-zA-Z]*[0-9][0-9]*\\) .*/\\1/p' | head -1)
[ -e "tasks/half-$key" ] && sleep 600
echo "half-$key" > "tasks/half-$key"
echo '{"type":"result","subtype":"success","is_error":false,"result":"half of it","total_cost_usd":2.0}'
"""


@pytest.mark.slow
def test_the_budget_counts_what_loops_on_all_machines_have_spent(fleet: Fleet) -> None:
    """Two loops on each of two machines have spent $2 each, and none has finished."""
    claude = fleet.folder / "bin" / "claude"
    claude.parent.mkdir()
    claude.write_text(COSTLY)
    claude.chmod(0o755)
    first, other = fleet.machine("a"), fleet.machine("b")
    for machine in (first, other):
        machine.env["PATH"] = f"{claude.parent}:{machine.env['PATH']}"
    words = [word.replace(str(fleet.agent), "claude") for word in first.words(slots=2)]
    work = first.start(*words, "--max-cost", "7")
    other.worker(slots=2)
    assert work.wait(120) == 1, first.said
    (finished,) = fleet.all("work_finished")
    assert (finished["outcome"], finished["reason"]) == ("budget", "its budget is spent")
    assert len(fleet.all("task_started")) == 4


@pytest.mark.slow
def test_a_reader_that_stops_reading_does_not_keep_a_backlog_run_from_ending(
    tmp_path: Path, postgres: Postgres
) -> None:
    fleet = Fleet(tmp_path, postgres, tasks=600)  # more than a pipe holds
    fleet.hold(*fleet.keys[:4])
    try:
        machine = fleet.machine("m0")
        words = machine.words("--json", "--quiet", "--max-time", "3", slots=1)
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "ralph", *words]
        machine.process = subprocess.Popen(command, cwd=machine.folder, env=machine.env, stdout=writer)
        os.close(writer)
        assert machine.process.wait(90) == 1
        os.close(reader)
        (end,) = fleet.all("work_finished")
        assert end["outcome"] == "timeout"
    finally:
        fleet.close()


def test_the_web_ui_on_any_machine_that_takes_part_shows_a_backlog_run_and_steers_it(fleet: Fleet) -> None:
    fleet.hold("T1")
    first, other = fleet.machine("a"), fleet.machine("b")
    first.work(slots=1)
    fleet.wait(lambda: fleet.has_begun("T1"))
    other.worker(slots=1)
    words = [sys.executable, "-m", "ralph", "serve", "--port", "0"]
    with subprocess.Popen(words, env=other.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        served = Served(process, process.stdout.readline().strip(), other.env)
        served.cookie = served.enter()
        work = fleet.wait(lambda: works_on(other), "the list of runs")
        fleet.wait(lambda: "backlog TASKS.md" in served.get(f"runs/{work}").text, "the page")
        assert served.post(f"runs/{work}/pause").status == 200
        fleet.wait(lambda: "paused" in first.ralph("ps").stdout, "paused")
        assert served.post(f"runs/{work}/resume").status == 200
        fleet.wait(lambda: not fleet.all("work_paused")[-1]["is_paused"], "resumed")
        assert other.ralph("work", "withdraw", "T1").returncode == 0
        fleet.wait_for("task_withdrawn", key="T1")
        fleet.let_go()
        fleet.wait_for("work_finished")
        fleet.wait(lambda: "3 of 3 merged" in served.get(f"runs/{work}").text, "shown")
        process.kill()


def works_on(machine: Machine) -> str:
    """Return the id of the backlog run that is listed on a machine, or an empty text."""
    listed = map(json.loads, machine.ralph("ps", "--json").stdout.splitlines())
    return next((str(run["run"]) for run in listed if run.get("kind") == "work"), "")
