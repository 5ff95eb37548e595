"""What happens to a run's work afterwards: `accept` and `discard` of its branch, `rewind`, and the leftovers that
`clean` removes.

Accepting runs the checks on exactly the tree that the merge produces. A discarded branch can be recovered for a while.
`clean` removes records, checkpoints, merged worktrees, demos and leftovers of killed gits; never work that exists
nowhere else, and nothing of a running run.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import listed as named_all
from ralph.core.text import nickname, plural, tail
from ralph.errors import UserError
from ralph.files import AT_WORK, DEMO, DEMO_EXAM, PROBE, remove_tree, state_folder
from ralph.git import merging, worktrees
from ralph.git.checkpoints import Rewound
from ralph.git.client import Git, find_git, git_error
from ralph.git.locks import update_refs
from ralph.git.look import remove_look_folder
from ralph.git.scm import operation_in_progress
from ralph.git.worktrees import Worktree
from ralph.process.deadline import Deadline
from ralph.process.keeper import Keeper
from ralph.process.signals import Interrupt
from ralph.run import control
from ralph.run import request as requests
from ralph.run.checks import Checks, open_check_sandbox
from ralph.run.context import Context
from ralph.run.exams import Exams
from ralph.run.request import RunRequest
from ralph.run.squash import is_accepted, run_pre_commit, squash_message, with_trailer
from ralph.settings import settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import is_occupied, prepare, workspace_lock
from ralph.store.mailbox import Mailbox
from ralph.store.orders import remove_orders
from ralph.store.orphans import kill_orphans
from ralph.store.register import STATE, Listed, run_at, runs
from ralph.store.stored_run import load_run

DISCARDED = "discarded"
_HOOK_OUTPUT = 2000  # characters that are shown
_IN_THE_WAY = "commit or stash what is in the way, then accept it again; nothing was changed"
_CUT_OFF = "see by `git status` how far it came; remove the lock that git names, if none is at work, then accept again"


class NotTaken(UserError):
    """The work cannot be accepted as it is. Nothing was changed."""


class TakenOver(Struct, frozen=True):
    """The result of an accept. `commit` is the new tip of the user's branch; `files` changed; `checks` passed before.
    Unless it is new, the user's branch had everything already.
    """

    branch: str
    commit: str
    files: int
    checks: int
    is_new: bool


def has_no_branch(run: Listed) -> str:
    """Return why a run has nothing to accept or discard; "" if it has."""
    if run.is_alive:
        return "is running"
    if run.facts.work:
        return f"is for a task of work {run.facts.work}: its gate merges it"
    if not run.facts.branch:
        return "worked in the tree itself: its work is there"
    home = _repository_of(run)
    exists = home and home.resolve(f"refs/heads/{run.facts.branch}")
    return "" if exists else f"has no branch any more: {run.facts.branch} is gone"


def take_over(
    run: Listed,
    keeper: Keeper,
    interrupt: Interrupt,
    tell: events.TellAll,
    env: Mapping[str, str] = os.environ,
    *,
    squash: bool = True,
    message: str = "",
) -> TakenOver:
    """Merge the work of a run as one commit, or as it is; then remove its worktree and branch. If anything fails,
    nothing changes.
    """
    deadline = Deadline(interrupt, grace=5.0)  # git has a moment to put the worktree back, unless it hangs
    home, tree = _places(run, env, deadline)
    merging.refuse_old_git(home.root)
    refuse_without_branch(home)
    for orphan in kill_orphans(env):  # they could change the files while they are checked
        tell(events.Notice(f"run {orphan.run} was killed earlier; ended what it left running: {orphan}"))
    with _alone(run, tree), _settings_watched(run, lambda said: tell(events.Notice(said)), env):
        base, candidate = home.resolve("HEAD"), _candidate(run, home, tree)
        if candidate == base:
            _remove_merged(tree)
            return TakenOver(tree.branch, base, 0, 0, False)
        request = requests.read(run.id, env)
        try:
            worktrees.check_out(tree, candidate)
            with _trial(run, request, tree, keeper=keeper, interrupt=interrupt, tell=tell, env=env) as context:
                checks = _check_again(run, request, tree, context)
                commit = candidate
                if squash:
                    commit = _squash(run, request, tree, context, candidate=candidate, base=base, text=message)
                    if not merging.has_same_files(home, commit, candidate):  # the hook changed files
                        worktrees.check_out(tree, commit)
                        checks = _check_again(run, request, tree, context)
                if request.settings.exams:
                    _examine_again(run, request, context, home, commit)
            answer = home.try_run("merge", "--ff-only", "--no-overwrite-ignore", "--quiet", commit)
            if answer.code:
                way_out = _CUT_OFF if answer.was_killed or answer.found_lock else _IN_THE_WAY
                raise NotTaken(git_error(("merge",), answer, "cannot merge into your tree").message, way_out)
        except BaseException:  # the worktree as it was before the merge was tried in it
            with suppress(UserError):  # the earlier problem is reported
                worktrees.check_out_branch(tree)
            raise
        worktrees.check_out(tree, commit)
        _remove_merged(tree)
        return TakenOver(tree.branch, commit, len(merging.changed_files(home, base, commit)), len(checks), True)


def _squash(
    run: Listed, request: RunRequest, tree: Worktree, context: Context, *, candidate: str, base: str, text: str
) -> str:
    """Return one commit on `base` with the candidate's files, as the user's pre-commit hook leaves them."""
    home = tree.home
    worktrees.pin_head(tree, base)  # what the hook looks at is staged on the user's branch
    answer = run_pre_commit(tree, context)
    if answer.code:
        said = tail(answer.output.strip(), _HOOK_OUTPUT, "…") or f"exit code {answer.code}"
        Mailbox(run.place).tell(f"The pre-commit hook refused this work when it was about to be committed:\n{said}")
        raise NotTaken(
            f"the pre-commit hook refused the commit:\n{said}",
            f"let the agent fix it: ralph resume {nickname(run.id)}; nothing was changed",
        )
    files = tree.git.run("write-tree").decode().strip()
    passed = [Check(name=context.redact.text(check.command), passed=True) for check in request.settings.checks]
    own = squash_message(home, run.id, request.title, base=base, tree=files, checks=passed)
    return home.commit_tree(files, (base,), with_trailer(text, run.id) if text else own, home.identity())


def _remove_merged(tree: Worktree) -> None:
    """Remove the worktree and the branch of a run whose work is on the user's branch."""
    tip = tree.home.resolve(tree.ref)
    worktrees.remove_folder(tree)
    if tip:
        update_refs(tree.home, f"delete {tree.ref} {tip}")


