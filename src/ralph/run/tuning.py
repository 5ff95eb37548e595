"""Optimise a number: measure each attempt, keep it if it is better than noise, otherwise restore the files.

The best version is a commit on the run's branch, and `refs/ralph/<run>/best` names it, so that a kill loses nothing.
Measurements run in two throwaway copies: one of the best version, one of the candidate.
"""

import os
import time
from contextlib import ExitStack
from typing import Literal

from msgspec.structs import replace

from ralph.core import events
from ralph.core.gains import (
    INTERRUPTED,
    UNCHANGED,
    best_number,
    best_value,
    commit_subject,
    compare_pairs,
    conclude_tuning,
    format_value,
    is_kept,
    noise_of,
)
from ralph.core.measuring import (
    LOOKS,
    MAX_PAIRS,
    START_RUNS,
    Comparison,
    Metric,
    Pairs,
    Start,
    decide_once,
    decide_without_time,
)
from ralph.core.model import Iteration, Outcome, Run, Stop, tree_files
from ralph.core.text import clean, listed
from ralph.errors import UserError
from ralph.files import remove_tree
from ralph.git.locks import update_refs
from ralph.git.worktrees import Worktree, check_out, check_out_branch
from ralph.loop import Parts
from ralph.run.context import Context
from ralph.run.copies import PreparedCopy, open_copy
from ralph.run.measure import measuring_command
from ralph.run.trees import GitTrees
from ralph.settings import Settings

CANDIDATE_TIME = 600.0  # seconds of measuring for one attempt
END_TIME = 1800.0  # seconds for comparing the start with the end
SLOWDOWN, EXTRA_TIME = 3, 10.0  # a candidate may take this many times as long as the start, and these seconds more
SAFE_PAIRS = min(LOOKS)  # fewer cannot decide
BEST = "best"

START = "0"  # the checkpoint before the first attempt
CACHE = ".ralph/pycache"  # in a copy: Python compares the times of modules by the second
MIN_PAIR_TIME = 0.001

CopyName = Literal["best", "next"]
SIDES: tuple[CopyName, CopyName] = ("best", "next")


class MeasuringCut(Exception):
    """The run has to end before the measurement is complete."""


class NotMeasured(Exception):
    """The command gave no number; the message says why."""


