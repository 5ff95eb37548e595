"""What will the next run be? What was typed here so far, as the words of a `ralph run`."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ralph.cli.options import RUN, Option
from ralph.show.amounts import plural

DECIDES = ("preset", "until", "tasks", "done_file", "maximum_iterations")
"""Options that say themselves how to loop."""


class Plan(Struct, frozen=True):
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


def words_of(values: Mapping[str, Any], rows: Sequence[Option] = RUN) -> list[str]:
    """Options by name as they are typed; each in one word, so that a value may begin with a dash."""
    words = []
    for row in rows:
        value = values.get(row.name)
        if value is None:
            continue
        name = max(row.names, key=len)
        if row.kind == "flag":
            words += [name] if value else []
        else:
            words += [f"{name}={one}" for one in (value if isinstance(value, list) else [value])]
    return words
