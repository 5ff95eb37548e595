"""Prepare where checks run: a sandbox without an agent, a run's worktree, throwaway copies of a commit."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.events import Notice, TellAll
from ralph.core.text import listed, tail
from ralph.errors import UserError
from ralph.files import EXAM, hold, names_in, read_file, remove_tree, temporary_folder
from ralph.git import worktree_setup
from ralph.git.client import Git
from ralph.git.dependencies import Dependencies, copy_generated, find_dependencies
from ralph.git.index import PrivateIndex, display_path
from ralph.git.setup_files import excludes_file, quiet_environment
from ralph.git.worktrees import Worktree, check_out, worktrees_folder
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess
from ralph.process.program import Command
from ralph.settings import Settings
from ralph.store.folder import RunFolder
from ralph.store.register import COPY_SUFFIX
from ralph.verdict.canary import Canary, Mode, Project
from ralph.verdict.context import Context
from ralph.verdict.in_place import GUIDE, Method, Namespace, Obstacle, find_method, find_obstacle
from ralph.verdict.own_path import clone_dependencies, lead_to_copy
from ralph.verdict.sandboxing import open_run_sandbox

CACHE = ".ralph/pycache"  # of compiled modules, in a copy
EXCLUDES = "git-excludes"  # file in the run's folder: patterns of what the setup made
MAX_OUTPUT = 4000  # bytes kept of what the setup command prints


@contextmanager
def open_check_sandbox(context: Context, sealed: bool = False) -> Iterator[Context]:
    """Yield the context for checks without an agent, with a separate sandbox if the settings ask for one.

    If it is `sealed`, programs can write only to the workspace and /tmp.
    """
    if not context.settings.sandbox.enabled:
        yield context
        return
    with open_run_sandbox(context, (), sealed) as sandbox:
        yield replace(context, sandbox=sandbox)


def prepare_worktree(worktree: Worktree, context: Context) -> None:
    """Prepare a worktree, unless that was done already."""
    if not worktree_setup.is_prepared(worktree):
        fill_worktree(worktree, context)
        worktree_setup.mark_prepared(worktree)


def quiet_context(context: Context, worktree: Worktree) -> Context:
    """Return the context for programs that work in this worktree: their `git status` doesn't list the setup's files."""
    env = dict(context.env)
    if excludes := excludes_file(worktree.path):
        # In the run's folder, because a sandbox hides ralph's worktrees from each other.
        context.folder.write(EXCLUDES, read_file(excludes))
        env |= quiet_environment(str(context.folder.path / EXCLUDES), env)
    return replace(context, root=Path(worktree.workspace), env=env)


def fill_worktree(worktree: Worktree, context: Context) -> None:
    """Check out submodules, copy the files that `.worktreeinclude` names, run `--setup`, and record what both made."""
    setup = context.settings.setup
    if missing := worktree_setup.init_submodules(worktree.repository, worktree.git):
        hint = f"git submodule update --init in {worktree.repository.root} makes them available"
        context.tell(Notice(f"submodules that are not in the worktree: {listed(missing, 5)}; {hint}"))
    included = worktree_setup.copy_included_files(worktree.repository, worktree.git)
    if setup:
        run_setup(setup, worktree, context)
    if setup or included:
        files = worktree_setup.record_setup(worktree, included)
        if changed := [display_path(file.path) for file in files if file.before]:
            context.tell(Notice(f"--setup changed tracked files, which stay out of the commits: {listed(changed, 5)}"))


def run_setup(setup: str, worktree: Worktree, context: Context) -> None:
    """Run the command of `--setup` in a worktree, in a sandbox if the run has one."""
    command = Command(argv=("sh", "-c", setup), cwd=worktree.workspace, env={**context.env, MARK: context.folder.id})
    with open_check_sandbox(replace(context, root=Path(worktree.workspace))) as inside:
        process = KeptProcess(inside.sandboxed(command), keeper=context.keeper, interrupt=context.interrupt)
        output = process.capture(head=0, tail=MAX_OUTPUT)
    if output.exit.code or output.exit.ended_by:
        reason = tail(output.tail.strip(), 500, "…") or output.exit.ended_by or f"exit code {output.exit.code}"
        raise UserError(f"--setup failed in {worktree.workspace}: {setup}: {reason}", "fix it, then start again")


@contextmanager
def enter_worktree(
    context: Context, worktree: Worktree, *, is_strict: bool = True, tell: TellAll = lambda *event: None
) -> Iterator[Context]:
    """Yield the context whose commands see a prepared worktree as the project: in place of the user's tree, or at its
    own path. `tell` learns why it isn't in place. If no check tests the worktree, that is an error if it `is_strict`.
    """
    settings, dependencies = context.settings, find_dependencies(worktree.repository)
    main, copy = os.path.realpath(worktree.repository.root), os.path.realpath(worktree.path)
    project = Project(main, copy, tuple(check.command for check in settings.checks), context.env, settings.setup)
    copy_generated(worktree.repository, worktree.git, dependencies)
    method = _find_method(worktree, dependencies, project, settings)

    def at_own_path(env: Mapping[str, str]) -> dict[str, str]:
        clone_dependencies(worktree, dependencies)
        return lead_to_copy(env, main, copy)

    def open_broken(mode: Mode) -> AbstractContextManager[PreparedCopy]:
        inside = replace(settings, copies=mode, canary=False)
        bare = replace(context, settings=inside, tell=lambda *event: None)
        return open_copy(bare, worktree.repository, current_commit(worktree), name="-canary")

    with ExitStack() as stack:
        namespace, switch = None, None
        if isinstance(method, Obstacle):
            if settings.copies != "plain":
                tell(Notice(f"the agent sees its copy at the copy's own path: {method.reason}; see {GUIDE}", "info"))
            context = replace(context, leading=dict(at_own_path(context.env).items() - context.env.items()))
        else:
            kept = (str(context.folder.path), *((str(context.task),) if context.task else ()), *context.writable)
            namespace = Namespace(worktree, method, dependencies, kept)
            namespace.open()
            stack.callback(namespace.close)
            switch = partial(namespace.leave, at_own_path) if settings.copies == "auto" else None
        canary = Canary(
            project,
            "in-place" if namespace else "plain",
            open_broken,
            switch=switch,
            is_strict=is_strict,
            redact=context.redact.text,
            tell=context.tell,
        )
        yield replace(context, namespace=namespace, canary=canary if settings.canary and settings.checks else None)


def _find_method(
    worktree: Worktree, dependencies: Dependencies, project: Project, settings: Settings
) -> Method | Obstacle:
    """Return how this worktree is shown in place, or why it isn't. Raise a UserError if the settings want it."""
    method = find_copy_method(settings)
    if not isinstance(method, Obstacle):
        method = find_obstacle(worktree, dependencies, _named_paths(settings)) or method
    if isinstance(method, Obstacle) and settings.copies == "in-place":
        raise refuse_in_place(method)
    answers = (project.kept_answer("in-place"), project.kept_answer("plain"))
    if settings.copies == "auto" and settings.canary and answers == ("untested", "tested"):
        return Obstacle("no check tests a copy in place of your tree")
    return method


