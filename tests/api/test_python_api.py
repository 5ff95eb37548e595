"""§14: the loop from Python, as a program that has threads, signals and children of its own uses it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ralph import RalphConfig, RalphLoop, RalphLoopResult
from ralph.errors import UserError


class Worker:
    """An agent that always gives the same answer."""

    def __init__(self, answer: Any = "COMPLETE", **offered: Any) -> None:
        self.answer, self.offered, self.prompt = answer, offered, ""

    def run(self, prompt: str) -> Any:
        self.prompt = prompt
        return self.answer


@pytest.fixture(autouse=True)
def _home(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def loop(workspace: Path, answer: Any = "COMPLETE", **config: Any) -> RalphLoopResult:
    chosen = RalphConfig(**{"task": "t", "checks": ["true"], "max_iterations": 2, **config})
    return RalphLoop(chosen, lambda **kwargs: Worker(answer), str(workspace)).run()


@pytest.mark.parametrize(
    "factory",
    [Worker, lambda: Worker(), lambda **kwargs: Worker(), lambda agent: Worker(), lambda agent, model=None: Worker()],
)
def test_factories_may_have_any_signature(workspace: Path, factory: Callable[..., Worker]) -> None:
    assert RalphLoop(RalphConfig("t", ["true"]), factory, str(workspace)).run().success


def test_dir_lists_everything_that_can_be_imported() -> None:
    import ralph

    assert {"Backlog", "RalphLoop", "RalphConfig", "Supervisor", "MessageBus", "run_loop"} <= {*dir(ralph)}
    assert all(hasattr(ralph, name) for name in dir(ralph))


def test_a_factory_gets_the_values_of_the_configuration(workspace: Path) -> None:
    made: list[Worker] = []
    config = RalphConfig("t", ["test -f twice || ! touch twice"], agent="reviewer", model="large")
    RalphLoop(config, lambda **kwargs: made.append(Worker(**kwargs)) or made[-1], str(workspace)).run()
    assert [worker.offered for worker in made] == [
        {"agent": "reviewer", "model": "large", "workspace_root": str(workspace)}
    ] * 2, "a fresh agent for each iteration"


@pytest.mark.parametrize(
    ("answer", "steps", "cost"),
    [
        ("COMPLETE", 0, 0.0),
        (SimpleNamespace(final_output="COMPLETE", steps=4, cost=0.25), 4, 0.25),
        (SimpleNamespace(final_output="COMPLETE", steps=["a", "b"]), 2, 0.0),
        (SimpleNamespace(final_output="COMPLETE", steps=None, cost=None), 0, 0.0),
        # As the agents of seed 004's own program say it.
        (
            SimpleNamespace(final_output="COMPLETE", current_step=3, cost_tracker=SimpleNamespace(total_cost_usd=0.5)),
            3,
            0.5,
        ),
    ],
)
def test_an_answer_is_text_or_an_object_with_a_final_output(
    workspace: Path, answer: Any, steps: int, cost: float
) -> None:
    result = loop(workspace, answer)
    assert (result.success, result.iterations[0].steps_taken, result.total_cost) == (True, steps, cost)


@pytest.mark.parametrize("answer", [None, 5, {"final_output": "COMPLETE"}])
def test_an_answer_of_another_kind_is_an_error_and_not_an_empty_answer(workspace: Path, answer: Any) -> None:
    result = loop(workspace, answer)
    assert not result.success
    assert "neither text nor an object with final_output" in str(result.iterations[0].error)


@pytest.mark.parametrize(
    ("config", "answer", "reason"),
    [
        ({}, "COMPLETE", "all_checks_passed"),
        ({"checks": ["false"]}, "COMPLETE", "max_iterations"),
        ({}, "INCOMPLETE", "max_iterations"),
        ({"max_cost": 1}, SimpleNamespace(final_output="", cost=1.0), "budget_exhausted"),
        ({"checks": ["sleep 60"], "max_time": 1}, "COMPLETE", "timeout"),
        ({"completion_tag": "FIN"}, "FIN", "all_checks_passed"),
    ],
)
def test_the_result_has_the_reason_why_the_loop_ended(workspace: Path, config: Any, answer: Any, reason: str) -> None:
    result = loop(workspace, answer, **config)
    assert (result.stop_reason, result.success) == (reason, reason == "all_checks_passed")
    assert result.total_iterations == len(result.iterations)
    assert result.worktree_path == ""
    assert result.reason or reason == "all_checks_passed", "a loop that failed says why"


def test_protected_files_are_restored(workspace: Path) -> None:
    (workspace / "test_it.py").write_text("strict")
    config = RalphConfig("t", ["true"], max_iterations=1, protect=["test_*.py"])

    class Cheat(Worker):
        def run(self, prompt: str) -> str:
            (workspace / "test_it.py").write_text("lax")
            return "COMPLETE"

    result = RalphLoop(config, lambda **kwargs: Cheat(), str(workspace)).run()
    assert (result.success, (workspace / "test_it.py").read_text()) == (False, "strict")


@pytest.mark.parametrize("config", [{"yolo": True}, {"sandbox": True}])
def test_yolo_and_sandbox_reach_a_named_agent(
    repository: Path, agent: Callable[..., str], environment: dict[str, str], bubblewrap: str, config: Any
) -> None:
    outside = Path(environment["HOME"], "outside")
    agent(f'echo "$@" > arguments; echo x > {outside}; echo COMPLETE', "claude")
    chosen = RalphConfig("t", [f"! test -e {outside} && echo x > {outside}"], max_iterations=1, **config)
    RalphLoop(chosen, workspace_root=repository, agent="claude").run()
    assert "--dangerously-skip-permissions" in (repository / "arguments").read_text()
    assert outside.exists() is not chosen.sandbox


@pytest.mark.parametrize(
    "config",
    [
        {"task": " "},
        {"checks": []},
        {"checks": [""]},
        {"checks": "pytest -q"},
        {"protect": "tests/**"},
        {"max_iterations": 0},
        {"completion_tag": ""},
        {"spec_file": "nowhere.md"},
        {"use_worktree": True},
    ],
)
def test_a_configuration_that_cannot_work_raises_before_the_first_turn(workspace: Path, config: Any) -> None:
    with pytest.raises(UserError) as raised:
        loop(workspace, **config)
    assert "command line" not in str(raised.value)


def test_the_output_of_a_check_mentions_its_timeout(workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text('{"checkTimeout": 3}')
    (check, *_) = loop(workspace, checks=["echo before; sleep 60"]).iterations[0].check_results
    assert check == {"name": "echo before; sleep 60", "passed": False, "output": "before\nTimeout (3s)"}


def test_prompts_and_answers_of_a_python_agent_are_saved(workspace: Path) -> None:
    loop(workspace, "All is well.\nCOMPLETE")
    (folder,) = (workspace / ".ralph" / "runs").glob("*/iterations/001")
    assert (folder / "prompt.md").read_text().startswith("# Task\n\nt\n")
    assert (folder / "output.md").read_text() == "All is well.\nCOMPLETE"


def test_a_worktree_is_removed_only_if_its_work_exists_elsewhere(repository: Path, git: Callable[..., str]) -> None:
    class Builder:
        def __init__(self, workspace_root: str) -> None:
            self.place = Path(workspace_root)

        def run(self, prompt: str) -> str:
            (self.place / "made").write_text("x")
            return "COMPLETE"

    runner = RalphLoop(RalphConfig("t", ["test -f made"], use_worktree=True), Builder, str(repository))
    worktree = Path(runner.run().worktree_path)
    assert (worktree / "made").exists()
    assert not (repository / "made").exists()
    runner.cleanup_progress()
    assert not (worktree / ".ralph" / "progress.md").exists()
    assert runner.cleanup_worktree() is False
    git("merge", "-q", git("branch", "--list", "ralph/*").split()[-1])
    assert runner.cleanup_worktree() is True
    assert not worktree.exists()


def test_the_calling_program_is_left_unchanged(workspace: Path) -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
    before = {number: signal.getsignal(number) for number in signals}
    files, threads, ours = os.listdir("/proc/self/fd"), threading.enumerate(), children()
    for _ in range(3):
        assert loop(workspace).success
    assert {number: signal.getsignal(number) for number in signals} == before
    assert len(os.listdir("/proc/self/fd")) <= len(files)
    assert set(threading.enumerate()) <= set(threads)
    assert children() <= ours


def children() -> set[str]:
    """The processes of this one, which may have some of other tests'."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_loops_may_run_in_threads_and_next_to_an_event_loop(tmp_path: Path) -> None:
    def one(number: int) -> bool:
        (tmp_path / str(number)).mkdir()
        return loop(tmp_path / str(number)).success

    async def several() -> list[bool]:
        return list(await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(3))))

    assert asyncio.run(several()) == [True, True, True]


