"""Optimise a number: measure each attempt, keep it if it is better than noise, otherwise restore the files.

The best version is a commit on the run's branch, and `refs/ralph/<run>/best` names it, so that a kill loses nothing.
Measurements run in two throwaway copies: one of the best version, one of the candidate. `MeasuringCommand` runs the
command that prints the number.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events, gains, measuring
from ralph.core.measuring import LOOKS, MAX_PAIRS, START_RUNS, Comparison, Metric, Pairs, Start
from ralph.core.model import Iteration, Outcome, Run, Stop, tree_files
from ralph.core.text import clean, listed, one_line
from ralph.errors import UserError
from ralph.git.locks import update_refs
from ralph.git.worktrees import Worktree, check_out_branch
from ralph.loop import Parts
from ralph.process.program import CannotStart, Command
from ralph.settings.schema import TuneChoice
from ralph.verdict.context import Context
from ralph.verdict.copies import PreparedCopy, open_copy
from ralph.verdict.trees import GitTrees

CANDIDATE_TIME = 600.0  # seconds of measuring for one attempt
END_TIME = 1800.0  # seconds for comparing the start with the end
SLOWDOWN, EXTRA_TIME = 3, 10.0  # a candidate may take 3 times as long as the start, and 10 s more
SAFE_PAIRS = min(LOOKS)  # with fewer pairs, noise can look like a gain
BEST = "best"

MIN_PAIR_TIME = 0.001

LINES_KEPT, LINE_LENGTH = 2000, 1000  # of the command's output
TIMERS = ("cpu", "wall")
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

CopyName = Literal["best", "next"]
SIDES: tuple[CopyName, CopyName] = ("best", "next")


class MeasuringCut(Exception):
    """The run has to end before a measurement is complete."""


class NotMeasured(Exception):
    """The command gave no number; the message says why."""


class Tuning:
    """Measures the attempts of one run, and keeps or undoes them. `trees` has saved them as checkpoints before."""

    def __init__(self, context: Context, trees: GitTrees, worktree: Worktree, stack: ExitStack) -> None:
        self._context, self._trees, self._stack = context, trees, stack
        self._worktree, self._home = worktree, worktree.repository
        self._command = measuring_command(context.settings.tune)
        self._copies: dict[CopyName, PreparedCopy] = {}
        self._best = ""  # the commit of the best version
        self._slowest = 0.0  # seconds of one run of the start

    # What the loop calls

    def begin(self) -> None:
        """Return to the best version: a run that was killed may have left an unfinished attempt in the worktree."""
        self._best = self._home.resolve(self._ref(BEST)) or self._home.resolve(self._worktree.ref)
        self._restore()

    def measure_start(self, run: Run) -> Run:
        """Return the run with the numbers of its start; raise a UserError if there are none."""
        if red := [check.name for check in run.baseline or () if not check.passed]:
            raise UserError(
                f"{listed(red, 3)} fails before the first turn, and every attempt has to pass it",
                "fix it first, or leave it out",
            )
        self._check_out("best", self._start)
        try:
            self._read("best", 0, "the start, to warm up")
            runs = range(1, START_RUNS + 1)
            values = tuple(self._read("best", 0, f"the start, run {at} of {START_RUNS}") for at in runs)
        except MeasuringCut:
            return run
        except NotMeasured as error:
            raise UserError(
                f"cannot measure {self._command.spelling}: {error}",
                "run it by hand until its last line is the number, or name one with --metric",
            ) from None
        start = Start(self._command.metric, values)
        if start.metric.has_reached_target(start.value):
            value = gains.format_value(start.value, start.metric)
            raise UserError(f"target already reached: {value}", "name a more ambitious --target")
        self._context.tell(events.StartMeasured(start))
        return replace(run, start=start)

    def measure(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Return the iteration with the result of measuring it."""
        before = gains.best_value(run)
        assert run.start
        assert before is not None
        if not iteration.tree:
            return replace(iteration, measured=Comparison(before=before, problem="it has no checkpoint"))
        number = gains.best_number(run)
        best_tree = run.iterations[number - 1].tree if number else run.base_tree
        if tree_files(iteration.tree) == tree_files(best_tree):
            return replace(iteration, measured=Comparison(before=before, problem=gains.UNCHANGED))
        try:
            measured = self._decide(run, iteration.number, before)
        except MeasuringCut:
            measured = Comparison(before=before, problem=gains.INTERRUPTED)
        except NotMeasured as error:
            measured = Comparison(before=before, problem=str(error))
        return replace(iteration, measured=measured)

    def settle(self, run: Run, iteration: Iteration) -> None:
        """Commit an attempt that is kept to the run's branch, and restore the best version's files. Can be repeated."""
        if gains.is_kept(iteration) and run.start and iteration.tree:
            git, tree = self._home, iteration.tree.files
            if git.tree_at(self._best) != tree:
                message = f"{gains.commit_subject(iteration, run.start.metric)}\n\n{clean(run.goal[:2000])}\n"
                self._best = git.commit_tree(tree, (self._best,), message, git.identity())
        self._restore()

    def finish(self, run: Run, stop: Stop) -> Stop:
        """Compare the best version with the start, and return how the run ends."""
        is_cut_short = stop.outcome in (Outcome.FATAL, Outcome.INTERRUPTED) or self._context.interrupt.level
        end = None
        if gains.best_number(run) and run.start and not is_cut_short:
            try:
                end = self._compare_ends(run, run.start)
                self._context.tell(events.EndMeasured(end))
            except (MeasuringCut, NotMeasured, UserError) as error:
                self._context.tell(events.Notice(f"the end was not compared with the start: {error or 'interrupted'}"))
        return gains.conclude_tuning(run, stop, end)

    # Decisions

    def _decide(self, run: Run, number: int, before: float) -> Comparison:
        """Measure attempt `number` and decide about it."""
        assert run.start
        metric, noise = run.start.metric, gains.noise_of(run)
        if noise == "noisy":
            return self._decide_by_pairs(run, number)
        self._check_out("next", self._trees.checkpoint)
        if noise == "nearly exact":
            self._read("next", number, "the attempt, to warm up")
        after = self._read("next", number, "the attempt")
        keeps = measuring.decide_once(metric, noise, before, after) == "keep"
        if keeps:  # the metric is noisy if the same version gives another number now
            again = self._read("next", number, "the attempt, once more")
            if abs(metric.gain(after, again)) >= metric.min_gain if noise == "nearly exact" else again != after:
                return self._decide_by_pairs(run, number, is_new=True)
        return Comparison(before=before, after=after, gain=metric.gain(before, after), kept=keeps)

    def _decide_by_pairs(self, run: Run, number: int, is_new: bool = False) -> Comparison:
        """Measure pairs of the best version and the candidate until they decide. `is_new`: the metric seemed exact
        until now."""
        assert run.start
        pairs = Pairs(run.start.metric)
        fitting = self._warm_up(self._best, self._trees.checkpoint, number, CANDIDATE_TIME)
        if fitting < SAFE_PAIRS:
            for _ in range(fitting):
                pairs = self._add_pair(pairs, number)
            keeps = measuring.decide_without_time(pairs.metric, run.start.values, pairs.gain) == "keep"
            return gains.compare_pairs(pairs, keeps, is_certain=False, is_noisy=is_new)
        while (decision := pairs.decide()) == "more" and len(pairs.values) < fitting:
            pairs = self._add_pair(pairs, number)
        return gains.compare_pairs(pairs, decision == "keep", is_noisy=is_new)

    def _compare_ends(self, run: Run, start: Start) -> Comparison:
        """Compare the best version with the start. The run reports only this comparison."""
        metric, last = start.metric, gains.best_number(run)
        if gains.noise_of(run) != "noisy":
            self._check_out("best", self._start)
            self._check_out("next", self._best)
            before, after = self._read("best", last, "the start"), self._read("next", last, "the end")
            gain = metric.gain(before, after)
            return Comparison(before=before, after=after, gain=gain, kept=gain > 0)
        pairs, fitting = Pairs(metric), self._warm_up(self._start, self._best, last, END_TIME)
        for _ in range(min(fitting, MAX_PAIRS)):
            pairs = self._add_pair(pairs, last)
        is_better = pairs.better * MAX_PAIRS >= LOOKS[MAX_PAIRS] * len(pairs.values)
        return gains.compare_pairs(pairs, is_better and pairs.gain > 0)

    def _warm_up(self, best: str, candidate: str, number: int, seconds: float) -> int:
        """Check out both commits and measure them once; return how many pairs fit into this time."""
        self._check_out("best", best)
        self._check_out("next", candidate)
        began = time.monotonic()
        for side in SIDES:
            self._read(side, number, "a pair, to warm up")
        one_pair = max(time.monotonic() - began, MIN_PAIR_TIME)
        return max(1, int((seconds - one_pair) / one_pair))

    def _add_pair(self, pairs: Pairs, number: int) -> Pairs:
        """Measure both versions, in alternating order."""
        before = len(pairs.values)
        name = f"pair {before + 1}" + (f", better in {pairs.better} of {before}" if before else "")
        values = {side: self._read(side, number, name) for side in (SIDES[::-1] if before % 2 else SIDES)}
        return pairs.plus(values["best"], values["next"])

    # Measurements

    def _read(self, side: CopyName, number: int, name: str) -> float:
        """Run the command once in a copy, and return the number. `number` is that of the attempt, 0 for the start."""
        context = self._copies[side].context
        timeouts = [self._context.settings.check_timeout]
        if number and self._slowest:  # a candidate may be slower than the start, but not by far
            timeouts.append(SLOWDOWN * self._slowest + EXTRA_TIME)
        self._context.tell(events.MeasurementStarted(name))
        try:
            value, seconds = self._command.run(context, number, min(filter(None, timeouts), default=None))
        finally:
            context.report_problems()
            if self._context.interrupt.level:  # the signal may have made the command fail
                raise MeasuringCut
        if not number:
            self._slowest = max(self._slowest, seconds)
        return value

    def _check_out(self, side: CopyName, commit: str) -> None:
        """Check out a commit in a copy, which is created first if necessary."""
        if side in self._copies:
            self._copies[side].check_out(commit)
        else:
            opened = open_copy(self._context, self._home, commit, name=f"-{side}")
            self._copies[side] = self._stack.enter_context(opened)

    # The best version

    def _restore(self) -> None:
        """Reset branch and worktree to the best version."""
        update_refs(self._home, *(f"update {ref} {self._best}" for ref in (self._worktree.ref, self._ref(BEST))))
        check_out_branch(self._worktree)
        self._trees.look_again()

    @property
    def _start(self) -> str:
        """The commit of the checkpoint before the first attempt."""
        return self._home.resolve(self._ref("0"))

    def _ref(self, name: str) -> str:
        return f"refs/ralph/{self._context.folder.id}/{name}"


