"""Run the command whose number a run optimises."""

import re
import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from ralph.core.measuring import Metric, read_number
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.process.process import Process
from ralph.process.program import CannotStart, Command
from ralph.run.checks import RECIPES
from ralph.run.context import Context
from ralph.settings.schema import TuneChoice

LINES_KEPT, LINE_LENGTH = 2000, 1000  # of the command's output
TIMERS = ("cpu", "wall")
INTERPRETERS = re.compile(r"(?:python|pypy|node|deno|bun|ruby|perl|php|lua|(?:ba|da|z|k)?sh)[0-9.]*")
RUNNERS = ("env", "uv", "poetry", "pdm", "hatch", "npx", "run", "exec", "time", "nice", "taskset")
# The command's output goes to stderr: the only line on stdout is the number.
TIMER = """
import resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(["/bin/sh", "-c", sys.argv[2]], stdout=2)
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{used.ru_utime + used.ru_stime if sys.argv[1] == 'cpu' else seconds:.6f}")
sys.exit(code if code >= 0 else 128 - code)
"""


class Measurement(Struct, frozen=True):
    """One run of the command. `problem` says why there is no value; `is_interrupted`: the run has to end."""

    value: float | None = None
    problem: str = ""
    seconds: float = 0.0
    is_interrupted: bool = False


class MeasuringCommand(Struct, frozen=True):
    """The command, and how its number is found. `timer`: ralph measures its `cpu` or `wall` time itself."""

    command: str
    metric: Metric
    timer: str = ""

    @property
    def spelling(self) -> str:
        """The command as it was given."""
        return f"{self.timer}:{self.command}" if self.timer else self.command

    def run(self, context: Context, number: int, timeout: float | None) -> Measurement:
        """Run the command in the context's folder, for at most `timeout` seconds."""
        shell = ("/bin/sh", "-c", self.command)
        argv = (sys.executable, "-I", "-S", "-c", TIMER, self.timer, self.command) if self.timer else shell
        command = Command(argv=argv, cwd=str(context.root), env=context.child_env(number))
        lines: deque[str] = deque(maxlen=LINES_KEPT)

        def keep(new: Sequence[bytes]) -> None:
            lines.extend(line[:LINE_LENGTH].decode("utf-8", "replace") for line in new if line.strip())

        process = Process(
            context.sandboxed(command),
            keeper=context.keeper,
            limits=context.limits(timeout),
            interrupt=context.interrupt,
            tick=context.tick,
        )
        try:
            ended = process.stream(keep, redact=context.redact)
        except CannotStart as error:
            return Measurement(problem=error.message)
        if ended.ended_by == "turn-timeout":
            return Measurement(problem=f"timed out after {timeout:g}s", seconds=ended.duration)
        if ended.ended_by:
            return Measurement(problem=ended.ended_by, is_interrupted=True)
        if ended.code:
            said = clean(ended.stderr).strip().splitlines()
            reason = f": {one_line(said[-1], 200)}" if said else ""
            return Measurement(problem=f"exit code {ended.code}{reason}", seconds=ended.duration)
        value = read_number("\n".join(lines), "" if self.timer else self.metric.name)
        return Measurement(value, "" if value is not None else self._no_number(lines), ended.duration)

    def _no_number(self, lines: Sequence[str]) -> str:
        if self.metric.name:
            return f"it printed no line {self.metric.name}=NUMBER"
        return f"its last line isn't a number: {one_line(clean(lines[-1]), 80)}" if lines else "it printed nothing"


def measuring_command(settings: TuneChoice) -> MeasuringCommand:
    """Return the command that the settings name; raise a UserError if they name none or two."""
    if settings.minimize and settings.maximize:
        raise UserError("--minimize and --maximize: only one number can be optimised", "give exactly one of them")
    text = settings.command.strip()
    if not text:
        raise UserError("no number to optimise", 'name a command that prints it: --minimize "python bench.py"')
    timer, colon, command = text.partition(":")
    timer = timer if colon and timer in TIMERS else ""
    command = command.strip() if timer else text
    if not command:
        raise UserError(f"{text}: no command to measure", f'--minimize {timer}:"python bench.py"')
    if timer and settings.metric:
        raise UserError(f"--metric has no effect: ralph measures the {timer} time itself", "leave out --metric")
    metric = Metric(
        maximize=bool(settings.maximize),
        name=settings.metric,
        min_gain=settings.min_gain / 100,
        unit="s" if timer else "",
        target=settings.target,
    )
    return MeasuringCommand(command, metric, timer)


def scripts_of(command: str, root: Path) -> list[str]:
    """Return the files below `root` that the command runs: its script, and a Makefile or the like.

    What a script reads or measures is not among them: `wc -c app.js` runs nothing of the repository.
    """
    found: list[str] = []
    for part in re.split(r"&&|\|\||[;&|()\n]", command):
        words = [word.strip("'\"") for word in part.split() if "=" not in word or word.startswith(("-", "/", "."))]
        words = [word for at, word in enumerate(words) if at or word]
        while words and Path(words[0]).name in RUNNERS:
            words.pop(0)
        if not words:
            continue
        program, rest = Path(words[0]).name, words[1:]
        found += [words[0]] if "/" in words[0] else []
        found += [name for name in RECIPES.get(program, ()) if program != "pytest"]
        if INTERPRETERS.fullmatch(program):
            found += [word for word in rest if not word.startswith("-")][:1]
            found += [f"{name.replace('.', '/')}.py" for option, name in pairwise(rest) if option == "-m"]
    inside = [name for name in dict.fromkeys(found) if not Path(name).is_absolute() and (root / name).is_file()]
    return [name.removeprefix("./") for name in inside]
