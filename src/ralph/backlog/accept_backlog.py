"""`ralph accept` and `ralph discard` for a backlog run.

Accepting merges the target into the user's branch, after the checks have passed once more on exactly that tree. The
backlog file is not merged: the user's version on disk is kept, with the merged tasks ticked.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from ralph.actions.accept import refuse_without_branch
from ralph.actions.candidate import NotAccepted
from ralph.actions.run_worktree import DISCARDED
from ralph.backlog.backlog_order import ORDER, BacklogOrder, read
from ralph.backlog.backlog_source import files_at, replace_in_place
from ralph.backlog.gate import gate_lock, make_gate
from ralph.backlog.retries import CHECK_RUNS
from ralph.core.backlog import outcome
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.files import read_file
from ralph.git import merging, worktrees
from ralph.git.client import Git, git_error, require_git
from ralph.git.index import tree_with
from ralph.git.locks import update_refs
from ralph.history.backlog_history import backlog_history
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.store.register import Listed

ListFiles = dict[str, bytes]  # the content of the backlog's files, by their paths in the repository
IN_THE_WAY = "commit or stash what is in the way, then accept again; nothing was changed"


class AcceptedBacklog(Struct, frozen=True, kw_only=True):
    """The result of accepting: `merged` of `tasks` tasks. `commit` is the new commit of the user's branch.

    `checks` checks passed; with --allow-red, `red` others fail no worse than before.
    """

    target: str
    commit: str
    merged: int
    tasks: int
    files: int
    checks: int
    red: int
    is_done: bool


def why_not_accept(run: Listed) -> str:
    """Return why a backlog run can't be accepted or discarded; "" if it can."""
    if run.is_alive:
        return "is still running"
    order = read(run.folder, ORDER, BacklogOrder)
    if order.remote:
        return f"was merged into {order.shown_target}: git pull"
    repository = require_git(Path(order.workspace))
    tip = repository.resolve(order.target_ref)
    if not tip:
        return f"is already accepted or discarded: {order.target} is gone"
    return ""


def accept_backlog(run: Listed, keeper: Keeper, interrupt: Interrupt) -> AcceptedBacklog:
    """Merge the target of a backlog run into the user's branch, or raise `NotAccepted` and change nothing."""
    order, board = read(run.folder, ORDER, BacklogOrder), backlog_history(run).board
    deadline = Deadline(interrupt, grace=5.0)  # git gets a moment to finish after Ctrl-C
    repository = require_git(Path(order.workspace), deadline)
    merging.refuse_old_git(repository.root)
    refuse_without_branch(repository)
    base, tip = repository.resolve("HEAD"), repository.resolve(order.target_ref)
    merged = [key for key, job in board.jobs.items() if job.state == "merged"]
    if repository.contains(base, tip):
        raise UserError(f"{order.target} is already merged", f"nothing to do; to remove it: ralph discard {order.name}")
    with gate_lock(run.folder, deadline), ExitStack() as stack:
        files, edited = _list_files(order, repository, base, merged)
        commit = _make_commit(order, repository, base, tip, files)
        gate = make_gate(order, repository, run.folder, keeper, interrupt, stack=stack)
        failed = gate.failing_commands(commit, order.checks, tries=CHECK_RUNS)
        before = gate.failing_commands(base, order.checks, tries=CHECK_RUNS) if failed and order.allow_red else ()
        if red := gate.new_failure(failed, before):
            how = "fails on the merged tree" if red.check not in {check.check for check in before} else "gets worse"
            hint = f"fix it on {order.target} or on your branch, then accept again; nothing was changed"
            raise NotAccepted(f"{red.check} {how} ({red.ending})", hint)
        if order.settings.exams and (exam := gate.examine(commit)):
            hint = f"`ralph show {order.name}` shows what it printed; nothing was changed"
            raise NotAccepted(f"the exam fails on the merged tree: {exam}", hint)
        changed = merging.changed_files(repository, base, commit)
        with _lists_in_place(order, repository, files, edited):
            answer = repository.try_run("merge", "--ff-only", "--no-overwrite-ignore", "--quiet", commit)
            if answer.code:
                raise NotAccepted(git_error(("merge",), answer, "cannot merge into your tree").message, IN_THE_WAY)
    is_done = outcome(board)[1] == 0
    if is_done:
        update_refs(repository, f"delete {order.target_ref} {tip}")
    with suppress(UserError):
        worktrees.remove_folder(order.gate_worktree(repository))
    tasks = sum(job.state != "withdrawn" for job in board.jobs.values())
    return AcceptedBacklog(
        target=order.target,
        commit=commit,
        merged=len(merged),
        tasks=tasks,
        files=len(changed),
        checks=len(order.checks) - len(failed),
        red=len(failed),
        is_done=is_done,
    )


