"""A run in the background whose agent does nothing until the test lets it, and whose events the test can wait for."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest


class Background:
    """`ralph … --json` as another process. Its agent waits at a gate before the end of every turn."""

    def __init__(self, process: "subprocess.Popen[str]", gate: Path, home: Path) -> None:
        self.process, self._gate, self._home = process, gate, home
        self.events: list[dict[str, Any]] = []

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def until(self, kind: str) -> dict[str, Any]:
        """Wait for the next event of this kind."""
        for line in self._out:
            event = json.loads(line)
            self.events.append(event)
            if event["type"] == kind:
                return dict(event["data"])
        raise AssertionError(f"the run ended without {kind}: {[event['type'] for event in self.events]}")

    def seen(self, kind: str) -> dict[str, Any]:
        """Return the first event of this kind, which may already have arrived."""
        come = self.all(kind)
        return dict(come[0]) if come else self.until(kind)

    def in_turn(self) -> None:
        """Wait until the agent has read its prompt and waits at the gate."""
        self.until("agent_started")
        self.until("agent_text")

    def let(self, words: str = "working") -> None:
        """Open the gate once: the agent prints this, and its turn ends."""
        self._gate.write_text(f"{words}\n")

    def finish(self) -> int:
        """Wait for the end of the run."""
        self.events += [json.loads(line) for line in self._out]
        return self.process.wait()

    @property
    def id(self) -> str:
        return str(self.events[0]["run"])

    def prompts(self) -> list[str]:
        files = sorted(self._home.glob("gated.prompt.*"), key=lambda path: int(path.suffix[1:]))
        return [file.read_text() for file in files]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]


Start = Callable[..., Background]


@pytest.fixture
def start(environment: dict[str, str], workspace: Path, agent: Callable[..., str]) -> Iterator[Start]:
    """Start `ralph run` with a gated agent. The agent runs the shell code `before` first; `wrapper` is a command in
    front of ralph."""
    home = Path(environment["HOME"])
    gate = home / "gate"
    os.mkfifo(gate)
    begun: list[Background] = []

    def run(
        *words: str, before: str = "", wrapper: tuple[str, ...] = (), command: str = "run", **env: str
    ) -> Background:
        # Reading and writing opens a FIFO without waiting for the other side; a line is read when it comes.
        gated = agent(
            f'{before}\necho "at the gate"\nread -r LINE <> "{gate}"\nprintf "\\n%s\\n" "$LINE"', name="gated"
        )
        goal = ["-p", "the goal", "-m", "9", "--agent", gated] if command == "run" else []
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "ralph", command, *goal, *words, "--json"],
            cwd=workspace,
            env={**environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        begun.append(Background(process, gate, home))
        return begun[-1]

    yield run
    for one in begun:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGKILL)
        one.process.wait()
        one._out.close()