def refuse_without_branch(home: Git) -> None:
    """Refuse a detached HEAD: a commit there would be lost with the next switch."""
    if what := operation_in_progress(home):
        raise NotTaken(f"a {what} is in progress in {home.root}", "finish or abort it first; nothing was changed")
    if home.try_run("symbolic-ref", "--quiet", "HEAD").code:
        raise NotTaken(f"no branch is checked out in {home.root}", "git switch BRANCH, then accept it again")


def throw_away(run: Listed, env: Mapping[str, str] = os.environ) -> str:
    """Remove the worktree and the branch of a run; return the ref that keeps them."""
    home, tree = _places(run, env)
    with _alone(run, tree):
        if os.path.isdir(tree.path) and worktrees.first_unsaved(tree):
            worktrees.commit_all(tree, "what was not committed when it was discarded")
            if left := worktrees.first_unsaved(tree):
                raise UserError(f"git cannot save {left}, so nothing was removed", f"move it out of {tree.path} first")
        tip = home.resolve(tree.ref)
        kept_as = f"refs/ralph/{run.id}/{DISCARDED}"
        update_refs(home, f"update {kept_as} {tip}")
        worktrees.remove_folder(tree)
        update_refs(home, f"delete {tree.ref} {tip}")
        remove_orders(run.id, env)
        return kept_as


@contextmanager
def _alone(run: Listed, tree: Worktree) -> Iterator[None]:
    """Lock the worktree while the context is entered."""
    if not os.path.isdir(tree.workspace):
        yield
        return
    with workspace_lock(prepare(Path(tree.workspace)), run.id):
        yield


@contextmanager
def _settings_watched(run: Listed, say: Callable[[str], None], env: Mapping[str, str]) -> Iterator[None]:
    """Report settings that come with the accepted work: they are the agent's, so the next run asks about them."""
    workspace = Path(run.place).parents[2]
    watched = SettingsWatch(workspace, run.id, settings_files(workspace, env), env)
    watched.begin()
    yield
    if changed := watched.end():
        what = f"the work of the run has changed the settings: {', '.join(changed)}"
        say(f"{what}; the next run asks about it, and so does `ralph trust`")


def rewind(run: Listed, number: int, say: Callable[[str], None], env: Mapping[str, str]) -> "Rewound":
    """Restore the files as they were after iteration `number`; keep the current ones under a ref."""
    with _settings_watched(run, say, env):
        return control.rewind(run, number)


