"""Prepare a new worktree for work: its submodules, the files that `.worktreeinclude` names, then `--setup`."""

from pathlib import Path

from msgspec.structs import replace

from ralph.core.events import Notice
from ralph.core.text import listed, tail
from ralph.errors import UserError
from ralph.git.worktree_setup import copy_included_files, init_submodules, is_prepared, mark_prepared
from ralph.git.worktrees import Worktree
from ralph.process.descendants import MARK
from ralph.process.process import Process
from ralph.process.program import Command
from ralph.run.checks import open_check_sandbox
from ralph.run.context import Context
from ralph.settings.schema import Settings

MAX_OUTPUT = 4000  # bytes kept of what the setup command prints


def prepare_worktree(worktree: Worktree, context: Context, settings: Settings, workspace: str, setup: str) -> None:
    """Prepare a worktree, unless that was done already; `workspace` is the user's own."""
    if is_prepared(worktree):
        return
    fill_worktree(worktree, context, settings, workspace, setup)
    mark_prepared(worktree)


def fill_worktree(worktree: Worktree, context: Context, settings: Settings, workspace: str, setup: str) -> None:
    """Check out submodules, copy included files, and run the setup command, in a sandbox if the run has one."""
    if missing := init_submodules(worktree.home, worktree.git):
        hint = f"git submodule update --init in {worktree.home.root} makes them available"
        context.tell(Notice(f"submodules that are not in the worktree: {listed(missing, 5)}; {hint}"))
    copy_included_files(worktree.home, worktree.git)
    if not setup:
        return
    command = Command(argv=("sh", "-c", setup), cwd=worktree.workspace, env={**context.env, MARK: context.folder.id})
    with open_check_sandbox(replace(context, root=Path(worktree.workspace)), settings, workspace) as inside:
        process = Process(inside.sandboxed(command), keeper=context.keeper, interrupt=context.interrupt)
        output = process.capture(head=0, tail=MAX_OUTPUT)
    if output.exit.code or output.exit.ended_by:
        reason = tail(output.tail.strip(), 500, "…") or output.exit.ended_by or f"exit code {output.exit.code}"
        raise UserError(f"--setup failed in {worktree.workspace}: {setup}: {reason}", "fix it, then start again")