def test_asyncio_gets_a_signal_that_came_during_a_loop(workspace: Path) -> None:
    class Signalling:
        def run(self, prompt: str) -> str:
            signal.raise_signal(signal.SIGUSR1)
            return "COMPLETE"

    async def main() -> bool:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        RalphLoop(RalphConfig("t", ["true"]), Signalling, str(workspace)).run()
        return await asyncio.wait_for(heard.wait(), 5)

    assert asyncio.run(main())


@pytest.mark.parametrize(("signals", "ending"), [(1, "interrupted"), (2, "KeyboardInterrupt")])
def test_the_first_signal_lets_the_agent_finish_and_the_second_ends_it(
    workspace: Path, signals: int, ending: str
) -> None:
    program = f"""
import os, signal
from ralph import RalphConfig, RalphLoop

class Deaf:
    def run(self, prompt):
        for _ in range({signals}):
            os.kill(os.getpid(), signal.SIGINT)
        print("finished")
        return "COMPLETE"

try:
    print(RalphLoop(RalphConfig("t", ["true"]), Deaf).run().stop_reason)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=workspace, capture_output=True, text=True)
    assert process.stdout.split() == ["finished", ending][signals - 1 :]
    (journal,) = (workspace / ".ralph" / "runs").glob("*/journal.ndjson")
    assert '"outcome":"interrupted"' in journal.read_text().splitlines()[-1]


def test_a_keyboard_interrupt_in_the_agent_reaches_the_caller_and_the_journal(workspace: Path) -> None:
    class Interrupted:
        def run(self, prompt: str) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RalphLoop(RalphConfig("t", ["true"]), Interrupted, str(workspace)).run()
    (journal,) = (workspace / ".ralph" / "runs").glob("*/journal.ndjson")
    assert '"outcome":"interrupted"' in journal.read_text().splitlines()[-1]


@pytest.mark.parametrize("deaths", ["SIG_IGN", "take_note"])
def test_the_calling_program_may_ignore_or_handle_sigchld(repository: Path, deaths: str) -> None:
    program = f"""
