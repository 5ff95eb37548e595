"""Play one night: a contender runs with real processes, then its result is compared with the truth."""

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

# In seconds. Generous, so that a slow machine does not decide a night.
SILENCE = 60.0  # without a sign of life from the agent
PATIENCE = 20.0  # the same for an agent that hangs
MORNING = 600.0  # after which a contender is killed
SETTLING = 3.0  # that a contender has to end its processes
AGENT, LAUNCH = Path(__file__).parent / "agent.py", Path(__file__).parent / "launch.py"
SUBREAPER = 36


class Played(Struct, frozen=True, kw_only=True):
    """The result of a night."""

    number: int
    profile: str
    contender: str
    plain: bool
    said: str
    exit_code: int | None  # None: it was killed
    green: bool
    was_green: bool  # after some turn
    turns: int
    dollars: float
    ideal: int | None
    ideal_dollars: float
    wall: float
    own: float  # seconds besides those of the agent
    memory: float  # MB of its largest process
    left: tuple[str, ...]
    touched: tuple[str, ...]
    cost_right: bool | None  # whether the printed cost is right; None: it printed none
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
        """The work was done after some turn, and the loop did not stop."""
        return self.was_green and not self.finished

    @property
    def sentence_true(self) -> bool:
        """Return whether its last sentence is true and its exit code agrees. To report an unverified claim is not to
        make it."""
        is_zero = self.said in (SAID_DONE, SAID_UNVERIFIED)
        return (
            (self.said != SAID_DONE or self.green) and self.cost_right is not False and (self.exit_code == 0) == is_zero
        )

    @property
    def exit_true(self) -> bool:
        """It exited with 0 if the work was done, and with another code if not."""
        return self.exit_code is not None and (self.exit_code == 0) == self.green


class Yard:
    """A folder in memory for all nights: repositories to copy, and a user's environment."""

    def __init__(self, path: str) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="ralph-nights-", dir=memory))
        self.path = path
        _others.update(process.pid for process in descendants())
        # Compiled once, because compiling for every turn would take a third of its time.
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
        """Make the folders of a night with all that it needs."""
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
    """What was observed when a contender had ended."""

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
    become_subreaper()
    try:
        before = task.belongings(place.work, env)
        wall, code, memory = run(contender.argv(place), place, env)
        left = tuple(leftovers())
        touched = tuple(before.differing(task.belongings(place.work, env)))
        ending = Ending(wall=wall, code=code, memory=memory, left=left, touched=touched)
        return judge(place, script, contender, ending, keep_story)
    finally:
        end_all()
        shutil.rmtree(place.folder, ignore_errors=True)


def judge(place: Place, script: Script, contender: Contender, ending: Ending, keep_story: bool) -> Played:
    """Compare what happened with the truth."""
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
        own=max(0.0, ending.wall - agent_seconds(turns)),
        memory=ending.memory,
        left=ending.left,
        touched=ending.touched,
        cost_right=is_cost_right(output, stated) if contender.reads else None,
        last_line=next((line for line in reversed(output.splitlines()) if line.strip()), ""),
        story=tuple(turns) if keep_story else (),
        output=output if keep_story else "",
    )


def ledger(place: Place) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (place.ledger / "turns.ndjson").read_text().splitlines()]
    except OSError:
        return []


def agent_seconds(turns: Sequence[dict[str, Any]]) -> float:
    """Return the seconds that the agent worked or hung, and those until a usage limit ended."""
    seconds, began = 0.0, None
    for turn in turns:
        if turn["kind"] == "start":
            began = turn["moment"] - turn["age"]
        elif turn["kind"] == "end" and began:
            seconds += turn["moment"] - began
            began = None
    return seconds


def is_cost_right(output: str, stated: float) -> bool | None:
    """Return whether the last line names the cost that the agent reported."""
    lines = [line for line in output.splitlines() if line.startswith("ralph: ")]
    if not lines or "$" not in lines[-1]:
        return None
    named = lines[-1].rpartition("$")[2]
    return f"{stated:.2f}" == named.rstrip(").").split(")")[0].split(",")[0].strip()


# Processes of a night. The player is the subreaper of everything that its contender leaves behind.


def become_subreaper() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def run(argv: Sequence[str], place: Place, env: dict[str, str]) -> tuple[float, int | None, float]:
    """Run it; return its seconds, its exit code (None if it was killed) and its memory."""
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
    """Return all live processes below this process."""
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


def leftovers() -> list[str]:
    """Return the names of the processes that are still there after some time to end."""
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
