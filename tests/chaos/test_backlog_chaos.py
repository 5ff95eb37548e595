"""A backlog whose coordinator, loops, merges and gits are killed, at random and at named points, until all merged.
Nothing is lost, nothing is merged twice, no target commit is red, nothing survives, nothing of the user's changes.

RALPH_CHAOS_WORK_KILLS and RALPH_CHAOS_SEED choose how many kills there are, and which; each work prints its seed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("RALPH_CHAOS_WORK_KILLS", "120"))
SEED = int(os.environ.get("RALPH_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
TASKS = 12
NIGHT = int(os.environ.get("RALPH_CHAOS_NIGHT", "30"))
CHECK = "sort -c -u hot && test -e list.md && sh count"
# Whatever is done, the target must hold: the hot file is sorted, and each task's file says its own key, once.
COUNT = 'for f in tasks/*; do [ "$(cat "$f")" = "$(basename "$f")" ] || exit 1; done'
AGENT = r"""#!/bin/sh
PROMPT=$(cat)
setsid sh -c 'sleep {nap} & wait' > /dev/null 2>&1 &
key=$(printf '%s\n' "$PROMPT" | sed -n 's/^\([a-z]*[0-9][0-9]*\) .*/\1/p' | head -1)
case $key in
  hot*) {{ grep -v '^[<=>|]\{{7\}}' hot; echo "$key"; }} | sort -u > hot.new; mv hot.new hot ;;
esac
echo "$key" > "tasks/$key"
sleep 0.$((($$ % 3) + 1))
echo COMPLETE
"""
POINTS = ("task_started", "task_ready", "gate_started", "gate_finished", "task_merged", "task_returned", "work_started")


class Sufferer:
    """One backlog run in its own repository."""

    def __init__(self, folder: Path, seed: int, tasks: int = TASKS, hot: int = 3) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.folder, self.home = folder / "repo", folder / "home"
        self.kills: Counter[str] = Counter()
        self.nap = f"{2_000_000 + seed}.{os.getpid()}"
        for made in (self.folder, self.home):
            made.mkdir(parents=True)
        (self.home / "agent").write_text(AGENT.format(nap=self.nap))
        (self.home / "agent").chmod(0o755)
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONFAULTHANDLER": "1",
            **{f"GIT_{who}_{what}": "chaos" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.keys = [f"hot{n}" if n % hot == 0 else f"t{n}" for n in range(tasks)]
        self._furnish()
        self.mine = self._mine()

    def _furnish(self) -> None:
        self.git("init", "-q", "-b", "main")
        (self.folder / "list.md").write_text("".join(f"- [ ] {key} Do it\n" for key in self.keys))
        (self.folder / "hot").write_text("a\n")
        (self.folder / "count").write_text(COUNT)
        (self.folder / "tasks").mkdir()
        (self.folder / "tasks" / "none").write_text("none\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        (self.folder / "dirty").write_text("mine\n")
        (self.folder / "hot").write_text("a\nmine\n")
        self.git("add", "dirty")

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(["git", *words], cwd=cwd or self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def _mine(self) -> tuple[str, ...]:
        """Return everything that belongs to the user."""
        words = ("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/main", "refs/tags", "refs/stash")
        files = [(path.name, path.read_text()) for path in sorted(self.folder.iterdir()) if path.is_file()]
        return self.git("status", "--porcelain"), self.git(*words), self.git("diff", "--cached"), str(files)

    @property
    def journal(self) -> Path | None:
        works = [path.parent / "journal.ndjson" for path in self.folder.glob(".ralph/runs/*/work.json")]
        return next((path for path in works if path.exists() and b"\n" in path.read_bytes()[:5000]), None)

    def events(self) -> list[dict[str, Any]]:
        found = []
        for line in (self.journal.read_bytes() if self.journal else b"").split(b"\n"):
            with suppress(ValueError):
                found.append(json.loads(line))
        return [event for event in found if isinstance(event, dict)]

    def start(self) -> "subprocess.Popen[bytes]":
        agent = ("--agent", str(self.home / "agent"), "--check", CHECK, "-j", "4", "--returns", "20", "--grace", "1")
        words = ("resume",) if self.journal else ("work", "list.md", *agent)
        command = [sys.executable, "-m", "ralph", *words, "--quiet"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE
        )

    def live(self, most: int) -> int:
        """Run the coordinator once, and kill processes around it.

        Return its exit code: 0 if everything is merged, 1 if the rest was killed too often and is parked.
        """
        process = self.start()
        while process.poll() is None and sum(self.kills.values()) < most:
            self._wait_for_the_moment(process)
            kind = self.random.choice(("coordinator", "run-task", "run-gate", "git"))
            if kind == "coordinator" and process.poll() is None:
                process.kill()
                self.kills[kind] += 1
            elif kind != "coordinator" and (pid := self._victim(kind)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills[kind] += 1
        said = self._last_words(process, 180)
        assert b"internal error" not in said, said.decode()
        assert b"Traceback" not in said, said.decode()
        if process.returncode == -9:
            self.nothing_survives()
        # 2 where a git was killed that the coordinator asked twice, or three looks at the target in a row.
        is_unlucky = b"it was killed by signal 9" in said or b"the gate's process died" in said
        codes = (1, 2) if is_unlucky else (0, 1, -9)
        assert process.returncode in codes, f"seed {self.seed}: {process.returncode}: {said.decode()}"
        return process.returncode

    def _last_words(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
        with process:
            try:
                return process.communicate(timeout=seconds)[1]
            finally:
                process.kill()

    def _wait_for_the_moment(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for a random moment, or until something was written."""
        if self.random.random() < 0.5 or self.journal is None:
            time.sleep(self.random.uniform(0.0, 0.7))
            return
        point, size = self.random.choice(POINTS).encode(), self.journal.stat().st_size
        deadline = time.monotonic() + 2
        while process.poll() is None and time.monotonic() < deadline:
            with open(self.journal, "rb") as file:
                file.seek(size)
                if point in file.read():
                    break
            time.sleep(0.001)
        time.sleep(self.random.uniform(0.0, 0.03))

    def _victim(self, kind: str) -> int:
        deadline = time.monotonic() + 1
        while not (found := list(self._processes(kind))) and time.monotonic() < deadline:
            time.sleep(0.0005)  # a git lives for a few thousandths of a second
        found = found if kind == "git" else without_keepers(found)
        return self.random.choice(found) if found else 0

    def _processes(self, kind: str) -> Iterator[int]:
        mark = f"HOME={self.home}".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
                if mark not in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                    continue
                if (
                    (kind == "git" and words[0].endswith(b"git"))
                    or (b"ralph" in words and kind.encode() in words)
                    or kind == "any"
                ):
                    yield int(pid)

    def nothing_survives(self) -> None:
        deadline = time.monotonic() + 15
        while left := list(self._processes("any")):
            assert time.monotonic() < deadline, f"seed {self.seed}: {len(left)} processes survive: {self._told(left)}"
            time.sleep(0.02)

    def _told(self, left: list[int]) -> list[str]:
        told = []
        for pid in left:
            with suppress(OSError):
                told.append(Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return told

    def finish(self) -> None:
        """Let the backlog run finish, and retry tasks that were parked because they were killed too often."""
        for _ in range(10):
            process = self.start()
            said = self._last_words(process, 300).decode()
            if process.returncode == 0:
                break
            assert process.returncode == 1, f"seed {self.seed}: {said}"
            states = self.git_free_status()
            for key in (key for key, state in states.items() if state == "parked"):
                command = [sys.executable, "-m", "ralph", "work", "retry", key]
                subprocess.run(command, cwd=self.folder, env=self.env, check=True, capture_output=True)
        assert process.returncode == 0, f"seed {self.seed}: {said}"

    def git_free_status(self) -> dict[str, str]:
        command = [sys.executable, "-m", "ralph", "work", "status", "--json"]
        done = subprocess.run(command, cwd=self.folder, env=self.env, check=True, capture_output=True, text=True)
        return {row["key"]: row["state"] for row in map(json.loads, done.stdout.splitlines())}

    def audit(self, tmp: Path) -> int:
        """Check the guarantees; return how many commits were checked."""
        target = self.git("branch", "--list", "--format=%(refname:short)", "ralph/*/merged")
        assert "\n" not in target
        words = ("log", "--first-parent", "--format=%(trailers:key=Ralph-Task,valueonly)", target)
        merged = Counter(self.git(*words).split())
        assert merged == Counter(self.keys), f"seed {self.seed}: lost or doubled: {merged}"
        commits = self.git("rev-list", "--first-parent", f"main..{target}").split()
        tree = tmp / f"audit-{self.seed}"
        self.git("worktree", "add", "-q", "--detach", str(tree), target)
        for commit in commits:
            self.git("checkout", "-q", "--detach", commit, cwd=tree)
            done = subprocess.run(["sh", "-c", CHECK], cwd=tree, capture_output=True, check=False)
            assert done.returncode == 0, f"seed {self.seed}: {commit} is red"
        assert self.git("show", f"{target}:list.md").count("[x]") == len(self.keys)
        assert self.git("show", f"{target}:hot").split() == ["a", *sorted(k for k in self.keys if k.startswith("hot"))]
        assert self._mine() == self.mine, f"seed {self.seed}: something of the user's has changed"
        assert self.git("fsck", "--no-progress", "--no-dangling") == ""
        left = self.git("branch", "--list", "--format=%(refname:short)").splitlines()
        assert left == ["main", target], f"seed {self.seed}: branches are left: {left}"
        return len(commits)


def without_keepers(pids: Iterable[int]) -> list[int]:
    """Return the processes of ralph without children of others among them: a keeper looks like its ralph until it has
    set its name, and killing it would end that run."""
    found, parents = [*pids], dict[int, int]()
    for pid in found:
        with suppress(OSError):
            parents[pid] = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parent not in found]


