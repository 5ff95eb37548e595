"""Does it merge? Merges what is ready, checks exactly that, and moves the target to it: one merge from end to end, in
a process of its own, which holds the gate alone and says what it saw."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog import task_worktrees
from ralph.backlog.retries import CHECK_RUNS, LOCKED_REMOTE, MERGE_RACE, REMOTE_TIMEOUT
from ralph.backlog.work_order import ORDER, REQUEST, WorkOrder, folder_of, read
from ralph.core.backlog import Board, Conflict, FailedCheck, GateVerdict
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, tail
from ralph.errors import UserError
from ralph.files import acquire_lock, open_file
from ralph.git import merging, worktrees
from ralph.git.client import Git, require_git
from ralph.git.configuration import GitSettings, refuse_changed_push
from ralph.git.merging import Branch, Candidate
from ralph.git.remote import Remote, push_refusal
from ralph.process.deadline import Deadline
from ralph.process.descendants import kill_run
from ralph.process.keeper import Keeper
from ralph.process.signals import Interrupt
from ralph.run.checks import Checks, enclosed
from ralph.run.context import Context
from ralph.run.prepare_worktree import fill_worktree
from ralph.settings import CheckCommand
from ralph.store.folder import RunFolder, prepare

GateCheck = Callable[[str], FailedCheck | None]
"""Runs one command in the gate's working tree; what went wrong, if it did."""


class MergeRequest(Struct, frozen=True, kw_only=True):
    """What is to merge. `passed` is the commit at which the target was last seen green; `own` are the checks of single
    tasks; `conflicted` are files in which each had conflicts that its agent was to solve; `probed` are the branches of
    tasks at work; `push_settings` are git's settings for pushing when the work began."""

    branches: tuple[Branch, ...] = ()
    passed: str = ""
    own: dict[str, tuple[str, ...]] = {}
    conflicted: dict[str, tuple[str, ...]] = {}
    probed: dict[str, str] = {}
    push_settings: GitSettings | None = None


def merge_request(
    order: WorkOrder, board: Board, batch: tuple[str, ...], passed: str, push_settings: GitSettings | None
) -> MergeRequest:
    """Return the request to merge these tasks of the board."""
    jobs = [board.jobs[key] for key in batch]
    closings = {job.task.key: order.source.closing(job.task.key) for job in jobs}
    return MergeRequest(
        branches=tuple(Branch(j.task.key, j.tip, j.task.title, j.files, closings[j.task.key]) for j in jobs),
        passed=passed,
        own={job.task.key: job.task.checks for job in jobs if job.task.checks},
        conflicted={job.task.key: job.files for job in jobs if job.returns},
        probed={job.task.key: order.branch_of(job.task.key) for job in board.of("working")},
        push_settings=push_settings,
    )


