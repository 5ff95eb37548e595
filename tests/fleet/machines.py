"""Machines of a fleet, each with its own clone, home and processes, and the audit of what they made together."""

import atexit
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from tests.fleet.postgres import Postgres
from tests.warm import Started, Warm

CHECK = "sort -c -u hot && test -e TASKS.md && sh count"
# True of every commit on the target: the file `hot` is sorted, and each task's file contains its key, once.
COUNT = 'for f in tasks/*; do { read -r key && ! read -r more && [ "$key$more" = "${f##*/}" ]; } < "$f" || exit 1; done'
# The agent of a task ends when nobody has locked `wait-KEY` in the folder WAITS; a lock, because an agent that polls
# would start more processes than everything else. If `twice-KEY` exists there, the agent takes two turns.
AGENT = r"""#!/bin/sh
PROMPT=$(cat)
key=$(printf '%s\n' "$PROMPT" | sed -n 's/^\([a-zA-Z]*[0-9][0-9]*\) .*/\1/p' | head -1)
if [ -e "WAITS/twice-$key" ] && [ ! -e "tasks/half-$key" ]; then
  echo "half-$key" > "tasks/half-$key"
  echo "$key" >> "WAITS/halves"
  echo "half of it"
  exit
fi
case $key in
  hot*) { grep -v '^[<=>|]\{7\}' hot; echo "$key"; } | sort -u > hot.new; mv hot.new hot ;;
esac
echo "$key" > "tasks/$key"
: > "WAITS/began-$key"
flock -s "WAITS/wait-$key" true
echo COMPLETE
"""
PATIENCE = float(os.environ.get("RALPH_FLEET_PATIENCE", "100"))  # seconds without a new event until a wait fails
Process = Started | subprocess.Popen[bytes]


@cache
def warm() -> Warm:
    """Return a process that forks ralph and has imported the fleet, which takes longer than most tests."""
    made = Warm("ralph.fleet.worker")
    atexit.register(made.close)
    return made


