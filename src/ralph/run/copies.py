"""Run checks on a state of a run in a throwaway copy, which is prepared like a worktree of the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.git.client import Git
from ralph.git.worktree_setup import check_out_copy
from ralph.git.worktrees import Worktree
from ralph.run.checks import open_check_sandbox
from ralph.run.context import Context
from ralph.run.prepare_worktree import fill_worktree
from ralph.settings import Settings
from ralph.store.folder import RunFolder
from ralph.store.orphans import COPY_SUFFIX


class PreparedCopy(Struct, frozen=True):
    """A throwaway worktree, and the context in which programs are started there."""

    worktree: Worktree
    context: Context


@contextmanager
def open_copy(
    context: Context,
    home: Git,
    commit: str,
    settings: Settings,
    workspace: str,
    *,
    sealed: Settings | None = None,
    name: str = "",
) -> Iterator[PreparedCopy]:
    """Yield a copy of this commit: `.worktreeinclude` and `--setup` are applied, in a sandbox if the run has one.

    `home` is the user's repository, `workspace` the user's folder in it. Nothing is left afterwards. With `sealed`, the
    settings for what is run there, that sandbox lets programs write to the copy and to /tmp only.
    `name` tells several copies of one run apart.
    """
    # The mark and the sandbox of the run itself stay apart.
    folder = RunFolder(context.folder.path.parent.parent, f"{context.folder.id}{name}{COPY_SUFFIX}")
    folder.path = context.folder.path
    # Python compares the times of modules by the second: it might run the one that it compiled a moment ago.
    env = {**context.env, "PYTHONDONTWRITEBYTECODE": "1"}
    with check_out_copy(home, context.folder.id, commit, context.keeper, name) as worktree:
        outside = replace(context, root=Path(worktree.workspace), folder=folder, env=env, sandbox=None, task=None)
        fill_worktree(worktree, outside, settings, workspace, settings.work.setup)
        with open_check_sandbox(outside, sealed or settings, workspace, sealed=sealed is not None) as inside:
            yield PreparedCopy(worktree, inside)