@pytest.mark.timeout(1500)
def test_a_backlog_that_is_killed_again_and_again_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began, seed, commits = time.monotonic(), SEED, 0
    kills: Counter[str] = Counter()
    while sum(kills.values()) < KILLS:
        one = Sufferer(tmp_path / str(seed), seed)
        try:
            most = min(KILLS - sum(kills.values()), 40)
            code = -9
            while sum(one.kills.values()) < most and code not in (0, 1):
                code = one.live(most)
            if code:
                one.finish()
            one.nothing_survives()
            commits += one.audit(tmp_path)
        finally:
            for pid in one._processes("any"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        kills += one.kills
        seed += 1
    with capsys.disabled():
        works = f"{seed - SEED} works, {commits} commits checked again"
        print(f"\n{sum(kills.values())} kills in {time.monotonic() - began:.0f} s: {works}; first seed {SEED}")
        print("of:", ", ".join(f"{name} {count}" for name, count in kills.most_common()))


@pytest.mark.timeout(900)
def test_thirty_tasks_of_which_half_change_the_same_line_are_merged(tmp_path: Path) -> None:
    """Kill nothing; check every commit of the target again at the end. RALPH_CHAOS_NIGHT=12 is a short night."""
    night = Sufferer(tmp_path / "night", SEED, tasks=NIGHT, hot=2)
    night.finish()
    night.nothing_survives()
    assert night.audit(tmp_path) > 0
    attempts = Counter(event["data"]["key"] for event in night.events() if event["type"] == "task_started")
    assert max(attempts.values()) <= 3, attempts
