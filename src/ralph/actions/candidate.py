"""The commit that accepting a run would merge."""

import os

from ralph.core.text import listed, nickname
from ralph.errors import UserError
from ralph.git import merging, worktrees
from ralph.git.worktrees import Worktree
from ralph.store.register import Listed

TRAILER = "Ralph-Run"  # in the message of an accepted commit


class NotAccepted(UserError):
    """The work cannot be accepted as it is. Nothing was changed."""


def candidate_commit(run: Listed, tree: Worktree) -> str:
    """Return the commit that the user's branch would move to: the tip of the run's branch, or its merge with newer
    commits of the user."""
    if os.path.isdir(tree.path):
        worktrees.refuse_unreadable(tree)
        restore_half_accepted(tree)
    if os.path.isdir(tree.path) and (unsaved := worktrees.first_unsaved(tree)):
        way_out = f"continue with `ralph resume {nickname(run.id)}`, or commit it in {tree.path}"
        if os.path.isabs(unsaved):  # a submodule: ralph doesn't look into it
            way_out = "empty that folder, if you have its content elsewhere"
        raise NotAccepted(f"the worktree has work that is not committed: {unsaved}", way_out)
    home = tree.repository
    base, tip = home.resolve("HEAD"), home.resolve(tree.ref)
    if home.contains(base, tip):
        return base
    accepted = home.run("log", f"--format=%(trailers:key={TRAILER},valueonly)", f"{tip}..HEAD")
    if run.id in accepted.decode("utf-8", "replace").split():  # accepted earlier, as one commit
        return base
    if home.contains(tip, base):
        return tip
    merge = merging.merge_commits(home, base, tip)
    if merge.conflict:
        raise NotAccepted(
            f"{tree.branch} no longer merges: conflicts in {listed(merge.conflict.files, 5)}",
            f"resolve them yourself: git merge {tree.branch}; nothing was changed",
        )
    return home.commit_tree(merge.tree, (base, tip), f"Merge branch '{tree.branch}'", home.identity())


def restore_half_accepted(tree: Worktree) -> None:
    """Check out the branch of a worktree in which an earlier version of ralph was killed while it made the commit of an
    accept: no branch is checked out, and everything is staged as the merge with the branch."""
    git, tip = tree.git, tree.repository.resolve(tree.ref)
    if not git.try_run("symbolic-ref", "--quiet", "HEAD").code or worktrees.has_unstaged(tree):
        return
    merge = merging.merge_commits(tree.repository, git.resolve("HEAD"), tip)
    if not merge.conflict and git.run("write-tree").decode().strip() == merge.tree:
        worktrees.check_out_branch(tree)