class MeasuringCommand(Struct, frozen=True):
    """The command that prints the number, and where in its output to find it. `timer`: ralph measures its `cpu` or
    `wall` time itself instead."""

    command: str
    metric: Metric
    timer: str = ""

    @property
    def spelling(self) -> str:
        """The command as it was given."""
        return f"{self.timer}:{self.command}" if self.timer else self.command

    def run(self, context: Context, number: int, timeout: float | None) -> tuple[float, float]:
        """Run the command in the context's folder, for at most `timeout` seconds. Return the number, and the seconds
        that it took; raise NotMeasured if there is no number, and MeasuringCut if the run has to end."""
        shell = ("/bin/sh", "-c", self.command)
        argv = (sys.executable, "-I", "-S", "-c", TIMER, self.timer, self.command) if self.timer else shell
        command = Command(argv=argv, cwd=str(context.root), env=context.child_env(number))
        lines: deque[str] = deque(maxlen=LINES_KEPT)

        def keep(new: Sequence[bytes]) -> None:
            lines.extend(line[:LINE_LENGTH].decode("utf-8", "replace") for line in new if line.strip())

        try:
            ended = context.process(context.sandboxed(command), timeout=timeout).stream(keep, redact=context.redact)
        except CannotStart as error:
            raise NotMeasured(error.message) from None
        if ended.ended_by == "turn-timeout":
            raise NotMeasured(f"timed out after {timeout:g}s")
        if ended.ended_by:
            raise MeasuringCut
        if ended.code:
            said = clean(ended.stderr).strip().splitlines()
            reason = f": {one_line(said[-1], 200)}" if said else ""
            raise NotMeasured(f"exit code {ended.code}{reason}")
        value = measuring.read_number("\n".join(lines), "" if self.timer else self.metric.name)
        if value is not None:
            return value, ended.duration
        if self.metric.name:
            raise NotMeasured(f"it printed no line {self.metric.name}=NUMBER")
        last = one_line(clean(lines[-1]), 80) if lines else ""
        raise NotMeasured(f"its last line isn't a number: {last}" if lines else "it printed nothing")


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
