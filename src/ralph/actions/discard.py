"""Discard the work of a run, which can be recovered until `ralph clean` removes the run, or restore the files of one of
its iterations."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ralph.actions.control import AT_WORK, reload
from ralph.actions.run_worktree import DISCARDED, lock_worktree, settings_watched, worktree_of_run
from ralph.errors import UserError
from ralph.git import worktrees
from ralph.git.checkpoints import Checkpoints, Rewound
from ralph.git.client import look_folder
from ralph.git.index import PrivateIndex
from ralph.git.locks import update_refs
from ralph.history.feed import repository_of
from ralph.store.folder import remove_orders, workspace_lock
from ralph.store.register import Listed, why_not_begun


def discard_run(run: Listed) -> str:
    """Remove the worktree and the branch of a run; return the ref that keeps them."""
    tree = worktree_of_run(run)
    home = tree.repository
    with lock_worktree(run, tree):
        if os.path.isdir(tree.path) and worktrees.first_unsaved(tree):
            worktrees.commit_all(tree, "what was not committed when it was discarded")
            if unsaved := worktrees.first_unsaved(tree):
                raise UserError(
                    f"git cannot save {unsaved}, so nothing was removed", f"move it out of {tree.path} first"
                )
        tip = home.resolve(tree.ref)
        kept_as = f"refs/ralph/{run.id}/{DISCARDED}"
        update_refs(home, f"update {kept_as} {tip}")
        worktrees.remove_folder(tree)
        update_refs(home, f"delete {tree.ref} {tip}")
        remove_orders(run.id)
        return kept_as


def rewind(run: Listed, number: int, say: Callable[[str], None], env: Mapping[str, str] = os.environ) -> Rewound:
    """Restore the files as they were after iteration `number`; save the current ones under a ref."""
    with settings_watched(run, say, env), workspace_lock(Path(run.place).parents[1], run.id):
        run = reload(run, lambda run: AT_WORK if run.is_alive else why_not_begun(run))
        git = repository_of(run)
        index = PrivateIndex(git, look_folder(run.id))
        index.begin()
        return Checkpoints(git, run.id).rewind(number, index)
