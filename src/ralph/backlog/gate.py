"""The merge gate: merge the tasks that are ready, check the result, and move the target to exactly that commit.

It runs in a child process (`ralph run-gate`), one at a time, which prints its verdict.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_order import ORDER, REQUEST, BacklogOrder, folder_of, read
from ralph.backlog.retries import CHECK_RUNS, LOCKED_REMOTE, MERGE_RACE, REMOTE_TIMEOUT
from ralph.core.backlog import FailedCheck, GateVerdict
from ralph.core.backlog_events import BacklogState
from ralph.core.check_counts import count_failures
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.text import clean, tail
from ralph.errors import UserError
from ralph.files import acquire_lock, open_file
from ralph.git import merging, worktrees
from ralph.git.client import Git, require_git
from ralph.git.merging import Branch, Candidate
from ralph.git.remote import GitSettings, Remote, push_refusal, refuse_changed_push
from ralph.process.descendants import kill_run
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.settings import CheckCommand
from ralph.store.folder import RunFolder, prepare
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import enter_worktree, fill_worktree, open_check_sandbox
from ralph.verdict.exams import Exams
from ralph.verdict.missing import startup_advice

GateCheck = Callable[[str], FailedCheck | None]
"""Run one command in the gate's worktree; None if it passes."""


class MergeRequest(Struct, frozen=True, kw_only=True):
    """The tasks to merge.

    `passed` is the commit at which the target last passed its checks, and `red` the checks that failed there (with
    --allow-red). `own` maps a task to its additional checks, and `conflicted` to the files in which it had to resolve
    conflicts. `push_settings` are git's settings for pushing when the backlog run began. `examines`: run the exams of
    the whole backlog on the target instead.
    """

    branches: tuple[Branch, ...] = ()
    passed: str = ""
    red: tuple[FailedCheck, ...] = ()
    own: dict[str, tuple[str, ...]] = {}
    conflicted: dict[str, tuple[str, ...]] = {}
    push_settings: GitSettings | None = None
    examines: bool = False


def merge_request(order: BacklogOrder, state: BacklogState, push_settings: GitSettings | None) -> MergeRequest:
    """Return the request to merge the tasks that are at the gate or, without any, to check the target."""
    board, closing = state.board, order.source.closing
    jobs = [board.jobs[key] for key in board.trying]
    return MergeRequest(
        branches=tuple(Branch(j.task.key, j.tip, j.task.title, j.files, closing(j.task.key)) for j in jobs),
        passed=state.opened,
        red=board.red,
        own={job.task.key: job.task.checks for job in jobs if job.task.checks},
        conflicted={job.task.key: job.files for job in jobs if job.returns},
        push_settings=push_settings,
    )


