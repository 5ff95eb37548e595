"""How did a place that git keeps change in this run? A fingerprint and checkpoint after each iteration, and the diff.

Imported only where there is a repository: elsewhere a run neither waits for what speaks with git, nor holds it."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.core.events import Notice
from ralph.core.model import Iteration
from ralph.core.prompts import DIFF_LIMIT
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.files import read_given
from ralph.records.journal import read
from ralph.repository.checkpoints import Checkpoints, changed_files, changed_paths, diff
from ralph.repository.configuration import Configuration
from ralph.repository.git import Repository
from ralph.repository.index import PrivateIndex, changed_at, head_of, shown, tree_of
from ralph.run.context import Context
from ralph.run.workspace import Trees

if TYPE_CHECKING:
    from ralph.repository.worktrees import Worktree


class GitTrees(Trees):
    """The states of a place in a repository."""

    can_undo = True
    configuration: Configuration

    def __init__(self, context: Context, repository: Repository, worktree: "Worktree | None" = None) -> None:
        super().__init__(context, worktree)
        self._repository = repository
        self.configuration = Configuration(repository)
        self._index = PrivateIndex(repository, context.folder.path / "index")
        self._saved = Checkpoints(repository, context.folder.id)
        self._base = self._now = self._head = ""
        self._told: tuple[str, ...] = ()
        self._big_before: tuple[str, ...] = ()
        self._ignored_before: set[bytes] = set()

    def begin(self, base: str | None = None, kept_as: str = "", after: int = 0) -> str:
        self.configuration.begin(kept_as or self._context.folder.id, self._context.env)
        self._index.begin(self.configuration.settings)
        self._now = self._index.tree()
        self._base = base or self._now
        self._big_before = self._index.left_out
        with suppress(OSError):
            self._head = read_given(f"{self._repository.git_dir}/HEAD", 4096).decode("utf-8", "replace")
        if base is None:
            self._saved.save(0, self._now, unsaved=self._index.unsaved)
        else:
            self._saved.hold(self._now, after)
        return self._base

    def tree(self, number: int) -> str | None:
        if news := self.configuration.news():
            named = ", ".join(news[:5]) + (" …" if len(news) > 5 else "")
            said = f"git's settings, hooks or attributes were changed; nothing that they name is run by ralph: {named}"
            self._context.tell(Notice(said))
        try:
            self._now = self._index.tree()
            self._saved.save(number, self._now, unsaved=self._index.unsaved)
        except UserError as error:
            self._context.tell(Notice(f"iteration {number} has no checkpoint: {error.advice}"))
            return None
        if self._index.left_out != self._told:
            self._told = self._index.left_out
            if self._told:
                self._context.tell(Notice(f"not in checkpoints and diffs: {', '.join(self._told[:5])}"))
        return self._now

    def changed_before(self) -> tuple[bytes, ...]:
        return tuple(changed_paths(self._repository, head_of(self._base), self._base))

    def changed_since(self) -> tuple[bytes, ...]:
        now = self._index.tree()
        big = [os.fsencode(name) for name in self._index.left_out if name not in self._big_before]
        changed = (*changed_paths(self._repository, self._base, now), *big)
        if any(os.path.basename(path) == b".gitignore" for path in changed):
            return self._without_ignored_before(changed)
        return changed

    def _without_ignored_before(self, paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """What git ignored when the run began is not its work, though a `.gitignore` names it no longer."""
        first, root = next(read(self._context.folder.journal), None), os.fsencode(self._repository.root)
        began = first.at if first else 0.0
        before = {path for path in paths if 0 < changed_at(os.path.join(root, path)) < began}
        if news := sorted(before - self._ignored_before):
            names = listed([shown(path) for path in news], 5)
            said = f"there before the run, ignored by git until now, and kept out of its commits: {names}"
            self._context.tell(Notice(said))
        self._ignored_before |= before
        return tuple(path for path in paths if path not in before)

    def has_moved(self, iteration: Iteration) -> bool:
        return bool(iteration.tree and head_of(self._now) != head_of(iteration.tree))

    def has_changed(self, iteration: Iteration) -> bool:
        return bool(iteration.tree and tree_of(self._index.tree()) != tree_of(iteration.tree))

    def is_untouched(self) -> bool:
        if self._base != self._now:
            return False
        try:
            return self._index.tree() == self._base  # a turn that was cut off may have changed something
        except UserError:
            return False

    def put_back(self, iteration: Iteration) -> str:
        return self._saved.rewind(iteration.number, self._index).kept_as

    def undo(self) -> tuple[str, ...]:
        now = self._index.tree()
        if now == self._base:
            return ()
        changed = changed_files(self._repository, tree_of(self._base), tree_of(now))
        self._saved.rewind(0, self._index)
        if head_of(now) == head_of(self._base):
            return tuple(one.path for one in changed)
        # The branch that was checked out is again, at the commit where it was.
        branch = self._head.removeprefix("ref:").strip() if self._head.startswith("ref:") else ""
        if branch:
            self._repository.git("symbolic-ref", "HEAD", branch)
        if commit := head_of(self._base):
            self._repository.git("update-ref", "--no-deref", branch or "HEAD", commit)
        else:
            self._repository.git("update-ref", "--no-deref", "-d", branch)
        return (*(one.path for one in changed), "HEAD")

    def diff(self) -> str:
        if self._base == self._now:
            return ""
        return self._context.redact.text(diff(self._repository, self._base, self._now, DIFF_LIMIT + 1))
