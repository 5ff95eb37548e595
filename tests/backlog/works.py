"""A repository with a backlog, ralph running in it, and agents that follow a script."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.warm import Warm

LIST = "# Tasks\n\n- [ ] T1 Make one\n- [ ] T2 Make two\n"
ONE = "- [ ] T1 One\n"  # enough for most tests: each task costs half a second of the processor
# The agent does its task. Tasks named hot… add their key to the file `hot`, and remove conflict markers from it.
AGENT = r"""
key=$(printf '%s\n' "$PROMPT" | sed -n 's/^\([A-Za-z]*[0-9][0-9]*\) .*/\1/p' | head -1)
case $key in
  hot*) { grep -v '^[<=>|]\{7\}' hot; echo "$key"; } | sort -u > hot.new; mv hot.new hot ;;
  bad*) : ;;
  *) echo "$key" > "$key.txt" ;;
esac
"""


class Works:
    """A repository with a backlog, and ralph running in it."""

    def __init__(self, folder: Path, env: dict[str, str], agent: Callable[..., str], warm: Warm) -> None:
        self.folder, self.env, self._warm = folder, env, warm
        self.agent = agent(AGENT + "echo COMPLETE")
        self._make = agent
        self.git("init", "-q", "-b", "main")
        (folder / "hot").write_text("line\n")
        self.todo(LIST)
        self.started: list[subprocess.Popen[str]] = []

    def todo(self, text: str, name: str = "TASKS.md") -> None:
        (self.folder / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", "list")

    def script(self, text: str) -> None:
        self._make(AGENT + text)

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(["git", *words], cwd=cwd or self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def words(self, *words: str, checks: tuple[str, ...] = ("true",)) -> list[str]:
        own = [part for check in checks for part in ("--check", check)]
        name = () if words and not words[0].startswith("-") else ("TASKS.md",)
        return [sys.executable, "-m", "ralph", "work", *name, *words, *own, "--agent", self.agent, "--grace", "2"]

    def work(self, *words: str, checks: tuple[str, ...] = ("true",)) -> "subprocess.CompletedProcess[str]":
        return self.run(*self.words(*words, checks=checks)[3:])

    def run(self, *words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        return self._warm.run(words, cwd or self.folder, self.env, timeout=170)

    def start(self, *words: str, checks: tuple[str, ...] = ("true",)) -> "subprocess.Popen[str]":
        command = self.words(*words, checks=checks)
        pipe = subprocess.PIPE
        self.started.append(
            subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=pipe, stderr=pipe, text=True)
        )
        return self.started[-1]

    @property
    def target(self) -> str:
        return self.git("branch", "--list", "--format=%(refname:short)", "ralph/*/merged").splitlines()[-1]

    def merged(self, target: str = "") -> list[str]:
        words = ("log", "--first-parent", "--reverse", "--format=%(trailers:key=Ralph-Task,valueonly)")
        return self.git(*words, target or self.target).split()

    def show(self, name: str, target: str = "") -> str:
        return self.git("show", f"{target or self.target}:{name}")

    @property
    def events(self) -> list[dict[str, Any]]:
        works = [
            path for path in self.folder.glob(".ralph/runs/*/journal.ndjson") if (path.parent / "work.json").exists()
        ]
        return [json.loads(line) for line in sorted(works)[-1].read_bytes().splitlines() if line] if works else []

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]

    def wait_for(self, kind: str, **facts: Any) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            for data in self.all(kind):
                if facts.items() <= data.items():
                    return data
            assert time.monotonic() < deadline, f"no {kind} {facts}"
            time.sleep(0.02)


WAITING = 'echo $$ >> "$HOME/working"; while [ ! -e "$HOME/go" ]; do sleep 0.1; done; echo COMPLETE'


def go(works: Works) -> None:
    (Path(works.env["HOME"]) / "go").touch()


def left(works: Works, word: bytes = b"") -> list[int]:
    """Return the processes with the test's home in their environment and this word in their command line."""
    mark, found = f"HOME={works.env['HOME']}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if mark in Path("/proc", pid, "environ").read_bytes().split(b"\0") and (not word or word in words):
                found.append(int(pid))
    return found
