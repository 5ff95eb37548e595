"""What the loop sees of the workspace: markers, tasks, mail, results of checks, protected files."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ralph.core.events import Notice
from ralph.core.model import Check, Iteration, Run, Snapshot, Task, WaitRequest
from ralph.core.tasks_file import tasks_in_json, tasks_in_markdown
from ralph.core.text import listed
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file, read_given
from ralph.git.protect import Protected
from ralph.run.checks import TOOL_SETTINGS, Checks, WatchedFiles, files_of_check
from ralph.run.context import Context, find_marker, read_marker
from ralph.store.mailbox import Mailbox, untold
from ralph.store.orders import write_order


class LocalWorkspace:
    """The workspace of a run, or its worktree."""

    def __init__(
        self,
        context: Context,
        checks: Checks,
        *,
        done_files: tuple[Path, ...] = (),
        wait_file: Path | None = None,
        tasks: "TasksFile | None" = None,
        tree: Callable[[int], str | None] | None = None,
        protected: Protected | None = None,
        undo: Callable[[], tuple[str, ...]] | None = None,
        restore: Callable[[Iteration], tuple[str, str]] | None = None,
        goal_file: str = "",
    ) -> None:
        self._context, self._checks, self._undo, self._restore = context, checks, undo, restore
        self._done_files, self._wait_file = done_files, wait_file
        self._tasks, self._tree, self._protected = tasks, tree, protected
        self._check_files, self._tool_settings = WatchedFiles(context.root), WatchedFiles(context.root)
        self._goal, self._goal_file = WatchedFiles(context.root), goal_file
        self._mailbox = Mailbox(context.folder.path)
        self.hook_output = ""  # of a hook that refused the latest commit

    def begin(self) -> None:
        """Read the tasks, copy protected files, and remember the files that checks and tools read."""
        if self._tasks:
            self._tasks.begin()
        if self._protected:
            self._protected.keep()
            if not self._context.looks_only:
                self._tell_gaps(self._protected)
        covers = self._protected.covers if self._protected else lambda path: False
        root = str(self._context.root)
        named = [path for command in self._checks.commands for path in files_of_check(command, root)]
        self._check_files.remember(path for path in named if not covers(path))
        self._tool_settings.remember(path for path in TOOL_SETTINGS if not covers(path))
        if self._goal_file:
            path = os.path.relpath(self._goal_file, root)
            path = self._goal_file if path.startswith("..") else path
            self._goal.remember([] if covers(path) else [path])

    def _tell_gaps(self, protected: Protected) -> None:
        """Report what --protect doesn't cover, although the user may think so."""
        tell = self._context.tell
        if unmatched := protected.unmatched:
            tell(Notice(f"--protect matches no file yet: {', '.join(unmatched)}"))
        if folders := protected.uncovered:
            hint = f"name it to protect it, too: --protect '{folders[0]}/**'"
            tell(Notice(f"--protect does not cover {listed(folders, 5)}; {hint}"))
        if targets := protected.led_to:
            hint = f"name it to protect it, too: --protect '{targets[0]}'"
            tell(Notice(f"--protect keeps links, not {listed(targets, 5)} behind them; {hint}"))

    def look(self, run: Run) -> Snapshot:
        done, trouble = False, ""
        for path in self._done_files:
            found, problem = find_marker(path)
            done, trouble = done or found, trouble or problem
        waits, problem = find_marker(self._wait_file) if self._wait_file else (False, "")
        if self._context.interrupt.level and self._context.tick:
            self._context.tick()  # the mailbox may say who asked for it
        mail, reason = self._mailbox.read(), self._context.interrupt.reason
        return Snapshot(
            at=time.time(),
            elapsed=self._context.clock.elapsed(),
            interrupted=f"a stop from {mail.stopped_by}" if reason and mail.stopped_by else reason,
            trouble=trouble or problem,
            wait_requested=WaitRequest(read_marker(self._wait_file)) if waits and self._wait_file else None,
            done_file=done,
            tasks=self._tasks.read() if self._tasks else None,
            told=untold(mail, run) if mail.notes else (),
            questions=mail.questions,
            paused=mail.is_paused,
            hook_output=self.hook_output,
        )

    def guard(self) -> tuple[str, ...]:
        touched = self._protected.restore() if self._protected else self._undo() if self._undo else ()
        if touched and self._undo:
            text = "the agent was to change nothing; what it changed was put back"
            self._context.tell(Notice(f"{text}: {listed(touched)}"))
        elif touched:
            aside = self._protected.aside if self._protected else ""
            kept = f"; its versions are in {aside}" if aside else ""
            text = f"the agent changed protected files, which were restored or removed: {listed(touched)}"
            self._context.tell(Notice(text + kept))
        return touched

    def check(self, number: int) -> tuple[Check, ...] | None:
        tell = self._context.tell
        if changed := self._tool_settings.take_changed():
            text = "changed in this run, and obeyed by agents or tools that you start here later"
            tell(Notice(f"{text}: {listed(changed, 5)}"))
        if changed := self._goal.take_changed():
            tell(Notice(f"the goal was changed in this run: {changed[0]}; the next turn gets the new text"))
        if changed := self._check_files.take_changed():
            hint = f"--protect '{changed[0]}' would put it back"
            tell(Notice(f"changed in this run, and part of a check: {listed(changed, 5)}; {hint}"))
        return None if self._context.interrupt.level else self._checks.run(number)

    def tree(self, number: int) -> str | None:
        return self._tree(number) if self._tree else None

    def restore(self, iteration: Iteration) -> tuple[str, str] | None:
        if self._restore is None:
            return None
        try:
            return self._restore(iteration)
        except UserError as error:
            self._context.tell(Notice(f"iteration {iteration.number} was not restored: {error.advice}"))
            return None


class TasksFile:
    """The file with the tasks of a run. Those it contained when the run began are stored in the order folder: they must
    be done even if the agent removes them from the file."""

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
        except UserError as error:  # the agent broke it, so the agent has to fix it
            return (Task(f"fix it: {error.message}", False),)
        return (*now, *removed_tasks(self._first, now))

    def _read(self) -> tuple[Task, ...]:
        self._refuse_link(str(self._path))
        return read_tasks(self._path)


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Return every task in the file, in order."""
    try:
        text = read_given(path).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"cannot read the tasks file {path}: {error.strerror}", "name one with --tasks FILE") from None
    tasks = tuple(_parse_json(text, path) if path.suffix.lower() == ".json" else tasks_in_markdown(text))
    if not tasks:
        raise UserError(
            f"the tasks file {path} names no task",
            'write one a line as "- [ ] text", or a list of {"title": "...", "passes": false} in a .json file',
        )
    return tasks


def removed_tasks(first: tuple[Task, ...], now: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return the open tasks that were removed from the list: that doesn't make them done."""
    gone = [task for task in first if not task.done and not any(task.text in one.text for one in now)]
    return tuple(Task(f"{task.text} (it was taken off the list)", False) for task in gone)


def _parse_json(text: str, path: Path) -> Iterator[Task]:
    try:
        content = json.loads(text)
    except UNREADABLE as error:
        raise UserError(f"the tasks file {path} is not JSON: {error}", "fix it, or name another with --tasks") from None
    yield from tasks_in_json(content)
