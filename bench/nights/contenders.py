"""The contenders: ralph as people use it, and the loops that everybody can write in bash.

Each one is set up as its own documentation describes. `fairness` is what its author would want readers to know about
its numbers.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.nights.task import CHECK, GOAL

CAP = 25
CHECKED = "ralph --check"
GATED = "ralph --check --protect"
EXAMINED = "ralph --check --protect --exam"
HANDED = "ralph --check --protect --stuck 4 --then"
BARE = "ralph without a check"
GREP = "bash: until the agent says done"
CAREFUL = "bash: until the tests pass"
IDLE = "3s"
SAID_DONE, SAID_UNVERIFIED, SAID_NOT = "done", "unverified", "not done"


class Place(Struct, frozen=True):
    """The folders of one night."""

    folder: Path
    agent: str  # `claude`, or `agent`, which prints plain text
    url: str = ""  # the address of the scripted model, for a real CLI

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def exam(self) -> Path:
        """The exam's script. It is outside the repository, where the agent does not look."""
        return self.folder / "exam" / "ask"

    def write(self, name: str, text: str) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Contender(Struct, frozen=True, kw_only=True):
    """`claim` describes how the agent claims to be done: it prints `text` (talk about it uses `word`), writes `files`
    (or `goes_on` if it does not claim), and ticks `boxes` or `stories` of the parts that it believes to be right.
    `asides` are calls of the agent that are not turns. `wreck` are the contender's files that a bad agent deletes."""

    name: str
    argv: Callable[[Place], Sequence[str]]
    claim: dict[str, Any]
    says: Callable[[str, int], str]
    fairness: str
    prepare: Callable[[Place], None] = lambda place: None
    resume: Callable[[Place], Sequence[str]] | None = None
    version: str = ""
    gate: bool = False
    plain: bool = True  # runs any command, so also an agent that prints plain text
    reads: bool = True  # reads the cost that the agent reports
    native: bool = False  # a real CLI whose model is scripted
    judge: str = ""  # how well its judge reads: perfect or trusting
    env: Callable[[Place], dict[str, str]] = lambda place: {}


def ralph(program: str, version: str) -> tuple[Contender, ...]:
    def words(place: Place, *more: str, command: str = "loop") -> Sequence[str]:
        agent = str(place.bin / place.agent)
        return (program, command, GOAL, "--agent", agent, "-m", str(CAP), "--idle-timeout", IDLE, *more)

    def resume(place: Place) -> Sequence[str]:
        """Resume a run that was killed. If it was killed just after its end, show how it ended."""
        journals = sorted((place.work / ".ralph/runs").glob("*/journal.ndjson"))
        last = journals[-1].read_text().splitlines()[-1:] if journals else []
        is_done = any('"type":"run_finished"' in line and '"outcome":"done"' in line for line in last)
        return (program, "show" if is_done else "resume")

    gate = ("--check", CHECK)
    protect = ("--protect", "tests/**")
    common: dict[str, Any] = {
        "claim": {"text": "COMPLETE", "wreck": [".ralph"]},
        "says": ralph_says,
        "resume": resume,
        "version": version,
    }
    return (
        Contender(
            name=CHECKED,
            argv=lambda place: words(place, *gate),
            gate=True,
            fairness="a check alone: an agent that may edit the tests can make any check pass",
            **common,
        ),
        Contender(
            name=GATED,
            argv=lambda place: words(place, *gate, *protect),
            gate=True,
            fairness="as the README starts it",
            **common,
        ),
        Contender(
            name=EXAMINED,
            argv=lambda place: words(place, *gate, *protect, "--exam", f"sh {place.exam}"),
            gate=True,
            fairness="somebody has to write the exam: here it asks each function one more question",
            **common,
        ),
        Contender(
            name=HANDED,
            argv=lambda place: words(place, *gate, *protect, "--stuck", "4", "--then", str(place.bin / "second")),
            gate=True,
            fairness="after four iterations without progress a second agent takes over, which is the steady one",
            **common,
        ),
        Contender(
            name=BARE,
            argv=lambda place: words(place, command="run"),
            fairness="`ralph run`: nothing verifies, so what counts is that ralph calls a plain lie unverified",
            **{**common, "claim": {"text": "<response>DONE</response>", "wreck": [".ralph"]}},
        ),
    )


def ralph_says(output: str, code: int) -> str:
    lines = [line for line in output.splitlines() if line.startswith("ralph: ")]
    last = lines[-1] if lines else ""
    if re.match(r"ralph: done \(unverified\)", last):
        return SAID_UNVERIFIED
    return SAID_DONE if re.match(r"ralph: done\b", last) else SAID_NOT


WHILE_GREP = """
for ((i = 0; i < {cap}; i++)); do
  {agent} < PROMPT.md | tee -a ../loop.log
  if tail -n 200 ../loop.log | grep -q '{marker}'; then echo done; exit 0; fi
done
echo "not done after {cap} turns"; exit 1
"""
UNTIL = """
for ((i = 0; i < {cap}; i++)); do
  {agent} < PROMPT.md
  if {check}; then echo done; exit 0; fi
done
echo "not done after {cap} turns"; exit 1
"""
MARKER = "<promise>DONE</promise>"


def bash() -> tuple[Contender, ...]:
    def words(text: str) -> Callable[[Place], Sequence[str]]:
        def argv(place: Place) -> Sequence[str]:
            agent = "agent" if place.agent == "agent" else "claude -p --dangerously-skip-permissions"
            return ("bash", "-c", text.format(cap=CAP, agent=agent, marker=MARKER, check=CHECK))

        return argv

    def prompt(place: Place) -> None:
        place.write("PROMPT.md", f"{GOAL}\nWhen every test passes, output {MARKER}\n")

    def says(output: str, code: int) -> str:
        return SAID_DONE if code == 0 else SAID_NOT

    common: dict[str, Any] = {"claim": {"text": MARKER}, "says": says, "prepare": prompt, "reads": False}
    return (
        Contender(
            name=GREP,
            argv=words(WHILE_GREP),
            fairness="the loop of the blog posts; a plain `while :` never ends, so this one greps and has a cap",
            **common,
        ),
        Contender(
            name=CAREFUL,
            argv=words(UNTIL),
            gate=True,
            fairness="what a careful person writes instead: it does not ask the agent at all",
            **common,
        ),
    )
