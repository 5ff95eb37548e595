"""The states of a workspace during a run: a fingerprint and a checkpoint after each iteration, and the diff."""

import os
from collections.abc import Sequence
from contextlib import suppress

from ralph.core.events import Notice
from ralph.core.model import Fingerprint, Iteration
from ralph.core.prompts import DIFF_LIMIT
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints, changed_files, changed_paths, diff
from ralph.git.client import Git, find_git, look_folder, read_line
from ralph.git.index import PrivateIndex, changed_at, display_path, walk_fingerprint
from ralph.git.remote import GitConfigWatch
from ralph.git.worktrees import Worktree
from ralph.store.journal import read_entries
from ralph.verdict.context import Context


class Trees:
    """The states of a workspace without a usable git repository: they have fingerprints at most, and cannot be
    restored.

    `walks`: make fingerprints from the sizes and times of the files, for agents that don't report how much they did.
    """

    can_undo = False
    git: Git | None = None
    config_watch: GitConfigWatch | None = None
    new_nested: Sequence[bytes] = ()  # nested repositories that the run made
    checkpoint = ""  # the commit of the latest checkpoint; empty if it could not be saved

    def __init__(self, context: Context, worktree: Worktree | None = None, walks: bool = False) -> None:
        self._context, self.worktree, self._walks = context, worktree, walks

    @property
    def repository(self) -> Git | None:
        """The user's repository."""
        return self.worktree.repository if self.worktree else self.git

    def begin(self, base: Fingerprint | None = None, after: int = 0) -> Fingerprint | None:
        """Save the state before the first iteration. If the run is resumed after `after` iterations, `base` is that
        state."""
        return self.tree(after)

    def tree(self, number: int) -> Fingerprint | None:
        """Return the fingerprint after iteration `number`, and save it as a checkpoint."""
        return walk_fingerprint(self._context.root) if self._walks else None

    def changed_before(self) -> tuple[bytes, ...]:
        """Return the files that the user had changed and not committed when the run began."""
        return ()

    def changed_since(self) -> tuple[bytes, ...] | None:
        """Return the files that were changed since the run began; None if that is unknown."""
        return None

    def has_uncommitted(self, all_files: bool) -> bool:
        """Return whether there may be changes to commit: any, if `all_files`, else those made since the run began."""
        return True

    def has_moved(self, iteration: Iteration) -> bool:
        """Return whether HEAD has moved since the end of an iteration, so that its work is committed."""
        return False

    def has_changed(self, iteration: Iteration) -> bool:
        """Return whether any file is known to have changed since the end of an iteration."""
        return False

    def is_untouched(self) -> bool:
        """Return whether files and commits are known to be as they were when the run began."""
        return False

    def restore(self, iteration: Iteration) -> tuple[Fingerprint, str]:
        """Restore the files as they were after an iteration. Return the fingerprint then, and the ref under which the
        current files are saved."""
        raise UserError("no checkpoint to return to")

    def undo_since(self, iteration: Iteration, what: str) -> None:
        """Restore the files of an iteration if they have changed since; `what` says who changed them."""
        if self.has_changed(iteration):
            _, kept_as = self.restore(iteration)
            self._context.tell(Notice(f"{what}: its changes were undone, and are saved as {kept_as}"))

    def undo(self) -> tuple[str, ...]:
        """Restore the files and HEAD as they were when the run began; return the paths that had changed.

        The current files are saved next to the checkpoints.
        """
        return ()

    def diff(self, limit: int = DIFF_LIMIT + 1) -> str:
        """Return what changed since the run began, including new files: about `limit` characters of it."""
        return ""


