"""A task in a temporary root, supervised by the real command."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.conftest import mark
from tests.warm import Warm

from ralph.supervise.task import RunInfo, TaskFolder, task_folder

__all__ = ["mark"]


class Task:
    """A task, and the commands that use it."""

    def __init__(self, folder: TaskFolder, environment: dict[str, str], workspace: Path, warm: Warm) -> None:
        self.folder, self.environment, self.workspace, self._warm = folder, environment, workspace, warm
        self.started: list[subprocess.Popen[str]] = []

    def words(self, *more: str) -> tuple[str, ...]:
        named = ("--root", str(self.folder.root), "--project", self.folder.project, "--task", self.folder.task)
        return ("task", *named, "--restart-delay", "0", *more)

    def supervise(self, *more: str, timeout: float = 120, **env: str) -> "subprocess.CompletedProcess[str]":
        return self._warm.run(self.words(*more), self.workspace, {**self.environment, **env}, timeout=timeout)

    def start(self, *more: str, **env: str) -> "subprocess.Popen[str]":
        """Start a supervisor in the background."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ralph", *self.words(*more)],
            cwd=self.workspace,
            env={**self.environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def attempts(self) -> list[RunInfo]:
        return self.folder.attempts()

    def children(self) -> list[RunInfo]:
        return [run for run in self.folder.list_runs() if not run.attempt]

    def output(self, run: RunInfo) -> str:
        """Return the final answer of an attempt or a child run."""
        return (self.folder.runs / run.run_id / "output.md").read_text()

    def said(self, kind: str = "") -> list[str]:
        """Return the bodies of the messages on the task's bus."""
        return [message.body for message in self.folder.bus.read() if kind in ("", message.type)]

    def facts(self) -> list[str]:
        return [message.body for message in self.folder.project_bus.read()]

    def journal(self) -> list[dict[str, Any]]:
        (path,) = self.folder.path.glob(".ralph/runs/*/journal.ndjson")
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def task(tmp_path: Path, environment: dict[str, str], workspace: Path, warm: Warm) -> Iterator[Task]:
    task = Task(task_folder(tmp_path / "root", "shop", "login"), environment, workspace, warm)
    yield task
    for process in task.started:
        process.kill()
        process.communicate()


class Pipe:
    """A named pipe for an agent and a test to wait for each other: opening one end blocks until the other is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> str:
        return self.path.read_text().strip()

    def write(self, text: str = "go\n") -> None:
        self.path.write_text(text)


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], Pipe]:
    return lambda name: Pipe(tmp_path / name)