def current_commit(worktree: Worktree) -> str:
    """Return a commit of the files of a worktree as they are now."""
    git = worktree.git
    with temporary_folder() as folder:
        tree, base = PrivateIndex(git, folder).tree().files, git.resolve("HEAD")
    if base and git.tree_at(base) == tree:
        return base
    return git.commit_tree(tree, (base,) if base else (), "for the canary", git.identity())  # an agent may break HEAD


def find_copy_method(settings: Settings) -> Method | Obstacle:
    """Return how copies are shown in place on this machine, or why they are at their own path. Raise a UserError if the
    settings want the first, and only the second can be had."""
    if settings.copies == "plain":
        return Obstacle("the settings say so")
    method = find_method(worktrees_folder())
    if isinstance(method, Obstacle) and settings.copies == "in-place":
        raise refuse_in_place(method)
    return method


def refuse_in_place(obstacle: Obstacle) -> UserError:
    hint = f"{obstacle.hint}; or " if obstacle.hint else ""
    return UserError(f'"copies": "in-place" is not possible: {obstacle.reason}', f'{hint}set "copies": "auto"')


def _named_paths(settings: Settings) -> Iterator[str]:
    """Yield the texts of the settings in which a command may name a path of the user's tree."""
    yield from (settings.agent.command, *settings.agent.args, *settings.agent.flags, settings.tune.command)
    yield from (check.command for check in settings.checks)
    yield from (word for agent in settings.agents.values() for word in agent.argv)
    yield from (*settings.sandbox.read, *settings.sandbox.write)