def _list_files(order: BacklogOrder, repository: Git, base: str, merged: list[str]) -> tuple[ListFiles, ListFiles]:
    """Return the backlog's files on the user's disk with the merged tasks ticked, and those with uncommitted changes as
    they are."""
    source = order.source
    if not source.paths:
        return {}, {}
    committed = files_at(base, source, repository)
    disk = source.disk_files(committed)
    now = {**committed, **disk}
    try:
        after = {**now, **source.ticked(now, merged)}
    except UserError as error:
        raise NotAccepted(error.message, "fix the backlog, then accept again; nothing was changed") from None
    return after, {name: data for name, data in disk.items() if committed.get(name) != data}


def _make_commit(order: BacklogOrder, repository: Git, base: str, tip: str, files: ListFiles) -> str:
    """Return the commit that the user's branch moves to: the target itself, or a merge with it."""
    theirs = merging.with_files_of(repository, tip, base, order.source.paths)
    merge = merging.merge_commits(repository, base, theirs)
    if merge.conflict:
        raise NotAccepted(
            f"{order.target} no longer merges: conflicts in {listed(merge.conflict.files, 5)}",
            f"resolve them yourself: git merge {order.target}; nothing was changed",
        )
    blobs: dict[bytes, tuple[bytes, str] | None] = {}
    for name, data in files.items():
        blob = repository.run("hash-object", "-w", "--stdin", stdin=data).decode().strip()
        blobs[os.fsencode(name)] = (b"100644", blob)
    tree = tree_with(repository, merge.tree, blobs) if blobs else merge.tree
    is_same = tree == repository.tree_at(tip)
    if is_same and repository.contains(tip, base):
        return tip
    return repository.commit_tree(tree, (base, tip), f"Merge branch '{order.target}'", repository.identity())


@contextmanager
def _lists_in_place(order: BacklogOrder, repository: Git, files: ListFiles, edited: ListFiles) -> Iterator[None]:
    """Write and stage the edited backlog files, so that git can fast-forward over them; undo that on failure."""
    if not edited:
        yield
        return
    now = order.source.disk_files(files)
    if any(now.get(name) != data for name, data in edited.items()):
        raise NotAccepted(f"{order.source.name} changed during the checks", "accept again; nothing was changed")
    before = {name: read_file(os.path.join(repository.root, name)) for name in edited}
    for name in edited:
        replace_in_place(os.path.join(repository.root, name), files[name])
    repository.run("--literal-pathspecs", "add", "--", *edited)
    try:
        yield
    except BaseException:
        for name, data in before.items():
            replace_in_place(os.path.join(repository.root, name), data)
        repository.run("--literal-pathspecs", "reset", "-q", "--", *edited)
        raise


def discard_backlog(run: Listed, interrupt: Interrupt) -> list[tuple[str, str]]:
    """Remove the target, worktrees and branches of a backlog run; return each branch with the ref that keeps it."""
    order = read(run.folder, ORDER, BacklogOrder)
    deadline = Deadline(interrupt, grace=5.0)
    repository = require_git(Path(order.workspace), deadline)
    prefix = f"refs/heads/{order.branch_of('')}"
    out = repository.run("for-each-ref", "--format=%(refname)", prefix, order.target_ref)
    saved: list[tuple[str, str]] = []
    with gate_lock(run.folder, deadline):
        for ref in dict.fromkeys(os.fsdecode(out).split()):
            branch = ref.removeprefix("refs/heads/")
            is_target = ref == order.target_ref
            if not is_target:
                tree = order.worktree_of(repository, branch.removeprefix(order.branch_of("")))
                if os.path.isdir(tree.path):
                    worktrees.refuse_another(tree)
                    if worktrees.first_unsaved(tree):
                        worktrees.commit_all(tree, "what was not committed when it was discarded")
                    worktrees.remove_folder(tree)
            name = DISCARDED if is_target else f"{DISCARDED}-{branch.rpartition('/')[2]}"
            kept_as, tip = f"refs/ralph/{run.id}/{name}", repository.resolve(ref)
            update_refs(repository, f"update {kept_as} {tip}")
            update_refs(repository, f"delete {ref} {tip}")
            saved.append((branch, kept_as))
        with suppress(UserError):
            worktrees.remove_folder(order.gate_worktree(repository))
    return saved


def ends_of_backlog(run: Listed) -> tuple[Git, str, str]:
    """Return the commits of a backlog's target branch: when the backlog started, and now."""
    order = read(run.folder, ORDER, BacklogOrder)
    repository = require_git(Path(order.workspace))
    now = repository.resolve(order.target_ref)
    if not now:
        raise UserError(f"target branch not found: {order.shown_target}", "was it deleted?")
    return repository, order.base, now
