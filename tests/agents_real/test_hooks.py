"""Loops inside sessions of the real agents: each host with its hooks installed, against the scripted model."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pyte
import pytest
from furniture import ALONE, KEY
from lab import LIMIT, RALPH, Ran, Room
from script import Forever, Hang, Say, Uses, shell, write

from ralph.hooks.hosts import HOSTS

DONE = "It is made.\n<promise>DONE</promise>"
TASK = "make \"it\" with $(touch oops) `touch oops` 'q' & <b> {{x}}"
LINES = {
    **ALONE,
    "codex": "codex exec --json --dangerously-bypass-hook-trust --dangerously-bypass-approvals-and-sandbox -",
}

on_every_host = pytest.mark.parametrize("agent", list(HOSTS), indirect=True)


@pytest.fixture
def hooked(room, agent):
    """The agent's room, with the hooks in it."""

    @contextmanager
    def made(*steps):
        with room(*steps) as place:
            assert ralph(place, "hook", "install", agent).returncode == 0
            yield place

    return made


def run_in_room(place, *argv, stdin=""):
    """Run a command in the room without disturbing other processes there."""
    return subprocess.run(
        argv, input=stdin, cwd=place.workspace, env=place.env, capture_output=True, text=True, timeout=LIMIT
    )


def ralph(place, *words):
    return run_in_room(place, *RALPH, *words)


def headless(place, prompt, *words):
    return place.finish(place.start(*shlex.split(LINES[place.agent]), *words), prompt)


def loop(task=TASK, *options):
    return f'/ralph-loop "{task.replace(chr(34), chr(92) + chr(34))}" ' + " ".join(options)


def log(place) -> list[str]:
    return Path(place.workspace, ".ralph/hook/log").read_text().splitlines()


def status(place) -> list[str]:
    return [line.split("  ")[1] for line in ralph(place, "hook", "status").stdout.splitlines()]


@on_every_host
def test_a_stop_is_blocked_the_session_continues_and_the_promise_is_accepted(hooked):
    with hooked() as place:
        made = place.workspace / "made.txt"
        place.play(Say("I think I am done."), write(made, "hello\n"), Say(DONE))
        ran = headless(place, loop(TASK, "--max-iterations", "3"))
        assert ran.code == 0, ran
        assert made.read_text().strip() == "hello", ran
        assert status(place) == ["PROMISE_ACCEPTED"], ran
        assert [line.split(" ", 3)[3].split(":")[0] for line in log(place)] == ["started", "blocked", "allowed"]
        first, second, _ = place.stage.asked
        assert any(TASK in plain(text) for _, text in first.messages), first.messages[-2:]
        assert "<promise>" in "".join(text for _, text in first.messages)
        assert ("assistant", "I think I am done.") in second.messages, "another session"
        assert "Original task" in second.prompt
        assert TASK in plain(second.prompt)
        assert not (place.workspace / "oops").exists()
        assert (place.stage.steps, place.stage.surplus) == ([], 0)


def plain(text: str) -> str:
    """Undo the escaping of hosts that put the output of a hook into an XML tag."""
    return (
        text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", '"')
        .replace("&apos;", "'")
        .replace("&amp;", "&")
    )


@on_every_host
def test_a_promise_without_work_is_rejected(hooked):
    with hooked() as place:
        place.play(Say(DONE), shell("echo worked"), Say(DONE))
        ran = headless(place, loop())
        assert status(place) == ["PROMISE_ACCEPTED"], ran
        assert "promise rejected" in log(place)[1]
        assert "no tool calls/work were performed" in place.stage.asked[1].prompt
        assert (place.stage.steps, place.stage.surplus) == ([], 0)


@on_every_host
def test_the_cap_ends_a_loop(hooked):
    with hooked(*(Say(f"Not yet, number {n}.") for n in range(4))) as place:
        ran = headless(place, loop(TASK, "--max-iterations", "3"))
        assert ran.code == 0, ran
        assert status(place) == ["MAX_ITERATIONS_REACHED"], ran
        assert (len(place.stage.asked), place.stage.surplus) == (4, 0)


@on_every_host
def test_a_red_check_keeps_the_agent_working(hooked):
    with hooked() as place:
        made = place.workspace / "made.txt"
        place.play(shell("echo worked"), Say(DONE), write(made, "fixed\n"), Say(DONE))
        ran = headless(place, loop(TASK, "--check", '"echo the-output; grep -q fixed made.txt"'))
        assert status(place) == ["PROMISE_ACCEPTED"], ran
        assert "the-output" in place.stage.asked[2].prompt
        assert "promise rejected by checks" in log(place)[1]
        assert (place.stage.steps, place.stage.surplus) == ([], 0)


@on_every_host
def test_a_loop_is_cancelled_from_another_terminal(hooked):
    with hooked() as place, held(place) as gate:
        place.play(gate.step, Say("Not done at all."))
        turn = gate.in_background(headless, place, loop())
        assert ralph(place, "hook", "cancel").stdout.endswith("CANCELLED\n")
        gate.open()
        ran = turn.result()
        assert ran.code == 0, ran
        assert status(place) == ["CANCELLED"]
        assert (len(place.stage.asked), place.stage.surplus) == (2, 0)