class Machine:
    """A clone, and the worker that runs in it."""

    def __init__(self, fleet: "Fleet", name: str, url: str) -> None:
        self.fleet, self.name, self.url = fleet, name, url
        self.folder, self.home = fleet.folder / name, fleet.folder / f"home-{name}"
        self.home.mkdir(parents=True)
        self.log = fleet.folder / f"{name}.log"
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "fleet" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        fleet.git("clone", "-q", str(fleet.remote), str(self.folder), cwd=fleet.folder)
        self.process: Process | None = None

    def ralph(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return warm().run(words, self.folder, {**self.env, **env}, timeout=170)

    def start(self, *words: str) -> "Process":
        command = [sys.executable, "-X", "faulthandler", "-m", "ralph", *words]
        with open(self.log, "ab") as log:
            if self.fleet.is_warm:
                self.process = warm().start(words, self.folder, self.env, log.fileno())
            else:
                self.process = subprocess.Popen(
                    command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        return self.process

    def work(self, *words: str, slots: int = 2) -> "Process":
        return self.start(*self.words(*words, slots=slots))

    def words(self, *words: str, slots: int = 2, db: str = "") -> tuple[str, ...]:
        agent = ("--agent", str(self.fleet.agent), "--check", CHECK, "--grace", "1", "-j", str(slots))
        return ("work", "TASKS.md", "--db", db or self.url, "--push=origin/main", *agent, *words)

    def worker(self, *words: str, slots: int = 2) -> "Process":
        return self.start("worker", "--db", self.url, "--name", self.name, "-j", str(slots), *words)

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def processes(self, kind: str = "any") -> Iterator[int]:
        """Yield the processes of this machine: those of `git`, those of a command such as `run-task`, or `any`."""
        mark = f"HOME={self.home}".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if mark in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                    words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
                    is_git = words[0].endswith(b"git")
                    if kind == "any" or (kind == "git" and is_git) or (b"ralph" in words and kind.encode() in words):
                        yield int(pid)

    def kill(self) -> None:
        """Kill the worker alone, with SIGKILL: its children must notice and end."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def silence(url: str, name: str) -> None:
    """Make workers look as if they had sent no heartbeat for a minute."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE ralph_workers SET seen = now() - interval '1 minute' WHERE name LIKE %s", (name,))


class Fleet:
    """A remote with a backlog, the database, and machines.

    With `is_warm` their workers are forked from one process that has imported everything.
    """

    def __init__(
        self, folder: Path, postgres: Postgres, tasks: int = 4, hot: int = 0, *, is_warm: bool = False
    ) -> None:
        self.is_warm = is_warm
        self.folder, self.postgres, self.url = folder / "fleet", postgres, postgres.database()
        self.folder.mkdir(parents=True)
        self.remote, self.seed = self.folder / "remote.git", self.folder / "seed"
        self.keys = [f"hot{n}" if hot and n % hot == 0 else f"T{n}" for n in range(1, tasks + 1)]
        self.waits = self.folder / "waits"
        self.waits.mkdir()
        self._held: dict[str, int] = {}
        self.agent = self.folder / "agent"
        self.agent.write_text(AGENT.replace("WAITS", str(self.waits)))
        self.agent.chmod(0o755)
        self.machines: dict[str, Machine] = {}
        self._connection: psycopg.Connection[Any] | None = None
        self._furnish()

    def _furnish(self) -> None:
        self.seed.mkdir()
        self.git("init", "-q", "-b", "main", cwd=self.seed)
        (self.seed / "TASKS.md").write_text("".join(f"- [ ] {key} Do it\n" for key in self.keys))
        (self.seed / "hot").write_text("a\n")
        (self.seed / "count").write_text(COUNT)
        (self.seed / "tasks").mkdir()
        (self.seed / "tasks" / "none").write_text("none\n")
        self.git("add", "-A", cwd=self.seed)
        self.git("commit", "-qm", "first", cwd=self.seed)
        self.git("clone", "-q", "--bare", str(self.seed), str(self.remote), cwd=self.folder)
        self.git("config", "core.fsync", "none", cwd=self.remote)

    def git(self, *words: str, cwd: Path) -> str:
        env = {**os.environ, **{f"GIT_{w}_{k}": "fleet" for w in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")}}
        done = subprocess.run(["git", *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def machine(self, name: str, url: str = "") -> Machine:
        if name not in self.machines:
            self.machines[name] = Machine(self, name, url or self.url)
        return self.machines[name]

    def silence(self, name: str) -> None:
        silence(self.url, name)

    def hold(self, *keys: str) -> None:
        for key in keys:
            self._held[key] = os.open(self.waits / f"wait-{key}", os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._held[key], fcntl.LOCK_EX)

    def let_go(self, *keys: str) -> None:
        for key in keys or [*self._held]:
            os.close(self._held.pop(key))

    def has_begun(self, key: str) -> bool:
        return (self.waits / f"began-{key}").exists()

    @property
    def events(self) -> list[dict[str, Any]]:
        for _ in range(2):  # the server may have been restarted since the last query
            try:
                if self._connection is None:  # kept open: a new connection costs more than the query
                    self._connection = psycopg.connect(self.url, connect_timeout=5, autocommit=True)
                rows = self._connection.execute("SELECT line FROM ralph_events ORDER BY work, seq").fetchall()
                return [json.loads(line) for (line,) in rows]
            except psycopg.Error:
                self._disconnect()
        return []

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]

    def wait_for(self, kind: str, **facts: Any) -> dict[str, Any]:
        return dict(
            self.wait(lambda: next((one for one in self.all(kind) if facts.items() <= one.items()), None), kind)
        )

    def wait(self, fact: Callable[[], Any], what: str = "") -> Any:
        """Return the fact once it is true. Fail when nothing at all has happened for `PATIENCE` seconds: how long a
        fact takes depends on how busy the machine is."""
        deadline, count = time.monotonic() + PATIENCE, 0
        while not (seen := fact()):
            if time.monotonic() > deadline:
                before, count = count, len(self.events)
                assert count > before, f"{what}: {self.describe()}"
                deadline = time.monotonic() + PATIENCE
            time.sleep(0.05)
        return seen

    def describe(self) -> str:
        """Return the output of each machine, and its processes."""
        lines = list[str]()
        for name, machine in self.machines.items():
            lines.append(f"--- {name}\n{machine.said[-3000:]}")
            for pid in machine.processes():
                with suppress(OSError):
                    words = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[:2]
                    waits = Path("/proc", str(pid), "wchan").read_text()
                    lines.append(f"{pid} below {state[1]}, {state[0]} in {waits}: {words}")
        return "\n".join(lines)

    def merged(self) -> list[str]:
        words = ("log", "--first-parent", "--reverse", "--format=%(trailers:key=Ralph-Task,valueonly)", "main")
        return self.git(*words, cwd=self.remote).split()

    def audit(self) -> int:
        """Assert that each task was merged once, each commit on the target passes the check, and no branch is left.

        Return how many commits were checked.
        """
        assert Counter(self.merged()) == Counter(self.keys), self.describe()
        first = self.git("rev-list", "--max-parents=0", "main", cwd=self.remote)
        commits = self.git("rev-list", "--first-parent", f"{first}..main", cwd=self.remote).split()
        tree = self.folder / "audit"
        self.git("clone", "-q", str(self.remote), str(tree), cwd=self.folder)
        for commit in commits:
            self.git("checkout", "-q", "--detach", commit, cwd=tree)
            done = subprocess.run(["sh", "-c", CHECK], cwd=tree, capture_output=True, check=False)
            assert done.returncode == 0, f"{commit} is red"
        assert self.git("show", "main:TASKS.md", cwd=self.remote).count("[x]") == len(self.keys)
        hot = sorted(key for key in self.keys if key.startswith("hot"))
        assert self.git("show", "main:hot", cwd=self.remote).split() == ["a", *hot]
        assert self.git("fsck", "--no-progress", "--no-dangling", cwd=self.remote) == ""
        left = self.git("branch", "--list", "--format=%(refname:short)", cwd=self.remote).splitlines()
        assert left == ["main"], f"branches are left: {left}"
        return len(commits)

    def nothing_survives(self) -> None:
        def left() -> list[int]:
            return [pid for machine in self.machines.values() for pid in machine.processes()]

        self.wait(lambda: not left(), "processes survive")

    def close(self) -> None:
        for machine in self.machines.values():
            for _ in range(3):
                for pid in machine.processes():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if machine.process is not None:
                machine.process.wait()
        self.let_go()
        self._disconnect()
        self.postgres.forget(self.url)