class Gate(Struct, frozen=True, kw_only=True):
    """Merges the tasks of one backlog run.

    `check` runs a command in the gate's worktree, and `furnish` prepares a new worktree. `examine` runs the exams of
    the backlog on a copy of a commit, and returns the name of the first that fails.
    """

    order: BacklogOrder
    repository: Git
    check: GateCheck
    furnish: Callable[[], None]
    examine: Callable[[str], str] = lambda commit: ""

    def fetch_target(self) -> str:
        """Return the current commit of the target."""
        order = self.order
        if order.remote:
            timeout = REMOTE_TIMEOUT if order.is_shared else 0.0
            order.remote.fetch(self.repository, order.branch_of(""), timeout)
        commit = self.repository.resolve(order.target_ref)
        if not commit:
            raise UserError(f"target branch not found: {order.shown_target}", "restore it, then: ralph resume")
        return commit

    def check_target(self) -> GateVerdict:
        """Check the target itself."""
        target = self.fetch_target()
        red = self.failing_commands(target, self.order.checks, tries=CHECK_RUNS)
        if self.order.allow_red or not red:
            return GateVerdict(commit=target, allowed=red)
        if red[0].advice:
            return GateVerdict(commit=target, stuck=red[0].advice)
        failed = f"{red[0].check} fails on {self.order.shown_target} ({red[0].ending})"
        return GateVerdict(commit=target, stuck=f"{failed}; to merge what does not make it worse: --allow-red")

    def examine_target(self) -> GateVerdict:
        """Run the exams of the whole backlog on the target."""
        target = self.fetch_target()
        failed = self.examine(target)
        return GateVerdict(commit=target, stuck=f"the exam refuses the finished backlog: {failed}" if failed else "")

    def merge(self, request: MergeRequest) -> GateVerdict:
        """Merge the tasks. If an earlier process was killed half-way, repeating this is safe."""
        requested = {branch.tip: branch for branch in request.branches}
        reserved_names = self.order.reserved_names(self.repository)
        passed, known_red = request.passed, request.red
        for _ in MERGE_RACE.tries():
            base = self.fetch_target()
            # Someone else has moved the target. If it is a local branch, that may have been an agent.
            if passed and base != passed and (self.order.allow_red or not self.order.remote):
                known_red = self.failing_commands(base, self.order.checks, tries=CHECK_RUNS)
                problem = self.new_failure(known_red, request.red)
                if problem and not self.order.remote:
                    moved = f"{self.order.target} was moved by someone else to {base[:12]}"
                    fails = f"where `{problem.check}` fails ({problem.ending})"
                    return GateVerdict(stuck=f"{moved}, {fails}; the gate had left it at {passed[:12]}")
                passed = base
            there = {*requested} - merging.unmerged(self.repository, base, requested)
            before = tuple(requested[tip].key for tip in there)
            wanted = [branch for branch in request.branches if branch.tip not in there]
            candidate = merging.make_candidate(self.repository, base, wanted, reserved_names, self.order.name)
            tried = tuple(branch.key for branch in candidate.tried)
            verdict = GateVerdict(tried=tried, merged=before, conflicts=candidate.conflicts, empty=candidate.empty)
            if not candidate.commit:
                return replace(verdict, commit=base, allowed=known_red)
            red, stuck, allowed = self._judge(candidate, request, known_red)
            if red or stuck:
                return replace(verdict, red=red, stuck=stuck)
            refused = self._move_target(candidate, request.push_settings)
            if refused:
                return replace(verdict, stuck=refused)
            if refused is not None:
                return replace(verdict, merged=(*before, *tried), commit=candidate.commit, allowed=allowed)
        return GateVerdict(
            stuck=f"{self.order.shown_target} was moved by someone else {MERGE_RACE.attempts} times during the checks"
        )

    def _judge(
        self, candidate: Candidate, request: MergeRequest, known_red: Sequence[FailedCheck]
    ) -> tuple[FailedCheck | None, str, tuple[FailedCheck, ...]]:
        """Check the candidate. Return its failure, the reason if the target itself is at fault, and the failures that
        are allowed."""
        files = tuple({name for branch in candidate.tried for name in request.conflicted.get(branch.key, ())})
        if marked := merging.files_with_markers(self.repository, candidate.commit, files):
            return FailedCheck("no conflict markers", f"found some in {', '.join(marked)}"), "", ()
        own = [command for branch in candidate.tried for command in request.own.get(branch.key, ())]
        is_single = len(candidate.tried) == 1
        failed = self.failing_commands(
            candidate.commit, (*self.order.checks, *own), tries=CHECK_RUNS if is_single else 1
        )
        red = self.new_failure(failed, known_red)
        if red and is_single and red.check in self.order.checks and not self.order.allow_red:
            itself = self.failing_commands(candidate.base, (red.check,), tries=1)
            if itself:
                return None, f"`{red.check}` fails on {self.order.shown_target} itself ({itself[0].ending})", ()
        return red, "", failed

    def new_failure(self, failed: Sequence[FailedCheck], before: Sequence[FailedCheck]) -> FailedCheck | None:
        """Return the first failure; with --allow-red, the first that is worse than before."""
        old_failures = {check.check: check for check in before} if self.order.allow_red else {}
        return next((check for check in failed if not check.is_no_worse_than(old_failures.get(check.check))), None)

    def failing_commands(self, commit: str, commands: Sequence[str], tries: int) -> tuple[FailedCheck, ...]:
        """Return the commands that fail `tries` times on exactly the files of this commit.

        Without --allow-red, return only the first one.
        """
        tree = self.order.gate_worktree(self.repository)
        failed: list[FailedCheck] = []
        for command in dict.fromkeys(commands):
            for _ in range(tries):
                if worktrees.check_out(tree, commit):
                    self.furnish()
                if not (red := self.check(command)):
                    break
            else:
                assert red is not None
                failed.append(red)
                if not self.order.allow_red:
                    return (red,)
        with suppress(UserError):  # a check broke the worktree: it is made from scratch next time
            worktrees.pin_head(tree, commit)
        return tuple(failed)

    def _move_target(self, candidate: Candidate, push_settings: GitSettings | None) -> str | None:
        """Move the target to the candidate. Return "", why it cannot move, or None if someone else moved it first."""
        order = self.order
        if order.remote:
            refuse_changed_push(self.repository, push_settings)
            return self._push(candidate, order.remote)
        if place := worktrees.checked_out_at(self.repository, order.target):
            return f"{order.target} is checked out in {place}, and a branch that is checked out is never moved"
        return (
            ""
            if merging.move_target(self.repository, order.target_ref, candidate.commit, candidate.base) == "moved"
            else None
        )

    def _push(self, candidate: Candidate, remote: Remote) -> str | None:
        tips = {self.order.branch_of(branch.key): branch.tip for branch in candidate.tried}
        tasks = remote.last_known(self.repository, tips)  # possibly outdated: then the push fails
        removes = True
        for _ in LOCKED_REMOTE.tries():
            if any(not self._is_ours(there, tips[name]) for name, there in tasks.items()):
                tasks = remote.branch_tips(self.repository, tips)
            if foreign := [name for name, there in tasks.items() if not self._is_ours(there, tips[name])]:
                return f"{foreign[0]} on {remote.name} is not what was checked: somebody else works on it"
            answer = remote.push(self.repository, candidate.commit, candidate.base, tasks, removes=removes)
            now = self.fetch_target() if answer.code else candidate.commit
            # The push may have arrived although its answer did not.
            if not answer.code or not merging.unmerged(self.repository, now, {candidate.commit}):
                remote.delete(
                    self.repository, {name: candidate.commit for name in tasks if not (tasks[name] and removes)}
                )
                return ""
            if now != candidate.base:
                return None
            before, tasks = tasks, remote.branch_tips(self.repository, tips)
            if tasks != before:  # another machine moved one, or a push stopped half-way
                continue
            if removes and "delet" in answer.error:
                removes = False
            elif "lock" not in answer.error:
                break
        return f"{remote.name} refuses {remote.branch}: {push_refusal(answer)}"

    def _is_ours(self, there: str, tip: str) -> bool:
        """Whether a task's branch on the remote contains only what was checked.

        An interrupted push may have moved the branch to a merge of `tip` without moving the target.
        """
        return there in ("", tip) or merging.is_merge_of(self.repository, there, tip)


