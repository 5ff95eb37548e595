"""A simulated session of a host: it calls the hook, and the tests look at the answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]


class Answer:
    """The answer of the hook to its host."""

    def __init__(self, result: Any) -> None:
        assert result.code == 0, result.err
        assert "Traceback" not in result.err
        self.out, self.err = result.out, result.err
        self.said: Row = json.loads(result.out) if result.out.strip() else {}

    @property
    def is_block(self) -> bool:
        return self.said.get("decision") == "block"

    @property
    def reason(self) -> str:
        return str(self.said.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.said.get("systemMessage", ""))


class Session:
    """One session of Claude Code, with a transcript that grows."""

    def __init__(self, ralph: Callable[..., Any], workspace: Path, name: str) -> None:
        self.name, self.workspace, self._ralph = name, workspace, ralph
        self.transcript = workspace.parent / f"{name.encode().hex()}.jsonl"
        self.transcript.touch()

    def start(self, *words: str, task: str = "fix the tests") -> Any:
        result = self.try_start(*words, task=task)
        assert result.code == 0, result.err
        return result

    def try_start(self, *words: str, task: str = "fix the tests") -> Any:
        return self._ralph("hook", "start", "--session", self.name, "--transcript", str(self.transcript), *words, task)

    def asks(self, prompt: str) -> None:
        self.write({"type": "user", "message": {"role": "user", "content": prompt}})

    def works(self, calls: int = 1, sidechain: bool = False) -> None:
        """Record a tool call with its result in the transcript."""
        for number in range(calls):
            use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": "make"}}
            done = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "ok"}
            self.write(_line("assistant", use, sidechain), _line("user", done, sidechain))

    def says(self, text: str) -> None:
        self.write(_line("assistant", {"type": "text", "text": text}))

    def write(self, *rows: Row) -> None:
        with self.transcript.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def stops(self, text: str | None = None, **fields: Any) -> Answer:
        """End the agent's turn with `text`, which the host sends to the hook. None: the host sends no text."""
        event: Row = {
            "session_id": self.name,
            "transcript_path": str(self.transcript),
            "cwd": str(self.workspace),
            "hook_event_name": "Stop",
            "stop_hook_active": False,
        }
        if text is not None:
            self.says(text)
            event["last_assistant_message"] = text
        return Answer(self._ralph("hook", "stop", stdin=json.dumps({**event, **fields})))

    def status(self) -> str:
        lines = self._ralph("hook", "status", "--session", self.name).out.splitlines()
        return lines[-1].split("  ")[1] if lines else ""

    @property
    def journal(self) -> list[Row]:
        [path] = self.workspace.glob(".ralph/hook/runs/*/journal.ndjson")
        return [json.loads(line) for line in path.read_text().splitlines()]


def _line(who: str, block: Row, sidechain: bool = False) -> Row:
    return {"type": who, "isSidechain": sidechain, "message": {"role": who, "content": [block]}}


@pytest.fixture
def sessions(ralph: Callable[..., Any], workspace: Path) -> Callable[[str], Session]:
    return lambda name: Session(ralph, workspace, name)


@pytest.fixture
def session(sessions: Callable[[str], Session]) -> Session:
    return sessions("5e551011-aaaa-4bbb-8ccc-000000000001")


@pytest.fixture
def log(workspace: Path) -> Callable[[], list[str]]:
    return lambda: (workspace / ".ralph/hook/log").read_text().splitlines()