class Gate(Struct, frozen=True, kw_only=True):
    """Merges the tasks of one backlog run. `check` runs in the gate's own worktree; `furnish` prepares a new one."""

    order: WorkOrder
    repository: Git
    check: GateCheck
    furnish: Callable[[], None]

    def now(self) -> str:
        """The commit at which the target is."""
        order = self.order
        if order.remote:
            timeout = REMOTE_TIMEOUT if order.is_shared else 0.0
            order.remote.fetch(self.repository, order.branch_of(""), timeout)
        found = self.repository.resolve(order.target_ref)
        if not found:
            raise UserError(f"the target {order.shown_target} is gone", "put it back, then go on with `ralph resume`")
        return found

    def opened(self) -> GateVerdict:
        """Whether the target itself is green."""
        target = self.now()
        return GateVerdict(commit=target, red=self.tested(target, self.order.checks, tries=CHECK_RUNS))

    def merge(self, request: MergeRequest) -> GateVerdict:
        """What came of it. May be repeated at any point, whatever an earlier one had done before it was killed."""
        asked = {branch.tip: branch for branch in request.branches}
        kept = self.order.reserved(self.repository)
        passed = request.passed
        for _ in MERGE_RACE.tries():
            base = self.now()
            if passed and base != passed and not self.order.remote:  # an agent in a box can move this branch, too
                if red := self.tested(base, self.order.checks, tries=CHECK_RUNS):
                    was = f"somebody else has moved {self.order.target} to {base[:12]}, where `{red.check}` fails"
                    return GateVerdict(stuck=f"{was} ({red.ending}); the gate had left it at {passed[:12]}")
                passed = base
            there = {*asked} - merging.unmerged(self.repository, base, asked)
            before = tuple(asked[tip].key for tip in there)
            wanted = [branch for branch in request.branches if branch.tip not in there]
            made = merging.make_candidate(self.repository, base, wanted, kept, self.order.name)
            tried = tuple(branch.key for branch in made.tried)
            seen = GateVerdict(tried=tried, merged=before, conflicts=made.conflicts, empty=made.empty)
            if not made.commit:
                return replace(seen, commit=base)
            red, stuck = self._judged(made, request)
            if red or stuck:
                return replace(seen, red=red, stuck=stuck)
            refused = self._moved(made, request.push_settings)
            if refused:
                return replace(seen, stuck=refused)
            if refused is not None:
                probed = self._probed(made.commit, request.probed)
                return replace(seen, merged=(*before, *tried), commit=made.commit, probed=probed)
        return GateVerdict(
            stuck=f"{self.order.shown_target} was moved by someone else {MERGE_RACE.attempts} times during the checks"
        )

    def _judged(self, made: Candidate, request: MergeRequest) -> tuple[FailedCheck | None, str]:
        """What failed on the candidate; or that the target itself fails, which is the fault of nobody in it."""
        files = tuple({name for branch in made.tried for name in request.conflicted.get(branch.key, ())})
        if left := merging.files_with_markers(self.repository, made.commit, files):
            return FailedCheck("no marks of a conflict", f"they were left in {', '.join(left)}"), ""
        own = [command for branch in made.tried for command in request.own.get(branch.key, ())]
        red = self.tested(made.commit, (*self.order.checks, *own), tries=CHECK_RUNS if len(made.tried) == 1 else 1)
        if red and len(made.tried) == 1 and red.check in self.order.checks:
            itself = self.tested(made.base, (red.check,), tries=1)
            if itself:
                return None, f"`{red.check}` fails on {self.order.shown_target} itself ({itself.ending})"
        return red, ""

    def tested(self, commit: str, commands: Sequence[str], tries: int) -> FailedCheck | None:
        """Return the first command that fails `tries` times on this commit, each time on exactly its files."""
        tree = self.order.gate_in(self.repository)
        for command in dict.fromkeys(commands):
            for _ in range(tries):
                if worktrees.check_out(tree, commit):
                    self.furnish()
                if not (red := self.check(command)):
                    break
            else:
                return red
        with suppress(UserError):  # a check broke it: it is made from scratch next time
            worktrees.pin_head(tree, commit)
        return None

    def _moved(self, made: Candidate, push_settings: GitSettings | None) -> str | None:
        """Moves the target to what was checked: nothing where it is there, why it cannot be, None for a lost race."""
        order = self.order
        if order.remote:
            refuse_changed_push(self.repository, push_settings)
            return self._pushed(made, order.remote)
        if held := worktrees.checked_out_at(self.repository, order.target):
            return f"{order.target} is checked out in {held}, and a branch that is checked out is never moved"
        return "" if merging.move_target(self.repository, order.target_ref, made.commit, made.base) == "moved" else None

    def _pushed(self, made: Candidate, remote: Remote) -> str | None:
        tips = {self.order.branch_of(branch.key): branch.tip for branch in made.tried}
        tasks = remote.last_known(self.repository, tips)  # the leases will tell whether it is so
        removes = True
        for _ in LOCKED_REMOTE.tries():
            if any(not self._is_ours(there, tips[name]) for name, there in tasks.items()):
                tasks = remote.known(self.repository, tips)
            if foreign := [name for name, there in tasks.items() if not self._is_ours(there, tips[name])]:
                return f"{foreign[0]} on {remote.name} is not what was checked: somebody else works on it"
            answer = remote.push(self.repository, made.commit, made.base, tasks, removes=removes)
            now = self.now() if answer.code else made.commit
            if not answer.code or not merging.unmerged(self.repository, now, {made.commit}):  # it may have got lost
                remote.delete(self.repository, {name: made.commit for name in tasks if not (tasks[name] and removes)})
                return ""
            if now != made.base:
                return None
            before, tasks = tasks, remote.known(self.repository, tips)
            if tasks != before:  # another one moved it, or a push was torn there
                continue
            if removes and "delet" in answer.error:
                removes = False
            elif "lock" not in answer.error:
                break
        return f"{remote.name} refuses {remote.branch}: {push_refusal(answer)}"

    def _is_ours(self, there: str, tip: str) -> bool:
        """Whether a task's branch on the remote is what was checked. A push that was torn there may have moved it to
        a candidate of ours without moving the target."""
        return there in ("", tip) or merging.is_merge_of(self.repository, there, tip)

    def _probed(self, target: str, working: Mapping[str, str]) -> dict[str, Conflict]:
        """Which tasks at work will conflict with what has just merged."""
        places = ["refs/heads", *([f"refs/remotes/{self.order.remote.name}"] if self.order.remote else [])]
        refs = {f"{place}/{branch}": key for place in reversed(places) for key, branch in working.items()}
        tips = merging.unmerged_refs(self.repository, target, refs)
        own = {refs[ref]: tips[ref] for ref in refs if ref in tips}  # where there are both, what is here
        seen = {key: merging.merge_commits(self.repository, target, tip).conflict for key, tip in own.items()}
        return {key: conflict for key, conflict in seen.items() if conflict}