def _home_of(run: Listed) -> str:
    place = Path(run.place).parents[2]
    return str(place) if place.is_dir() else ""


def _places(run: Listed, env: Mapping[str, str], deadline: Deadline | None = None) -> tuple[Git, Worktree]:
    """Return the user's own repository and the worktree of the run, which may be gone."""
    started, home = load_run(run.folder.journal).started, _repository_of(run, deadline)
    if started is None or home is None:
        raise UserError(f"the repository of run {run.id} is gone", "nothing can be taken over")
    inside = os.path.join(started.worktree, home.prefix).rstrip("/")
    tree = Worktree(started.worktree, started.branch, inside, home)
    if os.path.isdir(tree.path):
        worktrees.refuse_another(tree)
    return home, tree


def _candidate(run: Listed, home: Git, tree: Worktree) -> str:
    """Return the commit that the user's branch would move to: the work itself, or its merge with newer commits."""
    if os.path.isdir(tree.path) and (unsaved := worktrees.first_unsaved(tree)):
        way_out = f"continue with `ralph resume {nickname(run.id)}`, or commit it in {tree.path}"
        if os.path.isabs(unsaved):  # a submodule, which is not to be looked into
            way_out = "empty that folder, if all that is in it is elsewhere, too"
        raise NotTaken(f"the worktree has work that is not committed: {unsaved}", way_out)
    base, tip = home.resolve("HEAD"), home.resolve(tree.ref)
    if home.contains(base, tip) or is_accepted(home, run.id, tip):
        return base
    if home.contains(tip, base):
        return tip
    merge = merging.merge_commits(home, base, tip)
    if merge.conflict:
        raise NotTaken(
            f"{tree.branch} no longer merges: conflicts in {named_all(merge.conflict.files, 5)}",
            f"solve them yourself: git merge {tree.branch}; nothing was changed",
        )
    return home.commit_tree(merge.tree, (base, tip), f"Merge branch '{tree.branch}'", home.identity())


@contextmanager
def _trial(
    run: Listed,
    request: RunRequest,
    tree: Worktree,
    *,
    keeper: Keeper,
    interrupt: Interrupt,
    tell: events.TellAll,
    env: Mapping[str, str],
) -> Iterator[Context]:
    """Yield the context for checks and hooks in the run's worktree, in its sandbox if it had one."""
    settings = request.settings
    context = Context(
        root=Path(tree.workspace),
        folder=run.folder,
        keeper=keeper,
        interrupt=interrupt,
        tell=tell,
        env=dict(env),
        redact=Redactor(secret_values(env)),
        max_log=settings.max_log,
        grace=0.0,  # after Ctrl-C nothing is merged
        deadline=tree.home.deadline,
    )
    with open_check_sandbox(context, settings, request.workspace) as inside:
        yield inside


def _examine_again(run: Listed, request: RunRequest, context: Context, home: Git, commit: str) -> None:
    """Run the exams of the run on the merged commit; raise `NotTaken` if one fails."""
    results = Exams(context, request.settings, home, run.id).run(commit, "accept", fail_fast=True)
    if context.interrupt.level:
        raise KeyboardInterrupt
    if failed := [exam.name for exam, _ in results if not exam.passed]:
        hint = f"`ralph show {nickname(run.id)}` shows what it printed; nothing was changed"
        raise NotTaken(f"the exam fails on the merged tree: {failed[0]}", hint)


def _check_again(run: Listed, request: RunRequest, tree: Worktree, context: Context) -> tuple[Check, ...]:
    """Run the checks of the run once more, in its worktree."""
    settings = request.settings
    done = Checks(context, settings.checks, replace(settings, fail_fast=False)).run(0)
    if done is None or context.interrupt.level:
        raise KeyboardInterrupt
    if red := [check for check in done if not check.passed]:
        raise NotTaken(
            f"{len(red)} of {plural(len(done), 'check')} failed: {named_all([check.name for check in red], 3)}",
            f"continue with `ralph resume {nickname(run.id)}`, or look around in {tree.path}; nothing was changed",
        )
    return done


_WORK_TAKES = 3600.0  # seconds; no git runs longer, so anything younger may be in use


class Remains(Struct, frozen=True):
    """The leftovers of a run, or of a folder outside any workspace (without `run`). `kept`: why they have to stay."""

    place: str
    run: Listed | None = None
    size: int = 0
    kept: str = ""


