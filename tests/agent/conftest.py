"""Where does the built-in agent run in its tests? In a workspace of its own, against a scripted model on each wire.

It runs inside the test's process, for speed: to start it costs more than all that it does here. `test_process.py` has
the tests that need the real program.
"""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents_real"))

from modelserver import ModelServer, Stage
from script import Step

WIRES = ("chat", "responses", "messages", "google")
KEY = "sk-made-up-for-the-tests"


class Ran(NamedTuple):
    """How the agent ended, what it printed, and what it asked of the model."""

    code: int
    stdout: str
    stderr: str
    stage: Stage

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    def of(self, kind: str, subtype: str = "") -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind and (not subtype or line["subtype"] == subtype)]

    @property
    def result(self) -> dict[str, Any]:
        [line] = self.of("result")
        assert line == self.lines[-1], "the result is the last line"
        return line

    @property
    def answer(self) -> str:
        """The final answer of a turn that went well; one that did not has none."""
        assert (self.code, self.result["is_error"]) == (0, False), self.stdout[-3000:] + self.stderr
        return str(self.result["result"])

    @property
    def trouble(self) -> str:
        assert (self.code, self.result["is_error"]) == (1, True), self.stdout[-3000:] + self.stderr
        return str(self.result["result"])

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return [block for line in self.of("user") for block in line["message"]["content"]]

    @property
    def session(self) -> str:
        return str(self.lines[0]["session_id"])


Play = Callable[..., Ran]


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(wire: str) -> Callable[[Stage], str]:
    """Where a stage is asked on this test's wire."""
    return lambda stage: f"{stage.url}/v1" if wire in ("chat", "responses") else stage.url


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RALPH_RUN_ID", raising=False)
    return folder


@pytest.fixture
def play(
    server: ModelServer,
    wire: str,
    address: Callable[[Stage], str],
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Play:
    """`play(step, …)`: a turn of the agent on this test's wire. `words`: more of its options."""
    from ralph.agent import wires
    from ralph.agent.__main__ import main

    monkeypatch.setattr(wires, "FIRST_PAUSE", 0.01)

    def run(*steps: Step, prompt: str = "Do it.", words: tuple[str, ...] = (), asides: bool = True) -> Ran:
        with server.stage(*steps) as stage:
            stage.has_asides = asides
            typed = ["--model", "lab", "--url", address(stage), "--wire", wire, "--key-env", "LAB_KEY", *words]
            monkeypatch.setenv("LAB_KEY", KEY)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompt.encode())))
            before = signal.getsignal(signal.SIGTERM)
            try:
                code = main(typed)
            finally:
                signal.signal(signal.SIGTERM, before)
            said = capsys.readouterr()
            assert stage.problems == []
            return Ran(code, said.out, said.err, stage)

    return run


@pytest.fixture
def state(workspace: Path) -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "ralph-agent"
