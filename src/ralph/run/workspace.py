"""What does the loop see of the place where the work is done? Marks, tasks, mail, what the checks say of it; and how it
changed in this run, as far as that can be told."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ralph.core.events import Notice
from ralph.core.model import Check, Iteration, Run, Snapshot, Task, WaitRequest
from ralph.core.tasks_file import tasks_in_json, tasks_in_markdown
from ralph.core.text import listed
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file, read_given
from ralph.git.client import Git
from ralph.git.configuration import GitConfigWatch
from ralph.git.index import walk_fingerprint
from ralph.git.protect import Protected
from ralph.git.worktrees import Worktree
from ralph.run.checks import OBEYED, Checks, NamedFiles, named_in
from ralph.run.context import Context, marked, words_of
from ralph.store.mailbox import Mailbox, untold
from ralph.store.orders import write_order


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
        goal_file: str = "",
    ) -> None:
        self._context, self._checks, self._undo = context, checks, undo
        self._done_files, self._wait_file = done_files, wait_file
        self._tasks, self._tree, self._protect = tasks, tree, protect
        self._protected: Protected | None = None
        self._named, self._obeyed = NamedFiles(context.root), NamedFiles(context.root)
        self._goal, self._goal_file = NamedFiles(context.root), goal_file
        self._mailbox = Mailbox(context.folder.path)

    def begin(self) -> None:
        """Keeps what is protected, and reads what the run is about: what cannot be is said before anything is spent."""
        if self._tasks:
            self._tasks.begin()
        if self._protect:
            context = self._context
            self._protected = Protected(
                context.root,
                self._protect,
                store=Path(context.order_folder) / "protected",
                aside=context.folder.path / "protected" / "aside",
                wants_end=context.interrupt.must_end,
            )
            self._protected.keep()
            if self._protect != ("**",):
                self._checks.witness = self._protected.watch
                if unmatched := self._protected.unmatched:
                    self._context.tell(Notice(f"--protect matches no file yet: {', '.join(unmatched)}"))
                if folders := self._protected.uncovered:
                    hint = f"name it to protect it, too: --protect '{folders[0]}/**'"
                    self._context.tell(Notice(f"--protect does not cover {listed(folders, 5)}; {hint}"))
                if targets := self._protected.led_to:
                    hint = f"name it to protect it, too: --protect '{targets[0]}'"
                    self._context.tell(Notice(f"--protect keeps links, not {listed(targets, 5)} behind them; {hint}"))
        is_kept = self._protected.covers if self._protected else lambda path: False
        root = str(self._context.root)
        named = [path for command in self._checks.commands for path in named_in(command, root)]
        self._named.look(path for path in named if not is_kept(path))
        self._obeyed.look(path for path in OBEYED if not is_kept(path))
        if self._goal_file:
            place = os.path.relpath(self._goal_file, root)
            place = self._goal_file if place.startswith("..") else place
            self._goal.look(path for path in (place,) if not is_kept(path))

    def look(self, run: Run) -> Snapshot:
        done, trouble = False, ""
        for path in self._done_files:
            found, problem = marked(path)
            done, trouble = done or found, trouble or problem
        waits, problem = marked(self._wait_file) if self._wait_file else (False, "")
        if self._context.interrupt.level and self._context.tick:
            self._context.tick()  # who sent the signal is one thing, why another
        mail, reason = self._mailbox.read(), self._context.interrupt.reason
        return Snapshot(
            at=time.time(),
            elapsed=self._context.elapsed(),
            interrupted=f"a stop from {mail.stopped_by}" if reason and mail.stopped_by else reason,
            trouble=trouble or problem,
            wait_requested=WaitRequest(words_of(self._wait_file)) if waits and self._wait_file else None,
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
        if obeyed := self._obeyed.news():
            said = f"changed in this run, and obeyed by agents or tools that you start here later: {listed(obeyed, 5)}"
            self._context.tell(Notice(said))
        if rewritten := self._goal.news():
            self._context.tell(
                Notice(f"the goal was changed in this run: {rewritten[0]}; the next turn gets the new text")
            )
        if changed := self._named.news():
            hint = f"--protect '{changed[0]}' would put it back"
            self._context.tell(Notice(f"changed in this run, and part of a check: {listed(changed, 5)}; {hint}"))
        return None if self._context.interrupt.level else self._checks.run(number)

    def tree(self, number: int) -> str | None:
        return self._tree(number) if self._tree else None


class TasksFile:
    """The tasks that a run has to settle. The tasks that were in the file when the run began are kept in its order
    folder: they must be done even if the agent takes them off the list."""

    def __init__(self, path: Path, order_folder: str, refuse_link: Callable[[str], None] = lambda path: None) -> None:
        self._path, self._kept, self._refuse_link = path, f"{order_folder}/tasks.json", refuse_link
        self._first: tuple[Task, ...] = ()

    def begin(self) -> None:
        try:
            self._first = msgspec.json.decode(read_file(self._kept), type=tuple[Task, ...])
        except FileNotFoundError:  # the run begins
            self._first = self._read()
            write_order(self._kept, msgspec.json.encode(self._first))
        except (OSError, *UNREADABLE) as error:
            raise UserError(f"cannot read {self._kept}: {error}", "start a new run") from None

    def read(self) -> tuple[Task, ...]:
        try:
            now = self._read()
        except UserError as error:  # the agent's doing, so the agent has to mend it
            return (Task(f"put it right: {error.message}", False),)
        return (*now, *taken_off(self._first, now))

    def _read(self) -> tuple[Task, ...]:
        self._refuse_link(str(self._path))
        return read_tasks(self._path)


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Every task in the file, in its order."""

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

    try:
        content = json.loads(text)
    except UNREADABLE as error:
        raise UserError(
            f"the tasks file {path} is not JSON: {error}", "mend it, or name another with --tasks"
        ) from None
    yield from tasks_in_json(content)


