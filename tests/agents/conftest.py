"""The recorded streams, and fixtures that read them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from ralph.agents import module
from ralph.agents.protocol import Parser, TurnRequest
from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Turn

STREAMS = Path(__file__).parent / "streams"
NOW = 1794727000.0  # the time at which every recorded turn ends


class Recording(Struct, frozen=True):
    """One recorded run of a real agent."""

    agent: str
    file: str
    code: int
    arguments: str
    stderr: str

    @property
    def lines(self) -> list[bytes]:
        data = (STREAMS / self.agent / self.file).read_bytes()
        return data.removesuffix(b"\n").split(b"\n")

    @property
    def is_text(self) -> bool:
        return self.file.endswith(".txt")

    @property
    def ended(self) -> Exit:
        by = "the turn timeout" if self.code == -9 else ""
        return Exit(code=self.code, at=NOW, duration=1.0, stderr=self.stderr, ended_by=by)


class Reading(Struct, frozen=True):
    """The result of parsing a stream."""

    events: list[AgentEvent]
    turn: Turn
    parser: Parser


def recordings() -> list[Recording]:
    rows = (STREAMS / "INDEX.tsv").read_text().rstrip("\n").split("\n")[1:]
    found = []
    for row in rows:
        agent, file, code, arguments, stderr = [*row.split("\t"), ""][:5]
        found.append(Recording(agent, file, int(code), arguments, stderr.replace(" ⏎ ", "\n")))
    return found


def read(recording: Recording, lines: Iterable[bytes] | None = None, **request: object) -> Reading:
    asked = {
        "prompt": "make the files",
        "prompt_file": "",
        "command": (recording.agent,),
        "stream": not recording.is_text,
    }
    parser = module(recording.agent).parser(TurnRequest(**{**asked, **request}))  # type: ignore[arg-type]
    events = [event for line in (recording.lines if lines is None else lines) for event in parser.feed(line)]
    return Reading(events, parser.turn(recording.ended), parser)


@pytest.fixture(scope="session")
def recorded() -> dict[str, Recording]:
    """Every recording, by agent/file."""
    return {f"{one.agent}/{one.file}": one for one in recordings()}


@pytest.fixture(scope="session")
def reading() -> Callable[..., Reading]:
    return read


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a `recording` once for each agent, with all its recordings: a test for each of the hundreds
    would be slower."""
    if "recording" in metafunc.fixturenames:
        agents = dict.fromkeys(one.agent for one in recordings())
        every = [[one for one in recordings() if one.agent == agent] for agent in agents]
        metafunc.parametrize("recording", every, ids=agents)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for recording in given.get("recording", ()):
        try:
            pyfuncitem.obj(**{**given, "recording": recording})
        except Exception as error:
            error.add_note(f"{recording.agent}/{recording.file}")
            raise
    return "recording" in given or None
