"""The rooms in which the real agents run: each scenario has its own home, workspace, environment and script."""

import ctypes
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import install
from furniture import ALONE, FURNISH
from modelserver import ModelServer, Stage
from script import Step

DRIVEN = tuple(name for name in FURNISH if name != "amp")  # whose loop runs on its own server, not against a model
RALPH = (sys.executable, "-m", "ralph")
MARK = "RALPH_LAB_ROOM"
Event = dict[str, Any]
LIMIT = 100.0  # seconds for one command: less than the limit on a test, so that the test can say what it saw


class Ran(NamedTuple):
    """How a command ended, and its output."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    left: dict[int, str]  # processes of the room that were alive when it had ended

    @property
    def events(self) -> list[Event]:
        """The lines of `ralph run --json`."""
        return [json.loads(line) for line in self.stdout.split("\n") if line]

    def of(self, kind: str) -> list[Event]:
        return [event["data"] for event in self.events if event["type"] == kind]

    @property
    def outcome(self) -> str:
        finished = self.of("run_finished")
        return str(finished[-1]["outcome"]) if finished else "it never finished"

    def __str__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.stdout[-3000:]}\n{self.stderr[-3000:]}"


class Room:
    """One agent with its script."""

    def __init__(self, agent: str, folder: Path, stage: Stage, program: Path) -> None:
        self.agent, self.stage = agent, stage
        self.home, self.workspace = folder / "home", folder / "workspace"
        scratch = folder / "tmp"
        for place in (self.home, self.workspace, scratch):
            place.mkdir(parents=True)
        self.env = {
            "PATH": f"{program.parent}:{install.path()}",
            "HOME": str(self.home),
            "TMPDIR": str(scratch),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "GIT_CONFIG_NOSYSTEM": "1",
            MARK: str(folder),
            **FURNISH[agent](self.home, stage.url),
        }
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "lab")
        self.git("config", "user.email", "lab@localhost")
        (self.workspace / "README").write_text("a workspace\n")
        self.git("add", "README")
        self.git("commit", "--quiet", "--message=start")

    def invite(self, other: str) -> None:
        """Add another agent. Both use the same scripted model, one after the other."""
        self.env |= FURNISH[other](self.home, self.stage.url)
        self.env["PATH"] = f"{install.agent(other).program.parent}:{self.env['PATH']}"

    def git(self, *words: str) -> str:
        argv = ["git", *words]
        done = subprocess.run(argv, cwd=self.workspace, env=self.env, check=True, capture_output=True, text=True)
        return done.stdout

    def play(self, *steps: Step) -> None:
        """Set what the model does from now on."""
        self.stage.steps[:] = steps

    def alone(self, prompt: str) -> Ran:
        """Run one headless turn of the agent, without ralph."""
        words = shlex.split(ALONE[self.agent])
        argv = [prompt if word == "{prompt}" else word.replace("{url}", self.stage.url) for word in words]
        return self.finish(self.start(*argv), "" if prompt in argv else prompt)

    def ralph(self, *words: str, on: Callable[[Event], None] | None = None) -> Ran:
        """Run `ralph run --json` with this agent to its end; `on` gets each event at once."""
        return self.finish(self.start_ralph(*words), on=on)

    def start_ralph(self, *words: str) -> "subprocess.Popen[bytes]":
        return self.start_command("run", *words)

    def start_command(self, command: str, *words: str) -> "subprocess.Popen[bytes]":
        return self.start(*RALPH, command, "--json", "--agent", self.agent, "--yolo", *words)

    def start(self, *argv: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            argv,
            cwd=self.workspace,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(
        self,
        process: "subprocess.Popen[bytes]",
        stdin: str = "",
        on: Callable[[Event], None] | None = None,
    ) -> Ran:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        began = time.monotonic()
        out, err = _Listener(process.stdout, on), _Listener(process.stderr)
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin.encode())
        late = ""
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            late = f"\nstill running after {LIMIT} s: ended by the lab"
            self.clear()
            process.wait()
        seconds = time.monotonic() - began
        left = self.living()
        if left:  # anyone who holds the pipes is ended, but not forgotten
            self.clear()
        return Ran(process.returncode, out.text(), err.text() + late, seconds, left)

    def living(self) -> dict[int, str]:
        """Return the processes of this room that are still running, with their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid() and self._is_ours(folder):
                command = _read(folder / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
                if command:  # a zombie has none
                    found[int(folder.name)] = command
        return found

    def _is_ours(self, process: Path) -> bool:
        """Whether a process belongs to this room, by the mark in its environment or by its working folder."""
        if f"{MARK}={self.env[MARK]}".encode() in _read(process / "environ").split(b"\0"):
            return True
        try:
            return os.readlink(process / "cwd").startswith(f"{self.env[MARK]}/")
        except OSError:
            return False

    def clear(self) -> None:
        while left := self.living():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class _Listener:
    """Reads one stream to its end, line by line, while the process runs."""

    def __init__(self, stream: IO[bytes], on: Callable[[Event], None] | None = None) -> None:
        self.lines: list[bytes] = []
        self.stream, self.on = stream, on
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        with self.stream:
            for line in self.stream:
                self.lines.append(line)
                if self.on:
                    self.on(json.loads(line))

    def text(self) -> str:
        self.thread.join()
        return b"".join(self.lines).decode(errors="replace")


@contextmanager
def room(agent: str, folder: Path, server: ModelServer, *steps: Step) -> Iterator[Room]:
    program = install.agent(agent).program if agent in install.NAMES else Path(sys.executable)
    with server.stage(*steps) as stage:
        made = Room(agent, folder, stage, program)
        if agent == "copilot":
            _share_unpacked(made.home, folder.parent)
        try:
            yield made
        finally:
            made.clear()
            shutil.rmtree(folder, ignore_errors=True)


def _share_unpacked(home: Path, beside: Path) -> None:
    """Share what Copilot unpacks, because it would unpack 235 MB into each empty home."""
    unpacked = beside / "copilot-unpacked"
    unpacked.mkdir(exist_ok=True)
    (home / ".cache").mkdir()
    (home / ".cache/copilot").symlink_to(unpacked)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def leave_the_network() -> str:
    """Leave this thread, and everything that it starts, only a loopback device; return what came of it."""
    new_network, set_flags, up = 0x40000000, 0x8914, 0x1 | 0x40
    if sys.platform != "linux" or ctypes.CDLL(None, use_errno=True).unshare(new_network) != 0:
        return "open: no right to make a network namespace"
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh22x", b"lo", up))
    return "loopback only, in a separate namespace"