class Trees:
    """The states of a place that git does not keep: there are none, and whoever needs one does without (those of a
    repository: git_trees.py). `walks`: files are compared by size and time, for an agent that cannot tell how much it
    did."""

    can_undo = False
    git: Git | None = None
    config_watch: GitConfigWatch | None = None
    new_nested: Sequence[bytes] = ()  # nested repositories that the run made

    def __init__(self, context: Context, worktree: "Worktree | None" = None, walks: bool = False) -> None:
        self._context, self.worktree, self._walks = context, worktree, walks

    def begin(self, base: str | None = None, after: int = 0) -> str | None:
        """Save the state before the first iteration; if the run is resumed after `after` iterations, `base` is it."""
        return self.tree(after)

    def tree(self, number: int) -> str | None:
        """The fingerprint after iteration `number`, kept as its checkpoint."""
        if not self._walks:
            return None

        return walk_fingerprint(self._context.root)

    def changed_before(self) -> tuple[bytes, ...]:
        """What was not committed when the run began: it is the user's own."""
        return ()

    def changed_since(self) -> tuple[bytes, ...] | None:
        """What was changed since the run began; None where that cannot be told."""
        return None

    def has_moved(self, iteration: Iteration) -> bool:
        """Whether HEAD is another one than at the end of an iteration: then its work has been committed."""
        return False

    def has_changed(self, iteration: Iteration) -> bool:
        """Whether any file is known to be another one than at the end of an iteration."""
        return False

    def is_untouched(self) -> bool:
        """Whether everything is known to be as it was when the run began: files, and what is committed."""
        return False

    def put_back(self, iteration: Iteration) -> str:
        """Makes the files what they were at the end of an iteration. Gives the ref under which they are kept as now."""
        raise UserError("there is no state to go back to")

    def undo(self) -> tuple[str, ...]:
        """Makes the files and HEAD what they were when the run began, and names what was changed. What was there is
        kept beside the checkpoints."""
        return ()

    def diff(self) -> str:
        """What changed since the run began, new files included."""
        return ""