@on_every_host
def test_another_session_in_the_same_project_is_not_touched(hooked):
    with hooked() as place, held(place) as gate:
        place.play(gate.step, Say("Just an answer."), Say(DONE))
        turn = gate.in_background(headless, place, loop())
        other = run_in_room(place, *shlex.split(LINES[place.agent]), stdin="a question")
        assert "Just an answer." in other.stdout, other
        assert len(place.stage.asked) == 2, "the other session was kept"
        gate.open()
        ran = turn.result()
        assert status(place) == ["PROMISE_ACCEPTED"], ran
        assert len(log(place)) == 2
        assert (place.stage.steps, place.stage.surplus) == ([], 0)


STORES = {
    "claude": ".claude/projects",
    "codex": ".codex/sessions .codex/*.sqlite*",
    "gemini": ".gemini/tmp",
    "qwen": ".qwen/projects",
    "opencode": ".local/share/opencode",
    "pi": ".pi/agent/sessions",
    "copilot": ".copilot/session-state",
}
from_outside = pytest.mark.parametrize("agent", list(STORES), indirect=True)


@from_outside
def test_the_promise_preset_runs_the_same_loop_from_outside(room):
    with room() as place:
        place.play(Say("I think I am done."), write(place.workspace / "made.txt", "hello\n"), Say(DONE))
        ran = place.ralph("--preset", "promise", TASK)
        assert (ran.code, ran.outcome) == (0, "done"), ran
        first, second = (event["record"]["turn"]["session"] for event in ran.of("iteration_finished"))
        assert first == second
        asked = place.stage.asked[1]
        assert ("assistant", "I think I am done.") in asked.messages
        assert "did not output the completion promise" in asked.prompt
        assert f"Original task:\n{TASK}" in asked.prompt


@from_outside
def test_a_lost_session_is_replaced_by_a_fresh_one(room, agent):
    with room() as place:
        place.play(Say("I think I am done."), Forever(Say("A fresh start.")))
        lost = " ".join(f"{place.home}/{store}" for store in STORES[agent].split())
        ran = place.ralph("--preset", "promise", "-m", "1", "--check", f"rm -rf {lost}; false", TASK)
        assert ran.outcome == "exhausted", ran
        assert len(place.stage.asked) == 2
        notices = [event["text"] for event in ran.of("notice")]
        assert any("session" in text and "fresh" in text for text in notices), notices


