"""What does the loop see of the place where the work is done? Marks, tasks, mail, what the checks say of it; and how it
changed in this run: a fingerprint and checkpoint after each iteration, and the diff so far."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ralph.core import events
from ralph.core.events import Notice
from ralph.core.model import Check, Iteration, Run, Snapshot, Task
from ralph.core.prompts import DIFF_LIMIT
from ralph.core.text import listed
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file, read_given
from ralph.records.folder import write
from ralph.run.checks import Checks, NamedFiles
from ralph.run.context import Context, marked, words_of
from ralph.steering.mailbox import Mailbox, untold

# What speaks with git is imported where there is a repository: elsewhere a run neither waits for it nor holds it.
if TYPE_CHECKING:
    from ralph.repository.checkpoints import Checkpoints
    from ralph.repository.configuration import Configuration
    from ralph.repository.git import Repository
    from ralph.repository.index import PrivateIndex
    from ralph.repository.protect import Protected
    from ralph.repository.worktrees import Worktree


class LocalWorkspace:
    """The workspace of a run, or the worktree that stands in for it."""

    def __init__(
        self,
        context: Context,
        checks: Checks,
        *,
        done_files: tuple[Path, ...] = (),
        wait_file: Path | None = None,
        tasks: "TasksFile | None" = None,
        tree: Callable[[int], str | None] | None = None,
        protect: Sequence[str] = (),
        undo: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self._context, self._checks, self._undo = context, checks, undo
        self._done_files, self._wait_file = done_files, wait_file
        self._tasks, self._tree, self._protect = tasks, tree, protect
        self._protected: Protected | None = None
        self._named: NamedFiles | None = None
        self._mailbox = Mailbox(context.folder.path)

    def begin(self) -> None:
        """Keeps what is protected, and reads what the run is about: what cannot be is said before anything is spent."""
        if self._tasks:
            self._tasks.begin()
        if self._protect:
            from ralph.repository.protect import Protected

            store, interrupt = self._context.folder.path / "protected", self._context.interrupt
            self._protected = Protected(self._context.root, self._protect, store, interrupt.wants_end)
            self._protected.keep()
            if (unmatched := self._protected.unmatched) and self._protect != ("**",):
                self._context.tell(Notice(f"--protect matches no file yet: {', '.join(unmatched)}"))
            if self._protect != ("**",):
                self._checks.witness = self._protected.watch
                if folders := self._protected.uncovered:
                    hint = f"name it to protect it, too: --protect '{folders[0]}/**'"
                    self._context.tell(Notice(f"--protect does not cover {listed(folders, 5)}; {hint}"))
        self._named = NamedFiles(self._context.root)
        self._named.look(self._checks.commands, self._protected.covers if self._protected else lambda path: False)

    def look(self, run: Run) -> Snapshot:
        done, trouble = False, ""
        for path in self._done_files:
            found, problem = marked(path)
            done, trouble = done or found, trouble or problem
        waits, problem = marked(self._wait_file) if self._wait_file else (False, "")
        if self._context.interrupt.level and self._context.tick:
            self._context.tick()  # who sent the signal is one thing, why another
        signal = self._context.interrupt.reason
        mail = self._mailbox.read()
        return Snapshot(
            at=time.time(),
            elapsed=self._context.elapsed(),
            interrupted=f"received {signal}" if signal else "",
            trouble=trouble or problem,
            wait_requested=f"the agent asked to wait: {words_of(self._wait_file)}" if waits and self._wait_file else "",
            done_file=done,
            tasks=self._tasks.read() if self._tasks else None,
            told=untold(mail, run) if mail.notes else (),
            questions=mail.questions,
            paused=mail.is_paused,
        )

    def guard(self) -> tuple[str, ...]:
        touched = self._protected.restore() if self._protected else self._undo() if self._undo else ()
        if touched and self._undo:
            self._context.tell(
                Notice(f"the agent was to change nothing; what it changed was put back: {listed(touched)}")
            )
        elif touched:
            self._context.tell(Notice(f"the agent changed protected files, which were put back: {listed(touched)}"))
        return touched

    def check(self, number: int) -> tuple[Check, ...] | None:
        if self._named and (changed := self._named.news()):
            hint = f"--protect '{changed[0]}' would put it back"
            self._context.tell(Notice(f"changed in this run, and part of a check: {listed(changed, 5)}; {hint}"))
        return None if self._context.interrupt.level else self._checks.run(number)

    def tree(self, number: int) -> str | None:
        return self._tree(number) if self._tree else None


class TasksFile:
    """The tasks that a run has to settle. What was in the file when the run began stays to be done, and is `kept` for
    when the run goes on in another process."""

    def __init__(self, path: Path, kept: Path) -> None:
        self._path, self._kept = path, kept
        self._first: tuple[Task, ...] = ()

    def begin(self) -> None:
        try:
            self._first = msgspec.json.decode(read_file(self._kept), type=tuple[Task, ...])
        except (OSError, *UNREADABLE):  # the run begins, or an agent has cleaned up
            self._first = read_tasks(self._path)
            write(self._kept, msgspec.json.encode(self._first))

    def read(self) -> tuple[Task, ...]:
        try:
            now = read_tasks(self._path)
        except UserError as error:  # the agent's doing, so the agent has to mend it
            return (Task(f"put it right: {error.message}", False),)
        return (*now, *taken_off(self._first, now))


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Every task in the file, in its order."""
    from ralph.core.tasks_file import tasks_in_markdown

    try:
        text = read_given(path).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"cannot read the tasks file {path}: {error.strerror}", "name one with --tasks FILE") from None
    tasks = tuple(_in_json(text, path) if path.suffix.lower() == ".json" else tasks_in_markdown(text))
    if not tasks:
        raise UserError(
            f"the tasks file {path} names no task",
            'write one a line as "- [ ] text", or a list of {"title": "...", "passes": false} in a .json file',
        )
    return tasks


