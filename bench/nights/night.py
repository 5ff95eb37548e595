"""What comes of one night? A contender plays it with real processes, and what it did is held against the truth."""

import ctypes
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.nights import task
from bench.nights.contenders import CAP, SAID_DONE, SAID_NOT, SAID_UNVERIFIED, Contender, Place
from bench.nights.model import serving
from bench.nights.population import Script, ideal

# In seconds, and generous: a slow machine must not decide a night.
SILENCE = 60.0  # without a sign of the agent
PATIENCE = 20.0  # … for an agent that hangs, or for what it left
MORNING = 600.0  # a contender that still runs then is ended
SETTLING = 3.0  # in which what a contender is about to end may end
AGENT, LAUNCH = Path(__file__).parent / "agent.py", Path(__file__).parent / "launch.py"
SUBREAPER = 36


class Played(Struct, frozen=True, kw_only=True):
    """What came of a night."""

    number: int
    profile: str
    contender: str
    plain: bool
    said: str
    exit_code: int | None  # None: it was ended in the morning
    green: bool
    was_green: bool  # after some turn
    turns: int
    dollars: float
    ideal: int | None
    ideal_dollars: float
    wall: float
    own: float  # seconds that were not the agent's
    memory: float  # MB, of its largest process
    left: tuple[str, ...]
    touched: tuple[str, ...]
    money_told: bool | None  # the money it names is what was stated; None: it names none
    last_line: str
    story: tuple[dict[str, Any], ...] = ()
    output: str = ""

    @property
    def done(self) -> bool:
        return self.said in (SAID_DONE, SAID_UNVERIFIED) or self.exit_code == 0

    @property
    def false_done(self) -> bool:
        return self.done and not self.green

    @property
    def finished(self) -> bool:
        return self.done and self.green

    @property
    def missed(self) -> bool:
        """The work was done at some time, and the loop did not end with it."""
        return self.was_green and not self.finished

    @property
    def sentence_true(self) -> bool:
        """What it said last is so, and its exit code agrees. To call a claim unverified is not to make it."""
        is_zero = self.said in (SAID_DONE, SAID_UNVERIFIED)
        return (
            (self.said != SAID_DONE or self.green) and self.money_told is not False and (self.exit_code == 0) == is_zero
        )

    @property
    def exit_true(self) -> bool:
        """It exited with 0 if the work was done, and with something else if not."""
        return self.exit_code is not None and (self.exit_code == 0) == self.green


