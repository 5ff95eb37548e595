"""Start a run for the TUI, or resume one for the web UI, as a separate process."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ralph.agents import known_names
from ralph.core.text import one_line, plural, tail
from ralph.git.client import find_git
from ralph.options.command_options import words_of
from ralph.process.ralph_child import RalphChild
from ralph.settings import PRESET_OF
from ralph.store.register import Listed

MOST_WORDS = 4000


class Launched(RalphChild):
    """A run that this program has started. `run` is its id once it is known."""

    def __init__(self) -> None:
        super().__init__()
        self.run = ""
        self.began = time.time()

    def error_text(self) -> str:
        return one_line(tail(" · ".join(filter(None, self.complaint())), MOST_WORDS), 400)

    def plays(self, run: Listed) -> bool:
        """Return whether this process plays that run, and is not a later one with the same pid."""
        facts = run.facts
        return facts.pid == self.pid and (run.is_alive or facts.changed >= self.began)


def words_about(run: Listed, command: str, *words: str) -> list[str]:
    """Return the command line of a ralph command about a run. Its words may be free text, and begin with a dash."""
    return [command, "-C", run.facts.workspace, "--", *words]


DECIDES = ("preset", "until", "tasks", "done_file", "maximum_iterations")
"""With one of these options, the command line says how to loop."""


def agent_names() -> tuple[str, ...]:
    return known_names()


def has_room_apart(workspace: str) -> bool:
    """Return whether another run could work in parallel: in a worktree, which needs a repository."""
    return find_git(Path(workspace)) is not None


class NextRun(Struct, frozen=True, kw_only=True):
    """The options of the next run. `cap` is None if no limit was given. `given` are options, by name, for every run
    started here; `has_settings`: a settings file says how to run."""

    workspace: str
    cap: int | None = None
    agent: str = ""
    checks: tuple[str, ...] = ()
    given: Mapping[str, Any] = {}
    has_settings: bool = False

    @property
    def way(self) -> dict[str, Any]:
        """Return how to run if no number of iterations is given: a loop if there are checks, else as the settings say,
        else one turn.
        """
        if self.cap is not None:
            return {"ralph": self.cap}
        if any(name in DECIDES or name.startswith("completion_") for name in self.given):
            return {}
        if self.checks:
            return {"preset": PRESET_OF["loop"]}
        return {} if self.has_settings else {"ralph": 0}

    def words(self, goal: str) -> list[str]:
        """Return the command line for a goal that the user typed. Unlike a --prompt, it is not sent verbatim."""
        return [*self._command({**self.given, **self.way}, {}), "--", goal]

    def promise(self, task: str, values: Mapping[str, Any]) -> list[str]:
        """Return the command line for `/ralph-loop`. Options typed with it come before those given earlier."""
        return self._command({**self.given, "preset": PRESET_OF["start"]}, {**values, "prompt": task})

    def _command(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        chosen = {"agent": self.agent, "check": list(self.checks)}
        chosen = {name: value for name, value in chosen.items() if value}
        return ["run", "--quiet", "-C", self.workspace, *words_of({**before, **chosen, **after})]

    def __str__(self) -> str:
        """Describe in a few words what a goal would start."""
        way = self.way
        if "preset" in way:
            return f"loop until {plural(len(self.checks), 'check')} pass{'es' if len(self.checks) == 1 else ''}"
        words = cap_words(way["ralph"]) if "ralph" in way else "`ralph run`"
        return words + (f", {plural(len(self.checks), 'check')}" if self.checks else "")


def cap_words(cap: int) -> str:
    if cap == 0:
        return "single shot"
    return "loop until STOP, open end" if cap < 0 else f"loop until STOP, at most {cap}"