def taken_off(first: tuple[Task, ...], now: tuple[Task, ...]) -> tuple[Task, ...]:
    """The open tasks of before that the list no longer names: to strike a task out is not to do it."""
    gone = [task for task in first if not task.done and not any(task.text in one.text for one in now)]
    return tuple(Task(f"{task.text} (it was taken off the list)", False) for task in gone)


def _in_json(text: str, path: Path) -> Iterator[Task]:
    import json

    from ralph.core.tasks_file import tasks_in_json

    try:
        content = json.loads(text)
    except UNREADABLE as error:
        raise UserError(
            f"the tasks file {path} is not JSON: {error}", "mend it, or name another with --tasks"
        ) from None
    yield from tasks_in_json(content)


class Trees:
    """The states of a workspace in git; without git there are none, and whoever needs one does without.

    `walks`: without git, files are compared by size and time, for an agent that cannot tell how much it did.
    """

    def __init__(self, context: Context, worktree: "Worktree | None" = None, walks: bool = False) -> None:
        self._context, self.worktree, self._walks = context, worktree, walks
        self._repository: Repository | None = None
        self._index: PrivateIndex | None = None
        self._saved: Checkpoints | None = None
        self.configuration: Configuration | None = None
        self._base = self._now = self._head = ""
        self._told: tuple[str, ...] = ()
        self._big_before: tuple[str, ...] = ()

    def begin(self, base: str | None = None, kept_as: str = "", after: int = 0) -> str | None:
        """Takes the state before the first iteration; `base` is that state where the run is resumed, `after` so many
        iterations. Git's settings are kept for this run, or were kept for the one that it is part of."""
        # Git is not even asked where there is no sign of it: that would cost more than the rest of a small run.
        place = self._context.root.resolve()
        has_git = any(os.path.lexists(parent / ".git") for parent in (place, *place.parents))
        self._repository = self._found() if has_git else None
        if self._repository is None:
            return self._walked()
        from ralph.repository.checkpoints import Checkpoints
        from ralph.repository.configuration import Configuration
        from ralph.repository.index import PrivateIndex

        self.configuration = Configuration(self._repository)
        self.configuration.begin(kept_as or self._context.folder.id, self._context.env)
        self._index = PrivateIndex(self._repository, self._context.folder.path / "index")
        self._index.begin(self.configuration.settings)
        self._saved = Checkpoints(self._repository, self._context.folder.id)
        self._now = self._index.tree()
        self._base = base or self._now
        self._big_before = self._index.left_out
        with suppress(OSError):
            self._head = read_given(f"{self._repository.git_dir}/HEAD", 4096).decode("utf-8", "replace")
        if base is None:
            self._saved.save(0, self._now)
        else:
            self._saved.hold(self._now, after)
        return self._base

    def tree(self, number: int) -> str | None:
        """The fingerprint after iteration `number`, kept as its checkpoint."""
        if self._index is None or self._saved is None:
            return self._walked()
        if self.configuration and (news := self.configuration.news()):
            named = ", ".join(news[:5]) + (" …" if len(news) > 5 else "")
            said = f"git's settings, hooks or attributes were changed; nothing that they name is run by ralph: {named}"
            self._context.tell(events.Notice(said))
        try:
            self._now = self._index.tree()
            self._saved.save(number, self._now)
        except UserError as error:
            self._context.tell(events.Notice(f"iteration {number} has no checkpoint: {error.advice}"))
            return None
        if self._index.left_out != self._told:
            self._told = self._index.left_out
            if self._told:
                self._context.tell(events.Notice(f"not in checkpoints and diffs: {', '.join(self._told[:5])}"))
        return self._now

    def changed_before(self) -> tuple[bytes, ...]:
        """What was not committed when the run began: it is the user's own."""
        if self._repository is None:
            return ()
        from ralph.repository.checkpoints import changed_paths
        from ralph.repository.index import head_of

        return tuple(changed_paths(self._repository, head_of(self._base), self._base))

    def changed_since(self) -> tuple[bytes, ...] | None:
        """What was changed since the run began; None where that cannot be told."""
        if self._repository is None or self._index is None:
            return None
        from ralph.repository.checkpoints import changed_paths

        now = self._index.tree()
        big = [os.fsencode(name) for name in self._index.left_out if name not in self._big_before]
        return (*changed_paths(self._repository, self._base, now), *big)

    def has_moved(self, iteration: Iteration) -> bool:
        """Whether HEAD is another one than at the end of an iteration: then its work has been committed."""
        if not self._now or not iteration.tree:
            return False
        from ralph.repository.index import head_of

        return head_of(self._now) != head_of(iteration.tree)

    def has_changed(self, iteration: Iteration) -> bool:
        """Whether any file is another one than at the end of an iteration."""
        if self._index is None or not iteration.tree:
            return False
        from ralph.repository.index import tree_of

        return tree_of(self._index.tree()) != tree_of(iteration.tree)

    def is_untouched(self) -> bool:
        """Whether everything is as it was when the run began: no file was changed, and nothing was committed."""
        if self._index is None or self._base != self._now:
            return False
        try:
            return self._index.tree() == self._base  # a turn that was cut off may have changed something
        except UserError:
            return False

    def put_back(self, iteration: Iteration) -> str:
        """Makes the files what they were at the end of an iteration. Gives the ref under which they are kept as now."""
        if self._index is None or self._saved is None:
            raise UserError("there is no state to go back to")
        return self._saved.rewind(iteration.number, self._index).kept_as

    @property
    def can_undo(self) -> bool:
        return self._index is not None

    def undo(self) -> tuple[str, ...]:
        """Makes the files and HEAD what they were when the run began, and names what was changed. What was there is
        kept beside the checkpoints."""
        if self._index is None or self._saved is None or self._repository is None:
            return ()
        from ralph.repository.checkpoints import changed_files
        from ralph.repository.index import head_of, tree_of

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
            self._repository.git("update-ref", *(() if branch else ("--no-deref",)), "HEAD", commit)
        else:
            self._repository.git("update-ref", "-d", branch)
        return (*(one.path for one in changed), "HEAD")

    def diff(self) -> str:
        """What changed since the run began, new files included."""
        if self._repository is None or self._base == self._now:
            return ""
        from ralph.repository.checkpoints import diff

        return self._context.redact.text(diff(self._repository, self._base, self._now, DIFF_LIMIT + 1))

    def _found(self) -> "Repository | None":
        """The repository; one that is broken is as good as none here, but that is said."""
        from ralph.repository.git import find_repository

        try:
            return find_repository(self._context.root)
        except UserError as error:
            self._context.tell(events.Notice(f"no checkpoints, no diff: {error.advice}"))
            return None

    def _walked(self) -> str | None:
        if not self._walks:
            return None
        from ralph.repository.index import walk_fingerprint

        return walk_fingerprint(self._context.root)