class PreparedCopy(Struct, frozen=True):
    """A throwaway worktree, and the context in which programs are started there."""

    worktree: Worktree
    context: Context

    @property
    def git(self) -> Git:
        return self.worktree.git

    def passes(self, command: str, timeout: float) -> bool | None:
        """Return whether a check passes here, within a time limit in seconds; None if it was interrupted."""
        context = self.context
        check = Command(argv=("/bin/sh", "-c", command), cwd=str(context.root), env=context.child_env(0))
        check = context.sandboxed(check) if context.sandboxes_checks else check
        ended = context.process(check, timeout=timeout).capture(head=0, tail=0).exit
        return None if ended.ended_by in ("interrupt", "max-time") else ended.code == 0 and not ended.ended_by

    def check_out(self, commit: str) -> None:
        """Check out another commit. Python must not run the modules that it compiled before: it compares their times by
        the second."""
        check_out(self.worktree, commit)
        if os.path.lexists(cache := f"{self.worktree.path}/{CACHE}"):
            remove_tree(cache)


@contextmanager
def open_copy(
    context: Context, home: Git, commit: str, *, sealed: Settings | None = None, name: str = ""
) -> Iterator[PreparedCopy]:
    """Yield a copy of this commit, prepared like a worktree, with a sandbox if the run has one. Afterwards remove it.

    `home` is the user's repository. With `sealed`, the settings for what runs there, programs can write only to the
    copy and to /tmp. `name` tells several copies of one run apart.
    """
    # The copy has its own mark for processes, and its own sandbox.
    folder = RunFolder(context.folder.path.parent.parent, f"{context.folder.id}{name}{COPY_SUFFIX}")
    folder.path = context.folder.path
    settings = replace(context.settings, keep_children=False)
    with worktree_setup.check_out_copy(home, context.folder.id, commit, context.keeper, name) as worktree:
        root, env = Path(worktree.workspace), {**context.env, "PYTHONPYCACHEPREFIX": f"{worktree.path}/{CACHE}"}
        copy = replace(context, root=root, folder=folder, env=env, settings=settings, sandbox=None, task=None)
        copy = replace(copy, leading={}, namespace=None, canary=None)  # those of the run's worktree
        fill_worktree(worktree, copy)
        copy = replace(copy, settings=replace(sealed, keep_children=False)) if sealed else copy
        with (
            enter_worktree(copy, worktree) as placed,
            open_check_sandbox(placed, sealed=sealed is not None) as inside,
        ):
            yield PreparedCopy(worktree, inside)


@contextmanager
def temporary_exam_folder(keeper: Keeper) -> Iterator[str]:
    """Yield a temporary folder for an exam, outside of its copy: a program may behave differently in a repository. It
    is removed afterwards, even if ralph is killed."""
    while (handle := hold(folder := mkdtemp(prefix=EXAM))) is None:
        pass  # another ralph has found it before it was locked, and removes it
    keeper.set_cleanup(("/bin/rm", "-rf", folder), key=folder)
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(handle)
        keeper.set_cleanup((), key=folder)


def remove_abandoned() -> list[str]:
    """Remove the copies and the temporary folders of exams that killed processes have left; return their paths."""
    removed = worktree_setup.remove_abandoned_copies()
    for name in names_in(temporary := gettempdir()):
        path = os.path.join(temporary, name)
        if name.startswith(EXAM) and (handle := hold(path)) is not None:
            with suppress(OSError):  # another process may be removing it
                if os.fstat(handle).st_uid == os.geteuid():
                    remove_tree(path)
                    removed.append(path)
            os.close(handle)
    return removed