MAX_CHECK_TIME = 3600.0  # seconds to wait for a gate whose coordinator was killed


def run_gate(path: str, keeper: Keeper, interrupt: Interrupt) -> GateVerdict:
    """Merge what is requested, or (without branches) check the target itself; remove what merged tasks leave here."""
    folder = folder_of(path)
    work, request = read(folder, ORDER, BacklogOrder), read(folder, REQUEST, MergeRequest)
    deadline = Deadline(interrupt)
    repository = require_git(Path(work.workspace), deadline)
    with gate_lock(folder, deadline), ExitStack() as stack:
        gate = make_gate(work, repository, folder, keeper, interrupt, stack=stack)
        try:
            if request.examines:
                return gate.examine_target()
            verdict = gate.merge(request) if request.branches else gate.check_target()
        except UserError as error:
            return GateVerdict(stuck=error.advice)
        tips = {branch.key: branch.tip for branch in request.branches}
        with suppress(UserError):  # leftovers are removed at the end
            task_worktrees.clear(work, repository, {key: tips[key] for key in verdict.merged})
        return verdict


@contextmanager
def gate_lock(folder: RunFolder, deadline: Deadline) -> Iterator[None]:
    """Allow only one gate at a time.

    The git commands that a gate starts inherit its lock, so the next gate waits until those of a killed gate have
    exited. It kills the checks that a killed gate left running.
    """
    lock = open_file(folder.path / "gate.lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    try:
        acquire_lock(lock, folder.path / "gate.lock", MAX_CHECK_TIME)
        kill_run(_mark(folder), time_left=deadline.remaining)
        yield
    finally:
        os.close(lock)


def _mark(folder: RunFolder) -> str:
    """Return the run id that marks the processes of the gate."""
    return f"{folder.id}-gate"


def make_gate(
    work: BacklogOrder, repository: Git, folder: RunFolder, keeper: Keeper, interrupt: Interrupt, *, stack: ExitStack
) -> Gate:
    """Return the gate of a backlog run; its checks run one at a time in the gate's worktree, which is entered until
    `stack` is closed."""
    worktree = work.gate_worktree(repository)
    marked = RunFolder(folder.path.parent.parent, _mark(folder))
    marked.path = folder.path / "gate"
    # Python compares the times of modules by the second: it might use bytecode of the candidate before.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    context = Context(
        root=Path(worktree.workspace),
        workspace=work.workspace,
        settings=replace(work.settings, keep_children=False),
        folder=marked,
        keeper=keeper,
        deadline=Deadline(interrupt),
        env=env,
    )
    numbers = iter(range(1, 1 << 30))
    entered = list[Context]()  # once the worktree exists
    stay = stack.enter_context(ExitStack())

    def check(command: str) -> FailedCheck | None:
        os.makedirs(worktree.workspace, exist_ok=True)
        prepare(Path(worktree.workspace))
        if not entered:
            entered.append(stay.enter_context(enter_worktree(context, worktree)))
        with open_check_sandbox(entered[0]) as inside:
            results = Checks(inside, [CheckCommand(command)]).run(next(numbers))
        if results is None:
            raise KeyboardInterrupt
        (result,) = results
        if result.passed:
            return None
        count, advice = count_failures(result.tail, result.tests), startup_advice(entered[0], result)
        return FailedCheck(result.name, result.ending, tail(clean(result.tail), ERROR_LIMIT), count, advice)

    def furnish() -> None:
        stay.close()
        entered.clear()
        fill_worktree(worktree, context)

    def examine(commit: str) -> str:
        results = Exams(context, repository, work.id).run(commit, "the finished backlog", fail_fast=True)
        if interrupt.level:
            raise KeyboardInterrupt
        return next((exam.name for exam, _ in results if not exam.passed), "")

    return Gate(order=work, repository=repository, check=check, furnish=furnish, examine=examine)