class Yard:
    """Where nights are played: a folder in memory, repositories to copy, and the environment of a user."""

    def __init__(self, path: str) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="ralph-nights-", dir=memory))
        self.path = path
        _others.update(process.pid for process in descendants())
        # Compiled once: else each turn would compile it again, which is a third of its time.
        self.agent = py_compile.compile(str(AGENT), str(self.folder / "agent.pyc"), doraise=True)
        for count in range(1, len(task.PARTS) + 1):
            made = self.folder / f"task-{count}"
            made.mkdir()
            task.make(made, count, self.env(self.folder))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def env(self, home: Path, first: Path | None = None) -> dict[str, str]:
        return {
            "HOME": str(home),
            "PATH": f"{first}:{self.path}" if first else self.path,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "CI": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{f"GIT_{who}_{what}": "user@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def place(self, script: Script, contender: Contender, url: str = "") -> Place:
        """A fresh one, with everything in it that the night needs."""
        made = Place(Path(tempfile.mkdtemp(prefix="night-", dir=self.folder)), _agent(script, contender), url)
        shutil.copytree(self.folder / f"task-{script.parts}", made.work)
        for folder in (made.home, made.bin, made.ledger):
            folder.mkdir()
        files = [(part.path, part.right, part.wrong, part.special) for part in task.parts(script.parts)]
        facts = {**script.builtins(), "files": files, "claim": contender.claim}
        (made.ledger / "script.json").write_text(json.dumps(facts))
        for name, more in (("claude", ""), ("agent", "--plain "), ("second", "--second ")):
            program = made.bin / name
            words = f"exec {sys.executable} -I -S {self.agent} {made.ledger} {more}"
            program.write_text(f'#!/bin/sh\n{words}"$@"\n')
            program.chmod(0o755)
        made.exam.parent.mkdir()
        made.exam.write_text(task.exam(script.parts))
        contender.prepare(made)
        return made


def _agent(script: Script, contender: Contender) -> str:
    return "agent" if script.plain and contender.plain else "claude"


class Ending(Struct, frozen=True, kw_only=True):
    """What was seen when a contender had ended."""

    wall: float
    code: int | None
    memory: float
    left: tuple[str, ...]
    touched: tuple[str, ...]


def play(yard: Yard, script: Script, contender: Contender, keep_story: bool = False) -> Played:
    with serving(contender) if contender.native else nullcontext() as model:
        place = yard.place(script, contender, model.url if model else "")
        if model:
            model.place = place
        return _play_at(place, yard, script, contender, keep_story)


def _play_at(place: Place, yard: Yard, script: Script, contender: Contender, keep_story: bool) -> Played:
    env = {**yard.env(place.home, place.bin), **contender.env(place)}
    adopt()
    try:
        before = task.belongings(place.work, env)
        wall, code, memory = run(contender.argv(place), place, env)
        left = tuple(remaining())
        touched = tuple(before.differing(task.belongings(place.work, env)))
        ending = Ending(wall=wall, code=code, memory=memory, left=left, touched=touched)
        return judged(place, script, contender, ending, keep_story)
    finally:
        end_all()
        shutil.rmtree(place.folder, ignore_errors=True)


def judged(place: Place, script: Script, contender: Contender, ending: Ending, keep_story: bool) -> Played:
    """What happened, held against the truth."""
    output = (place.folder / "output").read_text(errors="replace")
    turns = ledger(place)
    ends = [turn for turn in turns if turn["kind"] == "end"]
    best = ideal(script, CAP)
    stated = sum(turn["cost"] for turn in ends)
    return Played(
        number=script.number,
        profile=script.profile,
        contender=contender.name,
        plain=place.agent == "agent",
        said=SAID_NOT if ending.code is None else contender.says(output, ending.code),
        exit_code=ending.code,
        green=task.is_true(place.work, script.parts, place.folder / "truth"),
        was_green=any(turn["green"] for turn in ends),
        turns=sum(turn["kind"] in ("start", "again") for turn in turns),
        dollars=round(sum(turn.get("paid", 0.0) for turn in ends), 2),
        ideal=best[0] if best else None,
        ideal_dollars=best[1] if best else 0.0,
        wall=ending.wall,
        own=max(0.0, ending.wall - busy(turns)),
        memory=ending.memory,
        left=ending.left,
        touched=ending.touched,
        money_told=money_told(output, stated) if contender.reads else None,
        last_line=next((line for line in reversed(output.splitlines()) if line.strip()), ""),
        story=tuple(turns) if keep_story else (),
        output=output if keep_story else "",
    )


def ledger(place: Place) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (place.ledger / "turns.ndjson").read_text().splitlines()]
    except OSError:
        return []


def busy(turns: Sequence[dict[str, Any]]) -> float:
    """The seconds in which the agent worked or hung; the wait for a stated reset is not the loop's either."""
    seconds, began = 0.0, None
    for turn in turns:
        if turn["kind"] == "start":
            began = turn["moment"] - turn["age"]
        elif turn["kind"] == "end" and began:
            seconds += turn["moment"] - began
            began = None
    return seconds


def money_told(output: str, stated: float) -> bool | None:
    """Whether the dollars in the last line are those that the agent stated."""
    lines = [line for line in output.splitlines() if line.startswith("ralph: ")]
    if not lines or "$" not in lines[-1]:
        return None
    named = lines[-1].rpartition("$")[2]
    return f"{stated:.2f}" == named.rstrip(").").split(")")[0].split(",")[0].strip()


# The processes of a night. The player is the subreaper of everything that its contender leaves behind.


def adopt() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def run(argv: Sequence[str], place: Place, env: dict[str, str]) -> tuple[float, int | None, float]:
    """Its seconds, its exit code (none: it was ended in the morning), and its memory."""
    began, result = time.monotonic(), place.folder / "result"
    launch = (sys.executable, "-I", "-S", str(LAUNCH), str(result), *argv)
    with (place.folder / "output").open("ab") as output:
        process = subprocess.Popen(
            launch,
            cwd=place.work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while process.poll() is None:
        if _is_morning(place, began):
            return time.monotonic() - began, None, 0.0
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if not result.exists():
        return time.monotonic() - began, -signal.SIGKILL, 0.0
    code, seconds, memory = result.read_text().split()
    result.unlink()
    return float(seconds), int(code), float(memory)


def _is_morning(place: Place, began: float) -> bool:
    if (place.ledger / "endless").exists():
        return True
    now, turns = time.monotonic(), ledger(place)
    last = turns[-1] if turns else {"moment": began}
    hangs = last.get("fate") == "hang" or "leaves a server" in last.get("did", ())
    return now - max(began, last["moment"]) > (PATIENCE if hangs else SILENCE) or now - began > MORNING


class Process(Struct, frozen=True):
    pid: int
    parent: int
    name: str


_others = set[int]()
"""What was there before the nights: it is somebody else's, with all that it starts."""


def descendants() -> Iterator[Process]:
    """Everything of the nights' below this process that is not dead."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
            except OSError:
                continue
            state, parent = rest.split()[:2]
            if state not in "ZX" and int(entry) not in _others:
                children.setdefault(int(parent), []).append(Process(int(entry), int(parent), name))
    todo = [os.getpid()]
    while todo:
        for process in children.get(todo.pop(), ()):
            yield process
            todo.append(process.pid)


def remaining() -> list[str]:
    """The names of what is left once everything had time to end."""
    deadline = time.monotonic() + SETTLING
    while True:
        _reap()
        left = [process.name for process in descendants()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def end_all() -> None:
    while left := list(descendants()):
        kill(left)
        _reap()
        time.sleep(0.005)
    _reap()


def kill(processes: Iterable[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return