def remains(older: float, below: str = "") -> list[Remains]:
    """Return the leftovers older than this many seconds; with `below`, only of the workspaces in that folder."""
    known, before = runs(), time.time() - older
    at_work = {run.id for run in known if run.is_alive}
    ended = [run for run in known if 0 < max(run.facts.changed, run.facts.began) < before and not run.is_child]
    old = [run for run in ended if not {run.id, run.facts.work} & at_work]
    here = [run for run in old if f"{run.facts.workspace}/".startswith(f"{below}/" if below else "")]
    apart = [] if below else _apart(before)
    inside = tuple(f"{folder}/" for folder in apart)
    found = [
        Remains(run.place, run, _size(run.place), _explain_unmerged(run))
        for run in here
        if not run.place.startswith(inside)
    ]
    return [*found, *(Remains(folder, size=_size(folder)) for folder in apart)]


def take_away(found: Iterable[Remains]) -> list[Remains]:
    """Remove leftovers; return those that had to stay, for example because the run was continued."""
    stayed = []
    for one in found:
        try:
            if one.run:
                _remove_run(one.run)
            else:
                remove_tree(one.place)
        except (UserError, OSError) as error:
            stayed.append(Remains(one.place, one.run, one.size, str(error)))
    folder = state_folder(os.environ, "runs")  # of links to runs, some of whose workspaces are gone
    with suppress(OSError):
        for name in os.listdir(folder):
            if os.path.islink(f"{folder}/{name}") and not os.path.exists(f"{folder}/{name}"):
                _forget(name)
    return stayed


def _apart(before: float) -> list[str]:
    """Return demos, failed probes of agents, and temporary folders that killed gits have left."""
    folder, found = tempfile.gettempdir(), []
    idle = min(before, time.time() - _WORK_TAKES)
    for name in sorted(os.listdir(folder)):
        if name.startswith((DEMO, PROBE, AT_WORK)):
            path, until = f"{folder}/{name}", before if name.startswith(DEMO) else idle
            with suppress(FileNotFoundError):  # it may be removed at this moment
                is_own = os.lstat(path).st_uid == os.geteuid() and os.path.isdir(path) and not os.path.islink(path)
                inside = [f"{path}/.ralph"] if os.path.lexists(f"{path}/.ralph") else []
                last = max(os.lstat(one).st_mtime for one in (path, *inside))
                if is_own and last < until and not is_occupied(Path(path.removesuffix(DEMO_EXAM))):
                    found.append(path)
    return found


def _size(place: str) -> int:
    """Return the size in bytes, as far as it can be read: an agent may nest folders deeper than the longest path."""
    total, folders = 0, [place]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _repository_of(run: Listed, deadline: Deadline | None = None) -> Git | None:
    root = _home_of(run)
    return find_git(Path(root), deadline) if root else None


def _trees(run: Listed, home: Git) -> list[Worktree]:
    """Return the worktrees with a branch of a run or of a backlog's tasks. Their names are computed: an agent may have
    forged the records.
    """
    names = (f"refs/heads/ralph/{run.id}", f"refs/heads/ralph/{nickname(run.id)}/")
    out = home.run("for-each-ref", "--format=%(refname:lstrip=2)", *names).decode("utf-8", "replace")
    paths, path = {}, ""  # where each branch is checked out
    for line in home.run("worktree", "list", "--porcelain").decode("utf-8", "surrogateescape").splitlines():
        if line.startswith("worktree "):
            path = line.partition(" ")[2]
        elif line.startswith("branch refs/heads/"):
            paths[line.removeprefix("branch refs/heads/")] = path
    return [Worktree(paths.get(name, ""), name, paths.get(name, ""), home) for name in out.splitlines()]


def _explain_unmerged(run: Listed) -> str:
    """Return why removing a run would lose its work; "" if it wouldn't."""
    try:
        if home := _repository_of(run):
            for tree in _trees(run, home):
                worktrees.refuse_if_anything_is_lost(tree)
    except UserError as error:
        return error.message
    return ""


def _remove_run(run: Listed) -> None:
    now = run_at(run.place)
    if now and now.is_alive:
        raise UserError(f"run {run.id} was continued")
    if home := _repository_of(run):
        for tree in _trees(run, home):
            worktrees.remove(tree)
        refs = home.run("for-each-ref", "--format=delete %(refname)", f"refs/ralph/{run.id}/")
        update_refs(home, *refs.decode("utf-8", "surrogateescape").splitlines())
    remove_tree(run.place, last=STATE)
    _forget(run.id)


def _forget(run_id: str) -> None:
    """Remove what a run has left outside the workspace."""
    with suppress(OSError):
        os.unlink(f"{state_folder(os.environ, 'runs')}/{run_id}")
    remove_orders(run_id)
    remove_look_folder(run_id)
