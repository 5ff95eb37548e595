"""Fixtures that run the built-in agent in its own workspace, with a scripted model for each protocol.

It runs in the process of the test, because starting it takes longer than most tests. `test_process.py` has the tests
that need the real program, and `test_runs.py` those that need a whole run. The library takes a second to import, so
only tests that need it import it.
"""

import asyncio
import io
import json
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents_real"))

from modelserver import ModelServer, Stage
from script import Step
from tests.warm import Warm

WIRES = ("chat", "responses", "messages", "google")
KEY = "sk-made-up-for-the-tests"


class Ran(NamedTuple):
    """How the agent ended, what it printed, and which requests it sent to the model."""

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
        """Return the final answer of a successful turn; None if it failed."""
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


@pytest.fixture(scope="session", autouse=True)
def trust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Load no certificates of authorities, which each client would do again: no test uses TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm()
    yield made
    made.close()


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(wire: str) -> Callable[[Stage], str]:
    """Return the address of a stage for this test's protocol."""
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
def begin() -> Iterator[Callable[[Sequence[str]], int]]:
    """`begin(words)` runs the program in this process, and restores the signal handlers afterwards."""
    from ralph.builtin_agent.__main__ import main

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(words: Sequence[str]) -> int:
        try:
            return main(words)
        except SystemExit as refused:
            return int(refused.code or 0)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def play(
    begin: Callable[[Sequence[str]], int],
    server: ModelServer,
    wire: str,
    address: Callable[[Stage], str],
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Play:
    """`play(step, …)` takes a turn of the agent with this test's protocol. `words` are more of its options."""
    from ralph.builtin_agent import wires

    monkeypatch.setattr(wires, "FIRST_DELAY", 0.01)

    def run(*steps: Step, prompt: str = "Do it.", words: tuple[str, ...] = (), asides: bool = True) -> Ran:
        with server.stage(*steps) as stage:
            stage.has_asides = asides
            typed = ["--model", "lab", "--url", address(stage), "--wire", wire, "--key-env", "LAB_KEY", *words]
            monkeypatch.setenv("LAB_KEY", KEY)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompt.encode())))
            code = begin(typed)
            said = capsys.readouterr()
            assert stage.problems == []
            return Ran(code, said.out, said.err, stage)

    return run


@pytest.fixture
def asking(server: ModelServer, wire: str, address: Callable[[Stage], str]) -> Callable[..., None]:
    """`asking(each)` runs `each(stage, ask)` with one client for all requests. `ask` returns the text of a valid reply,
    or raises."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart
    from pydantic_ai.models import ModelRequestParameters

    from ralph.agents.builtin import endpoint
    from ralph.builtin_agent.toolbox import text_of
    from ralph.builtin_agent.wires import ModelAsker

    async def one_client(each: Callable[..., Awaitable[None]]) -> None:
        with server.stage() as stage:
            stage.has_asides = False
            asker = ModelAsker(endpoint("lab", address(stage), wire), "", None, lambda: None, lambda *_: None)
            messages = [ModelRequest(parts=[UserPromptPart(content="Go on.")])]
            how = {"model_settings": {"max_retries": 0}, "model_request_parameters": ModelRequestParameters()}

            async def ask(*steps: Step) -> str:
                stage.steps[:] = steps
                return text_of(await asker._once(messages, **how))

            async with aclosing(asker.client):
                await each(stage, ask)

    return lambda each: asyncio.run(one_client(each))


@pytest.fixture
def state(workspace: Path) -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "ralph-agent"
