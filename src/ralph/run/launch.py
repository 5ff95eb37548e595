"""How does a screen or a page start a run, and what becomes of it when that is gone?

It is a process of its own, in a session of its own, held by a leash: a pipe whose other end only we hold. When we are
gone, however that came about, the kernel tells the run with the signal that means "the terminal is gone", and the run
ends with all that it started. A run that is let go stays.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any

from msgspec import Struct

from ralph.agents import known
from ralph.core.text import one_line, plural, tail
from ralph.errors import UserError, complaint_in
from ralph.git.client import find_git
from ralph.process.detached import DetachedProcess, read_back, unnamed_file
from ralph.process.signals import hang_up_on_close, keep_on_close
from ralph.run.options import words_of
from ralph.store.register import Listed

MOST_WORDS = 4000


class Launched:
    """A run that was started here. `run` is its id, once that is known."""

    def __init__(self, process: DetachedProcess, said: int, leash: tuple[int, int]) -> None:
        self.run = ""
        self.began = time.time()
        self._process, self._said = process, said
        self._held, self._leash = leash

    @classmethod
    def start(cls, words: Sequence[str], env: Mapping[str, str]) -> "Launched":
        try:
            said = unnamed_file()
            held, leash = os.pipe()
            nothing = os.open(os.devnull, os.O_RDWR)
            # -P: a folder called `ralph` where we happen to stand must not be taken for the program.
            argv = (sys.executable, "-P", "-m", "ralph", *words)
            process = DetachedProcess.start(argv, env, (nothing, nothing, said, held))
            os.close(nothing)
        except OSError as error:
            hint = "free some memory or disk, and try again"
            raise UserError(f"cannot start a run: {error.strerror}", hint) from None
        hang_up_on_close(held, process.pid)
        return cls(process, said, (held, leash))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.wait(0)

    def complaint(self) -> tuple[str, str]:
        """What it said at its end: the outcome, or why it could not start; and what helps."""
        return complaint_in(read_back(self._said).decode("utf-8", "replace"))

    def last_words(self) -> str:
        """The same in one line."""
        return one_line(tail(" · ".join(filter(None, self.complaint())), MOST_WORDS), 400)

    def end(self, at_once: bool = False) -> None:
        """Ends it now, with everything that it started; `at_once`: as two Ctrl-C would, without any patience."""
        for number in (SIGTERM, SIGINT) if at_once else (SIGHUP,):
            self._process.send_signal(number)

    def plays(self, run: Listed) -> bool:
        """Whether this is the process of that run, and not one of long ago that had the same number."""
        known = run.facts
        return known.pid == self.pid and (run.is_alive or known.changed >= self.began)

    def hand_over(self) -> None:
        """It goes on without us, while we go on as well: somebody has to wait for its end."""

        keep_on_close(self._held)
        threading.Thread(target=self._process.wait, name="waits for a run", daemon=True).start()
        self._close_what_is_ours()

    def let_go(self) -> None:
        """It goes on without us."""
        keep_on_close(self._held)
        self._process.code = 0  # whoever inherits it waits for it

    def close(self) -> None:
        """Drops the leash: what is still on it ends."""
        self.end()
        self._close_what_is_ours()

    def _close_what_is_ours(self) -> None:
        for fd in (self._said, self._held, self._leash):
            os.close(fd)


DECIDES = ("preset", "until", "tasks", "done_file", "maximum_iterations")
"""Options that say themselves how to loop."""


def agent_names() -> tuple[str, ...]:
    """The agents that can be asked for by name."""

    return known()


def has_room_apart(workspace: str) -> bool:
    """Whether a run could work beside another one: in a worktree, which needs a repository."""

    return find_git(Path(workspace)) is not None


class NextRun(Struct, frozen=True, kw_only=True):
    """`cap` None: nothing was said about it. `given` are options that hold for every run started here, by name;
    `has_settings`: a settings file says how to run."""

    workspace: str
    cap: int | None = None
    agent: str = ""
    checks: tuple[str, ...] = ()
    given: Mapping[str, Any] = {}
    has_settings: bool = False

    @property
    def way(self) -> dict[str, Any]:
        """How to loop, where nobody has said how many times: checks make it a loop, settings know, else one shot."""
        if self.cap is not None:
            return {"ralph": self.cap}
        if any(name in DECIDES or name.startswith("completion_") for name in self.given):
            return {}
        if self.checks:
            return {"preset": "checks"}
        return {} if self.has_settings else {"ralph": 0}

    def words(self, goal: str) -> list[str]:
        """The command line for a goal that was typed."""
        chosen = {**self.given, **self.way, **self._choices(), "prompt": goal}
        return ["run", "--quiet", "-C", self.workspace, *words_of(chosen)]

    def promise(self, task: str, values: Mapping[str, Any]) -> list[str]:
        """The command line of `/ralph-loop`; what it says itself goes before what was said earlier."""
        chosen = {**self.given, "preset": "promise", **self._choices(), **values, "prompt": task}
        return ["run", "--quiet", "-C", self.workspace, *words_of(chosen)]

    def _choices(self) -> dict[str, Any]:
        chosen = {"agent": self.agent, "check": list(self.checks)}
        return {name: value for name, value in chosen.items() if value}

    def __str__(self) -> str:
        """What a goal would start, in a few words."""
        way = self.way
        if way.get("preset") == "checks":
            return f"loop until {plural(len(self.checks), 'check')} pass{'es' if len(self.checks) == 1 else ''}"
        said = cap_words(way["ralph"]) if "ralph" in way else "as `ralph run` does it here"
        return said + (f", {plural(len(self.checks), 'check')}" if self.checks else "")


def cap_words(cap: int) -> str:
    if cap == 0:
        return "single shot"
    return "loop until STOP, open end" if cap < 0 else f"loop until STOP, at most {cap}"