class Gate:
    """A tool call that lasts until the test ends it."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._up, self._down, self._pool = folder / "up", folder / "down", pool
        for fifo in (self._up, self._down):
            os.mkfifo(fifo)
        self.step = shell(f"echo up > {self._up}; cat {self._down}")

    def in_background(self, call: Callable[..., Ran], *words: object) -> "Future[Ran]":
        """Start `call` in a thread; return when the tool is running."""
        future = self._pool.submit(call, *words)
        assert self._up.read_text() == "up\n"
        return future

    def open(self) -> None:
        self._down.write_text("go on\n")


@contextmanager
def held(place: Room) -> Iterator[Gate]:
    with ThreadPoolExecutor(1) as pool:
        yield Gate(place.workspace.parent, pool)


@pytest.mark.parametrize("agent", ["claude"], indirect=True)
class TestClaude:
    """Cases that only Claude Code has, or that are tested only with it."""

    def test_ralphs_limit_on_refusals_replaces_the_agents_own(self, hooked):
        with hooked(*(Say(f"Not yet, number {n}.") for n in range(13))) as place:
            headless(place, loop(TASK, "--max-iterations", "12"))
            assert status(place) == ["MAX_ITERATIONS_REACHED"]
            assert (len(place.stage.asked), place.stage.surplus) == (13, 0)

    def test_a_stop_while_a_background_task_is_running_is_not_counted(self, hooked):
        """The task ends once the hook has reported it; then the host continues by itself, and the stop is judged."""
        with hooked() as place:
            command = "until grep -q 'not counted' .ralph/hook/log; do sleep 0.1; done"
            behind = {"command": command, "description": "wait", "run_in_background": True}
            place.play(Uses((("Bash", behind),)), Say("I wait for it."), Say("It is over."), Say(DONE))
            ran = headless(place, loop(TASK, "--max-iterations", "1"))
            assert status(place) == ["PROMISE_ACCEPTED"], ran
            decided = [line.split(" ", 3)[3].split(":")[0] for line in log(place)]
            assert decided == ["started", "allowed, not counted", "blocked", "allowed"]
            assert "<task-notification>" in place.stage.asked[2].prompt
            assert (place.stage.steps, place.stage.surplus) == ([], 0)

    def test_a_loop_is_cancelled_by_its_command(self, hooked):
        with hooked(shell("echo hi"), Say("Fine.")) as place:
            begun = headless(place, loop(), "--max-turns", "1")  # its hook is not asked when turns run out
            session = json.loads(begun.stdout.splitlines()[0])["session_id"]
            assert status(place) == ["ACTIVE"], begun
            cancelled = headless(place, "/cancel-ralph", "--resume", session)
            assert "ralph: CANCELLED" in cancelled.stdout, cancelled
            assert status(place) == ["CANCELLED"]
            headless(place, "hello", "--resume", session)
            assert (place.stage.steps, place.stage.surplus) == ([], 0), "no longer kept, and /cancel-ralph cost nothing"

    def test_a_loop_continues_in_a_resumed_session(self, hooked):
        with hooked(shell("echo hi"), Say("Am I done?"), Say(DONE)) as place:
            begun = headless(place, loop(), "--max-turns", "1")
            session = json.loads(begun.stdout.splitlines()[0])["session_id"]
            headless(place, "go on", "--resume", session)
            assert status(place) == ["PROMISE_ACCEPTED"]
            assert (place.stage.steps, place.stage.surplus) == ([], 0)

    def test_a_second_loop_is_refused_while_one_is_active(self, hooked):
        with hooked(shell("echo hi")) as place:
            begun = headless(place, loop(), "--max-turns", "1")
            session = json.loads(begun.stdout.splitlines()[0])["session_id"]
            second = headless(place, loop("another"), "--resume", session)
            assert "--force" in second.stdout, second
            assert place.stage.surplus == 0

    def test_the_task_is_known_after_the_context_was_compacted(self, hooked):
        with hooked(shell("echo hi"), Forever(Say(DONE))) as place:
            begun = headless(place, loop(), "--max-turns", "1")
            session = json.loads(begun.stdout.splitlines()[0])["session_id"]
            headless(place, "/compact", "--resume", session)
            headless(place, "go on", "--resume", session)
            texts = [text for _, text in place.stage.asked[-1].messages]
            assert any("Strict requirements" in text and TASK in text for text in texts), texts

    def test_uninstalling_restores_the_previous_state(self, room):
        with room(Say("A plain answer.")) as place:
            before = place.git("status", "--porcelain", "--ignored")
            ralph(place, "hook", "install", "claude")
            ralph(place, "hook", "uninstall", "claude")
            assert place.git("status", "--porcelain", "--ignored") == before
            assert "A plain answer." in headless(place, "hello").stdout

    def test_a_loop_works_in_an_interactive_session(self, hooked):
        with hooked() as place, terminal(place) as screen:
            place.play(Say("I think I am done."), write(place.workspace / "made.txt", "hello\n"), Say(DONE))
            screen.type("/ralph-loop")
            screen.shows("Work on a task until its promise is kept")
            screen.enter(f' "{TASK}" --max-iterations 5')
            screen.shows("continuation 1 of 5: promise missing")
            screen.shows("PROMISE_ACCEPTED")
            assert status(place) == ["PROMISE_ACCEPTED"]
            assert 'make "it" with $(touch oops) `touch oops`' in place.stage.asked[1].prompt

    def test_a_loop_is_cancelled_in_an_interactive_session(self, hooked):
        with hooked() as place, terminal(place) as screen:
            place.play(Say("I think I am done."), Hang("Let me think"))
            screen.enter(f'/ralph-loop "{TASK}"')
            screen.shows("continuation 1 of 100")
            screen.shows("esc to interrupt")
            screen.type("\x1b")
            screen.shows("Interrupted")
            screen.enter("/cancel-ralph")
            screen.shows("CANCELLED after 1 continuation")
            assert status(place) == ["CANCELLED"]


class Screen:
    """A person's terminal."""

    def __init__(self, child: "pexpect.spawn[str]") -> None:
        self._child, self._screen = child, pyte.Screen(120, 60)
        self._stream = pyte.ByteStream(self._screen)

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def enter(self, line: str) -> None:
        """Send Return separately: text that arrives together with it counts as pasted."""
        self._child.send(line)
        self.shows(line[-20:])
        self._child.send("\r")

    def shows(self, text: str) -> None:
        """Wait until `text` is somewhere on the screen, however its lines are broken."""
        deadline = time.monotonic() + 30
        while text not in " ".join(" ".join(self._screen.display).split()):
            assert time.monotonic() < deadline, "\n".join(self._screen.display)
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=1))
            except pexpect.TIMEOUT:
                continue


@contextmanager
def terminal(place: Room) -> Iterator[Screen]:
    """Start Claude Code as a person does, with the questions of its first start already answered."""
    project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    known = {"approved": [KEY[-20:]], "rejected": []}
    settings = {"hasCompletedOnboarding": True, "theme": "dark", "customApiKeyResponses": known}
    (place.home / ".claude.json").write_text(json.dumps({**settings, "projects": {str(place.workspace): project}}))
    words = ["--permission-mode", "acceptEdits"]
    child = pexpect.spawn("claude", words, cwd=place.workspace, env=place.env, dimensions=(60, 120))
    try:
        screen = Screen(child)
        screen.shows("accept edits on")
        yield screen
    finally:
        child.close(force=True)