class Tuning:
    """Measures and settles the attempts of one run. `trees` saved them as checkpoints before."""

    def __init__(
        self,
        context: Context,
        settings: Settings,
        trees: GitTrees,
        *,
        worktree: Worktree,
        workspace: str,
        stack: ExitStack,
    ) -> None:
        self._context, self._settings, self._trees = context, settings, trees
        self._worktree, self._home = worktree, worktree.home
        self._workspace, self._stack = workspace, stack
        self._command = measuring_command(settings.tune)
        self._copies: dict[CopyName, PreparedCopy] = {}
        self._slowest = 0.0  # seconds of one run of the start

    # What the loop calls

    def begin(self) -> None:
        """Return to the best version: a run that was killed may have left a half-made attempt in the worktree."""
        if not self._home.resolve(self._ref(BEST)):
            update_refs(self._home, f"update {self._ref(BEST)} {self._home.resolve(self._worktree.ref)}")
        self._restore()

    def measure_start(self, run: Run) -> Run:
        """Return the run with the numbers of its start; raise a UserError if there are none."""
        if red := [check.name for check in run.baseline or () if not check.passed]:
            raise UserError(
                f"{listed(red, 3)} fails before the first turn, and every attempt has to pass it",
                "fix it first, or leave it out",
            )
        self._check_out("best", START)
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
            value = format_value(start.value, start.metric)
            raise UserError(f"target already reached: {value}", "name a more ambitious --target")
        self._context.tell(events.StartMeasured(start))
        return replace(run, start=start)

    def measure(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Return the iteration with what came of measuring it."""
        before = best_value(run)
        assert run.start
        assert before is not None
        if not iteration.tree:
            return replace(iteration, measured=Comparison(before=before, problem="it has no checkpoint"))
        if tree_files(iteration.tree) == tree_files(self._best_tree(run)):
            return replace(iteration, measured=Comparison(before=before, problem=UNCHANGED))
        try:
            measured = self._decide(run, iteration.number, before)
        except MeasuringCut:
            measured = Comparison(before=before, problem=INTERRUPTED)
        except NotMeasured as error:
            measured = Comparison(before=before, problem=str(error))
        return replace(iteration, measured=measured)

    def settle(self, run: Run, iteration: Iteration) -> None:
        """Commit a kept attempt on the run's branch, and restore the best version's files. Can be repeated."""
        best = self._home.resolve(self._ref(BEST))
        tree = tree_files(iteration.tree)
        if is_kept(iteration) and run.start and self._home.resolve(f"{best}^{{tree}}") != tree:
            subject = commit_subject(iteration, run.start.metric)
            message = f"{subject}\n\n{clean(run.goal[:2000])}\n"
            git = self._home
            made = git.run("commit-tree", tree, "-p", best, stdin=message.encode(), env=git.identity())
            best = made.decode().strip()
            update_refs(git, f"update {self._worktree.ref} {best}", f"update {self._ref(BEST)} {best}")
        self._restore()

    def finish(self, run: Run, stop: Stop) -> Stop:
        """Compare the best version with the start, and return how the run ends."""
        is_cut_short = stop.outcome in (Outcome.FATAL, Outcome.INTERRUPTED) or self._context.interrupt.level
        end = None
        if best_number(run) and run.start and not is_cut_short:
            try:
                end = self._compare_ends(run, run.start)
                self._context.tell(events.EndMeasured(end))
            except (MeasuringCut, NotMeasured, UserError) as error:
                self._context.tell(events.Notice(f"the end was not compared with the start: {error or 'interrupted'}"))
        return conclude_tuning(run, stop, end)

    # Decisions

    def _decide(self, run: Run, number: int, before: float) -> Comparison:
        """Measure attempt `number` and decide about it."""
        assert run.start
        metric, noise = run.start.metric, noise_of(run)
        if noise == "noisy":
            return self._decide_by_pairs(run, number)
        self._check_out("next", str(number))
        if noise == "nearly exact":
            self._read("next", number, "the attempt, to warm up")
        after = self._read("next", number, "the attempt")
        kept = decide_once(metric, noise, before, after) == "keep"
        if kept and self._is_unsteady(number, after, metric if noise == "nearly exact" else None):
            return self._decide_by_pairs(run, number, is_new=True)
        return Comparison(before=before, after=after, gain=metric.gain(before, after), kept=kept)

    def _is_unsteady(self, number: int, value: float, metric: Metric | None) -> bool:
        """Run a kept candidate once more: one version that gives two numbers is noisy."""
        again = self._read("next", number, "the attempt, once more")
        return again != value if metric is None else abs(metric.gain(value, again)) >= metric.min_gain

    def _decide_by_pairs(self, run: Run, number: int, is_new: bool = False) -> Comparison:
        """Measure pairs of the best version and the candidate until they decide. `is_new`: it is noisy only now."""
        assert run.start
        pairs = Pairs(run.start.metric)
        fitting = self._warm_up(str(best_number(run)), number, CANDIDATE_TIME)
        if fitting < SAFE_PAIRS:
            for _ in range(fitting):
                pairs = self._add_pair(pairs, number)
            kept = decide_without_time(pairs.metric, run.start.values, pairs.gain) == "keep"
            return compare_pairs(pairs, kept, is_certain=False, is_noisy=is_new)
        while (decision := pairs.decide()) == "more" and len(pairs.values) < fitting:
            pairs = self._add_pair(pairs, number)
        return compare_pairs(pairs, decision == "keep", is_noisy=is_new)

    def _compare_ends(self, run: Run, start: Start) -> Comparison:
        """Compare the best version with the start; only this number is reported."""
        metric, last = start.metric, best_number(run)
        if noise_of(run) != "noisy":
            self._check_out("best", START)
            self._check_out("next", str(last))
            before, after = self._read("best", last, "the start"), self._read("next", last, "the end")
            gain = metric.gain(before, after)
            return Comparison(before=before, after=after, gain=gain, kept=gain > 0)
        pairs, fitting = Pairs(metric), self._warm_up(START, last, END_TIME)
        for _ in range(min(fitting, MAX_PAIRS)):
            pairs = self._add_pair(pairs, last)
        is_better = pairs.better * MAX_PAIRS >= LOOKS[MAX_PAIRS] * len(pairs.values)
        return compare_pairs(pairs, is_better and pairs.gain > 0)

    def _warm_up(self, best: str, number: int, seconds: float) -> int:
        """Prepare both copies; return how many pairs fit into this time."""
        self._check_out("best", best)
        self._check_out("next", str(number))
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
        """Run the command once in a copy, for attempt `number`; 0: for the start."""
        context = self._copies[side].context
        self._context.tell(events.MeasurementStarted(name))
        reading = self._command.run(context, number, self._timeout(number))
        context.tell_problems()
        if reading.is_interrupted or self._context.interrupt.level:
            raise MeasuringCut
        if reading.value is None:
            raise NotMeasured(reading.problem)
        if not number:
            self._slowest = max(self._slowest, reading.seconds)
        return reading.value

    def _timeout(self, number: int) -> float | None:
        """Return the seconds that one run may take. A candidate may be slower than the start, but not by far."""
        limits = [self._settings.check_timeout, SLOWDOWN * self._slowest + EXTRA_TIME if self._slowest else None]
        return min(filter(None, limits if number else limits[:1]), default=None)

    def _check_out(self, side: CopyName, name: str) -> None:
        """Make a copy the version of a checkpoint, without compiled modules of another one."""
        commit = self._home.resolve(self._ref(name))
        if side in self._copies:
            check_out(self._copies[side].worktree, commit)
        else:
            self._copies[side] = self._stack.enter_context(
                open_copy(self._context, self._home, commit, self._settings, self._workspace, name=f"-{side}")
            )
        copy = self._copies[side]
        cache = f"{copy.worktree.path}/{CACHE}"
        if os.path.lexists(cache):
            remove_tree(cache)
        env = {key: value for key, value in copy.context.env.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = cache
        self._copies[side] = replace(copy, context=replace(copy.context, env=env))

    # The best version

    def _restore(self) -> None:
        """Make branch and worktree the best version."""
        best = self._home.resolve(self._ref(BEST))
        if self._home.resolve(self._worktree.ref) != best:
            update_refs(self._home, f"update {self._worktree.ref} {best}")
        check_out_branch(self._worktree)
        self._trees.look_again()

    def _best_tree(self, run: Run) -> str | None:
        number = best_number(run)
        return run.iterations[number - 1].tree if number else run.base_tree

    def _ref(self, name: str) -> str:
        return f"refs/ralph/{self._context.folder.id}/{name}"