import os, signal
from ralph import RalphConfig, RalphLoop

def take_note(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

class Worker:
    def __init__(self, workspace_root):
        self.place = workspace_root
    def run(self, prompt):
        open(self.place + "/made", "w").close()
        return "COMPLETE"

SIG_IGN = signal.SIG_IGN
signal.signal(signal.SIGCHLD, {deaths})
print(RalphLoop(RalphConfig("t", ["test -f made"], use_worktree=True), Worker).run().stop_reason)
assert signal.getsignal(signal.SIGCHLD) == {deaths}
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True)
    assert process.stdout == "all_checks_passed\n", process.stderr


def test_an_agent_can_terminate_the_processes_that_it_forks(workspace: Path) -> None:
    program = """
import multiprocessing, time
from ralph import RalphConfig, RalphLoop

def work(begun):
    begun.set()
    time.sleep(600)

class Forking:
    def run(self, prompt):
        fork = multiprocessing.get_context("fork")
        begun = fork.Event()  # Python forgets the signals that come before
        child = fork.Process(target=work, args=(begun,))
        child.start()
        begun.wait()
        child.terminate()
        child.join(60)
        print(child.exitcode)
        child.kill()
        return "COMPLETE"

RalphLoop(RalphConfig("t", ["true"]), Forking).run()
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=workspace, capture_output=True, text=True)
    assert (process.stdout, process.stderr) == ("-15\n", "")


def test_a_closed_stderr_is_harmless(workspace: Path) -> None:
    program = """
import os
from ralph import RalphConfig, RalphLoop

class Writing:
    def run(self, prompt):
        for stream in (1, 2):
            os.write(stream, b"some trouble, said at some length")
        return "COMPLETE"

result = RalphLoop(RalphConfig("t", ["true"]), Writing).run()
open("result", "w").write(f"{result.stop_reason} {result.iterations[0].error}")
"""
    (workspace / "program.py").write_text(program)
    command = f"exec {sys.executable} program.py <&- >&- 2>&-"
    subprocess.run(["sh", "-c", command], cwd=workspace, check=True, timeout=60)
    assert (workspace / "result").read_text() == "all_checks_passed None"


def test_a_strict_type_checker_accepts_programs_that_use_the_api(tmp_path: Path) -> None:
    program = """
from pathlib import Path
from threading import Event

from ralph import Backlog, RalphConfig, RalphLoop, Supervisor


class Worker:
    def run(self, prompt: str) -> str:
        return "COMPLETE"


for workspace in (None, "here", Path("here")):
    result = RalphLoop(RalphConfig("t", ["true"], max_cost=1), Worker, workspace).run()
    print(result.success, result.iterations[0].error)
print(Supervisor(Path("root/project/task"), run_root=lambda attempt: None, cancel=Event()).run().outcome)
code: int = Backlog("TASKS.md", ["make test"], Path("here"), agent="claude", jobs=4, max_cost=20).run().exit_code
"""
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "program.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.stdout == "Success: no issues found in 1 source file\n"


def test_two_loops_with_different_settings_run_in_one_program_at_the_same_time(tmp_path: Path) -> None:
    before, both = dict(os.environ), threading.Barrier(2, timeout=30)
    results: dict[str, RalphLoopResult] = {}

    def run(name: str, check: str, tag: str, cap: int) -> None:
        folder = tmp_path / name
        folder.mkdir()

        class Meeting(Worker):
            def run(self, prompt: str) -> str:
                both.wait()  # both loops are in a turn now
                return tag

        config = RalphConfig(name, [check], completion_tag=tag, max_iterations=cap)
        results[name] = RalphLoop(config, lambda **kwargs: Meeting(), folder, cancel=threading.Event()).run()

    threads = [
        threading.Thread(target=run, args=("green", "test $(basename $PWD) = green", "READY", 2)),
        threading.Thread(target=run, args=("red", "test $(basename $PWD) = green", "FINISHED", 1)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (results["green"].stop_reason, results["red"].stop_reason) == ("all_checks_passed", "max_iterations")
    assert [result.total_iterations for result in (results["green"], results["red"])] == [1, 1]
    assert dict(os.environ) == before