LEFT = b"."
_LONGEST_CHECKS = 3600.0  # seconds in which a gate whose coordinator was killed is gone


class Interrupted(Exception):
    """A person asked to stop before the gate had seen all."""


def attend(path: str, keeper: Keeper, interrupt: Interrupt) -> tuple[GateVerdict, Callable[[], None]]:
    """Merge what is requested, or (without branches) check the target itself. Return the verdict, and a function that
    removes the worktrees and branches of what was merged: the next request may be at the gate by then."""
    folder = folder_of(path)
    work, request = read(folder, ORDER, WorkOrder), read(folder, REQUEST, MergeRequest)
    deadline = Deadline(interrupt)
    home = require_git(Path(work.workspace), deadline)
    with _alone(folder, deadline):
        gate = _gate(work, home, folder, keeper, interrupt)
        try:
            verdict = gate.merge(request) if request.branches else gate.opened()
        except UserError as error:
            verdict = GateVerdict(stuck=error.advice)
    tips = {branch.key: branch.tip for branch in request.branches}

    def clear() -> None:
        with suppress(UserError):  # what is left goes when all is done
            task_worktrees.clear(work, home, {key: tips[key] for key in verdict.merged})

    return verdict, clear


@contextmanager
def _alone(folder: RunFolder, deadline: Deadline) -> Iterator[None]:
    """While entered, nobody else is at the gate. What git we start inherits the lock: when we are killed, the next one
    waits until they are gone; and whatever the checks of a killed one have left is ended. To look for that takes as
    long as three gits: whoever leaves in good order says so in the lock."""
    lock = open_file(folder.path / "gate.lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    try:
        acquire_lock(lock, folder.path / "gate.lock", _LONGEST_CHECKS)
        if os.read(lock, 1) != LEFT:
            kill_run(_mark(folder), time_left=deadline.remaining)
        os.ftruncate(lock, 0)
        yield
        with suppress(OSError):  # the disk is full: then the next one looks
            os.pwrite(lock, LEFT, 0)
    finally:
        os.close(lock)


def _mark(folder: RunFolder) -> str:
    return f"{folder.id}-gate"


def _gate(work: WorkOrder, home: Git, folder: RunFolder, keeper: Keeper, interrupt: Interrupt) -> Gate:
    made = work.gate_in(home)
    marked = RunFolder(folder.path.parent.parent, _mark(folder))
    marked.path = folder.path / "gate"
    # Python may take a module that it compiled a moment ago for this one: it compares times by the second.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    context = Context(
        root=Path(made.workspace),
        folder=marked,
        keeper=keeper,
        interrupt=interrupt,
        tell=lambda *_: None,
        env=env,
        redact=Redactor(secret_values(env)),
        max_log=work.settings.max_log,
        grace=work.settings.grace,
    )
    numbers = iter(range(1, 1 << 30))

    def check(command: str) -> FailedCheck | None:
        os.makedirs(made.workspace, exist_ok=True)
        prepare(Path(made.workspace))
        # One at a time, whatever loops do: each is run on exactly the candidate's files, as no other has left them.
        with enclosed(context, work.settings, work.workspace) as inside:
            seen = Checks(inside, [CheckCommand(command)], work.settings).run(next(numbers))
        if seen is None:
            raise Interrupted
        (one,) = seen
        return None if one.passed else FailedCheck(one.name, one.ending, tail(clean(one.tail), ERROR_LIMIT))

    def furnish() -> None:
        fill_worktree(made, context, work.settings, work.workspace, work.setup)

    return Gate(order=work, repository=home, check=check, furnish=furnish)
