"""A run that is killed again and again, and the guarantees that are checked after each kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# "both": ralph and its keeper at once, as `pkill` does if its pattern matches both.
SIGNALS = (signal.SIGKILL,) * 4 + ("both",) * 3 + (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, "twice")
PATIENCE = 30.0
FAREWELL = 8.0  # the keeper gives an agent two seconds to end by itself
BASH = """
if grep -q "commit message" "$RALPH_PROMPT_FILE"; then echo "Iteration $RALPH_ITERATION"; exit; fi
setsid sh -c 'sleep {nap} & wait' > /dev/null 2>&1 &
(sleep {nap} > /dev/null 2>&1 &)
echo "$RALPH_ITERATION $$" >> work
echo "step $RALPH_ITERATION"
"""


class Victim:
    """One run in its own repository, with an agent that works fast and leaves processes behind. Its work is committed
    to the user's branch, or to a branch of a worktree."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.option = ("--commit", "--worktree")[seed % 2]
        self.has_exam = seed // 2 % 2 == 1
        self.folder, self.home, self.temporary = folder / "workspace", folder / "home", folder / "temporary"
        self.nap = f"{1_000_000 + seed}.{os.getpid()}"
        self.kills: Counter[str] = Counter()
        self.interrupted: Counter[str] = Counter()
        self.recorded: list[dict[str, Any]] = []
        self.lives = self.orphans = 0
        self.is_abandoned = False
        for made in (self.folder, self.home, self.temporary):
            made.mkdir(parents=True)
        (self.home / "exams").mkdir()
        (self.home / "exams/exam").write_text("#!/bin/sh\nsleep 0.2\nexit 1\n")
        agent = self.home / "agent"
        agent.write_text("#!/bin/sh\ncat > /dev/null\n" + BASH.format(nap=self.nap))
        agent.chmod(0o755)
        self.env = {
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONFAULTHANDLER": "1",
            **{f"GIT_{who}_{what}": "chaos" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.git("init", "-q", "-b", "main")
        (self.folder / "work").write_text("")
        self.git("add", "work")
        self.git("commit", "-qm", "first")

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout

    def live(self) -> None:
        """Start or resume the run, end it at a random moment, and check what is left."""
        process = self._start()
        chosen = self.random.choice(SIGNALS)
        while chosen not in (signal.SIGKILL, "both") and process.poll() is None and not hears_signals(process.pid):
            time.sleep(0.001)  # while Python starts, ralph has not installed its handler yet
        self._wait_for_the_moment(process)
        with suppress(ProcessLookupError):
            if chosen == "both":
                kill_together(process.pid)
            else:
                os.kill(process.pid, signal.SIGTERM if chosen == "twice" else chosen)
            if chosen == "twice":
                os.kill(process.pid, signal.SIGTERM)
        said = self._last_words(process, chosen)
        self.lives += 1
        ended_by_itself = process.returncode not in (-9, 130, -15, -2, -1)
        self.kills["too late" if ended_by_itself else getattr(chosen, "name", f"{chosen}")] += 1
        assert b"internal error" not in said, said.decode()
        assert b"Traceback" not in said, said.decode()
        assert not ended_by_itself or process.returncode == 1, f"{process.pid}: {said.decode()}"
        self.is_abandoned = self.is_abandoned or chosen == "both"  # no process is left that would end the others
        if chosen == "both":
            self.orphans += len(processes_with(self.nap))
            if self.random.random() < 0.5:
                return  # the next start ends it
        if self.is_abandoned:  # and if that was killed before it came to it, this does
            self._clean()
            self.is_abandoned = False
        self.look()

    def _clean(self) -> None:
        words = [sys.executable, "-m", "ralph", "clean"]
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr.decode()

    def _last_words(self, process: "subprocess.Popen[bytes]", chosen: object) -> bytes:
        try:
            return process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # makes Python say where it is
            said = process.communicate()[1].decode()
            raise AssertionError(f"seed {self.seed}: it does not end after {chosen}:\n{said}") from None

    def _start(self, *limit: str) -> "subprocess.Popen[bytes]":
        agent = ("--agent", str(self.home / "agent"), "--check", "true", self.option, "--grace", "0.3")
        if self.has_exam:
            agent += ("--exam", f"sh {self.home}/exams/exam")
        words = ("resume", *limit) if self.journal else ("run", "the goal", *agent, *(limit or ("-m", "100000")))
        return subprocess.Popen(
            [sys.executable, "-m", "ralph", *words, "--quiet"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _wait_for_the_moment(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for a random moment, or until shortly after something was written."""
        if self.random.random() < 0.4 or not self.journal:
            time.sleep(self.random.uniform(0.0, 0.6))
            return
        lines = self.random.randint(1, 30)
        size, deadline = self.size(), time.monotonic() + 5
        while lines and time.monotonic() < deadline and process.poll() is None:
            if (grown := self.size()) > size:
                size, lines = grown, lines - 1
            time.sleep(0.0005)
        time.sleep(self.random.uniform(0.0, 0.015))

    @property
    def journal(self) -> Path | None:
        """Return the journal of the run that has begun; a run that was killed before has nothing to continue."""
        found = self.folder.glob(".ralph/runs/*/journal.ndjson")
        return next((path for path in found if b'{"type":"run_started"' in path.read_bytes()[:100_000]), None)

    def size(self) -> int:
        return self.journal.stat().st_size if self.journal else 0

    def look(self) -> None:
        """Check the guarantees that hold whatever happened."""
        self._nothing_survives()
        if self.journal is None:
            return
        events = self._events(self.journal)
        if events:
            self.interrupted[events[-1]["type"]] += 1
        finished = [event["data"] for event in events if event["type"] == "iteration_finished"]
        assert [one["iteration"] for one in finished] == list(range(1, len(finished) + 1)), "no iteration lost or twice"
        assert finished[: len(self.recorded)] == self.recorded, "what was recorded stays recorded"
        self.recorded = finished
        seqs = [event["seq"] for event in events]
        assert seqs == sorted(set(seqs)), "the lines are in order"
        assert len({event["run"] for event in events}) <= 1
        exams = [event for event in events if event["type"] == "exam_finished"]
        assert len(exams) <= self.has_exam, "the exam before the first turn is taken once"
        subjects = self._commits(self.journal.parent.name)
        most = Counter(subjects).most_common(1)
        assert not most or most[0][1] == 1, f"more than one commit for an iteration: {most}"
        assert len(subjects) <= len(finished)

    def _commits(self, run: str) -> list[str]:
        first = self.git("rev-list", "--max-parents=0", "main").strip()
        branch = "main" if self.option == "--commit" else f"ralph/{run}"
        known = self.git("branch", "--list", "--format=%(refname:short)").split()
        return self.git("log", "--format=%s", f"{first}..{branch}").splitlines() if branch in known else []

    def _events(self, path: Path) -> list[dict[str, Any]]:
        """Return every line of the journal. Only the last line before each restart may be torn."""
        lines = path.read_bytes().split(b"\n")
        events, torn = [], 0
        for line in filter(None, lines):
            try:
                events.append(json.loads(line))
            except ValueError:
                torn += 1
        assert torn <= self.lives
        return events

    def _nothing_survives(self) -> None:
        deadline = time.monotonic() + FAREWELL
        while left := processes_with(self.nap):
            assert time.monotonic() < deadline, f"seed {self.seed}: {len(left)} processes survive"
            time.sleep(0.01)

    def finish(self) -> None:
        """Let the run finish, and check everything that it made."""
        self._clean()  # the last kill may have been one of ralph and its keeper
        self.look()
        done = len(self.recorded)
        process = self._start("-m", "3")
        said = self._last_words(process, "being left alone")
        assert process.returncode == 1, said.decode()
        self.look()
        assert len(self.recorded) == done + 3
        assert self.journal is not None
        run = self.journal.parent.name
        worktrees = self.home.glob(f".local/state/ralph/worktrees/*{run}")
        (place,) = [self.folder] if self.option == "--commit" else worktrees
        numbers = {line.split()[0] for line in (place / "work").read_text().splitlines()}
        assert numbers == {str(number) for number in range(1, len(self.recorded) + 1)}
        assert self.option == "--commit" or (self.folder / "work").read_text() == ""
        assert not [*self.temporary.glob("ralph-exam-*"), *self.home.glob(".local/state/ralph/worktrees/*.copy*")]
        assert not list((self.folder / ".git").rglob("index.lock"))
        assert self.git("fsck", "--no-progress", "--no-dangling") == ""
        checkpoints = self.git("for-each-ref", "--format=%(refname:lstrip=3)", f"refs/ralph/{run}/").split()
        assert {*checkpoints} - {"resumed"} == {str(number) for number in range(len(self.recorded) + 1)}


def kill_together(pid: int) -> None:
    """Stop a run and its keeper, so that neither notices what happens to the other."""
    os.kill(pid, signal.SIGSTOP)
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "loop-keeper\n":
                os.kill(int(child), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def hears_signals(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM: Python itself never has one."""
    with suppress(OSError):
        for line in Path("/proc", str(pid), "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def processes_with(word: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if word.encode() in Path("/proc", pid, "cmdline").read_bytes().split(b"\0"):
                found.append(int(pid))
    return found


@pytest.fixture
def victim(tmp_path: Path) -> Any:
    made: list[Victim] = []

    def make(seed: int) -> Victim:
        made.append(Victim(tmp_path / str(seed), seed))
        return made[-1]

    yield make
    for one in made:
        for pid in processes_with(one.nap):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
