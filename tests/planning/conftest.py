"""A person at a terminal, for commands that ask questions."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from tests.e2e.conftest import alive, nap

__all__ = ["alive", "nap"]


class Person:
    """Answers the questions of the real command. `screen` is all that it printed."""

    def __init__(self, words: tuple[str, ...], cwd: Path, env: dict[str, str]) -> None:
        self._child = pexpect.spawn(
            sys.executable,
            ["-m", "ralph", *words],
            cwd=str(cwd),
            env={**env, "TERM": "dumb", "NO_COLOR": "1"},  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=120,
            dimensions=(50, 160),
        )
        self._child.setecho(False)
        self.screen = ""

    def answers(self, question: str, answer: str) -> None:
        self._child.expect_exact(question)
        self.screen += str(self._child.before) + question
        self._child.sendline(answer)

    def presses(self, question: str, key: str) -> None:
        self._child.expect_exact(question)
        self._child.sendcontrol(key)

    def waits(self) -> int:
        """Wait for the end and return the exit code."""
        self._child.expect(pexpect.EOF)
        self.screen = (self.screen + str(self._child.before)).replace("\r\n", "\n")
        self._child.close()
        assert self._child.exitstatus is not None
        return int(self._child.exitstatus)

    def end(self) -> None:
        self._child.close(force=True)


@pytest.fixture
def person(environment: dict[str, str], workspace: Path) -> Iterator[Callable[..., Person]]:
    begun: list[Person] = []

    def start(*words: str, **env: str) -> Person:
        begun.append(Person(words, workspace, {**environment, **env}))
        return begun[-1]

    yield start
    for one in begun:
        one.end()