class GitTrees(Trees):
    """The states of a workspace that git tracks."""

    can_undo = True
    git: Git
    config_watch: GitConfigWatch

    def __init__(self, context: Context, git: Git, worktree: Worktree | None = None) -> None:
        super().__init__(context, worktree)
        self.git = git
        self.config_watch = GitConfigWatch(git)
        self._index = PrivateIndex(git, look_folder(context.folder.id, context.env))
        self.new_nested = self._index.new_nested
        self._saved = Checkpoints(git, context.folder.id)
        self._base = self._now = Fingerprint()
        self._head = self._branch = ""
        self._left_out_before: tuple[str, ...] = ()
        self._told: set[str] = set()

    def begin(self, base: Fingerprint | None = None, after: int = 0) -> Fingerprint:
        self.config_watch.begin()
        self._index.begin()
        self._now = self._index.tree()
        self._base = base or self._now
        self._left_out_before = self._index.left_out
        self._head = read_line(f"{self.git.git_dir}/HEAD")
        self._branch = _branch_in(self._head)
        if base is None:
            self.checkpoint = self._saved.save(0, self._now, unsaved=self._index.unsaved)
        else:
            self.checkpoint = self._saved.save_resumed(self._now, after)
        return self._base

    def tree(self, number: int) -> Fingerprint | None:
        with suppress(UserError):  # a broken repository: the next step reports it
            if changes := self.config_watch.changes():
                self._context.tell(Notice(f"git's settings, hooks or attributes were changed: {listed(changes, 5)}"))
        before, self._branch = self._branch, _branch_in(read_line(f"{self.git.git_dir}/HEAD"))
        if self._branch != before and not self.worktree:
            self._context.tell(Notice(f"your branch was switched from {before} to {self._branch}"))
        self.checkpoint = ""
        try:
            self._now = self._index.tree()
            self.checkpoint = self._saved.save(number, self._now, unsaved=self._index.unsaved)
        except UserError as error:
            self._context.tell(Notice(f"iteration {number} has no checkpoint: {error.advice}"))
            return None
        for folder in map(display_path, self.new_nested):
            why = f"its files are part of the work, its history {folder}/.git is not"
            self._tell_once(f"{folder} is a nested repository: {why}")
        if left_out := self._index.left_out:
            self._tell_once(f"not in checkpoints and diffs: {listed(left_out, 5)}")
        return self._now

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._context.tell(Notice(text))

    def look_again(self) -> None:
        """Update the fingerprint after ralph itself has changed the files."""
        self._now = self._index.tree()

    def changed_before(self) -> tuple[bytes, ...]:
        return tuple(changed_paths(self.git, self._base.head, self._base.files))

    def changed_since(self) -> tuple[bytes, ...]:
        now = self._index.tree()
        big = [os.fsencode(name) for name in self._index.left_out if name not in self._left_out_before]
        changed = (*changed_paths(self.git, self._base.files, now.files), *big)
        if any(os.path.basename(path) == b".gitignore" for path in changed):
            return self._without_ignored_before(changed)
        return changed

    def has_uncommitted(self, all_files: bool) -> bool:
        now = self._index.tree()
        uncommitted = {*changed_paths(self.git, now.head, now.files), *map(os.fsencode, self._index.left_out)}
        return bool(uncommitted if all_files else uncommitted & {*self.changed_since()})

    def _without_ignored_before(self, paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Leave out files that git ignored when the run began, even if no `.gitignore` names them now."""
        first, root = next(read_entries(self._context.folder.journal), None), os.fsencode(self.git.root)
        began = first.at if first else 0.0
        before = [path for path in paths if 0 < changed_at(os.path.join(root, path)) < began]
        if before:
            names = listed([display_path(path) for path in sorted(before)], 5)
            self._tell_once(f"git ignored these files until now, so they stay out of the commits of this run: {names}")
        return tuple(path for path in paths if path not in before)

    def has_moved(self, iteration: Iteration) -> bool:
        return bool(iteration.tree and self._now.head != iteration.tree.head)

    def has_changed(self, iteration: Iteration) -> bool:
        return bool(iteration.tree and self._index.tree().files != iteration.tree.files)

    def is_untouched(self) -> bool:
        if self._base != self._now:
            return False
        try:
            return self._index.tree() == self._base  # an interrupted turn may have changed something
        except UserError:
            return False

    def restore(self, iteration: Iteration) -> tuple[Fingerprint, str]:
        if iteration.tree:  # a later state may have been saved under its number
            self._saved.save(iteration.number, iteration.tree)
        kept_as = self._saved.rewind(iteration.number, self._index).kept_as
        self._now = self._index.tree()
        return self._now, kept_as

    def undo(self) -> tuple[str, ...]:
        now = self._index.tree()
        if now == self._base:
            return ()
        changed = changed_files(self.git, self._base.files, now.files)
        self._saved.rewind(0, self._index)
        if now.head == self._base.head:
            return tuple(file.path for file in changed)
        # Check the same branch out again, at the commit where it was.
        branch = self._head.removeprefix("ref:").strip() if self._head.startswith("ref:") else ""
        if branch:
            self.git.run("symbolic-ref", "HEAD", branch)
        if commit := self._base.head:
            self.git.run("update-ref", "--no-deref", branch or "HEAD", commit)
        else:
            self.git.run("update-ref", "--no-deref", "-d", branch)
        return (*(file.path for file in changed), "HEAD")

    def diff(self, limit: int = DIFF_LIMIT + 1) -> str:
        if self._base == self._now:
            return ""
        return self._context.redact.text(diff(self.git, self._base.files, self._now.files, limit))


def make_trees(context: Context, worktree: Worktree | None = None, green_is_enough: bool = False) -> Trees:
    """Return the `Trees` that save the states of the workspace.

    Without a usable git repository they are only fingerprints, and only if a rule needs them.
    """
    settings = context.settings
    try:
        if git := find_git(context.root, context.deadline):
            return GitTrees(context, git, worktree)
    except UserError as error:
        context.tell(Notice(f"no checkpoints, no diff: {error.advice}"))
    return Trees(context, worktree, walks=settings.min_tool_calls > 0 or settings.stuck > 0 or green_is_enough)


def _branch_in(head: str) -> str:
    """Return the branch that the content of a HEAD file names."""
    return head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else "no branch"
