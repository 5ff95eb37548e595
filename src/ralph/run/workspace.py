"""The workspace of a run, as the loop sees it: markers, tasks, mail, checks, protected files."""

import json
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ralph.core.claims import Claim
from ralph.core.events import Notice
from ralph.core.judgement import Cell, hidden_failures
from ralph.core.model import Check, Fingerprint, Iteration, Run, Snapshot, Task
from ralph.core.rules import WAIT_FILE
from ralph.core.tasks_file import tasks_in_json, tasks_in_markdown
from ralph.core.text import listed, one_line
from ralph.errors import UNREADABLE, UserError
from ralph.files import StrPath, open_file, read_file, read_given, save_file
from ralph.git.protect import Protected
from ralph.run.request import refuse_hidden_link
from ralph.settings import Protection
from ralph.store.mailbox import Mailbox, untold
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.missing import missing_dependencies, missing_module
from ralph.verdict.shell_lines import files_named
from ralph.verdict.trees import Trees
from ralph.verdict.watched_files import TOOL_SETTINGS, WatchedFiles

CHANGED_SETTINGS = "changed in this run, and read by agents or tools that you start here later: {names}"
CHANGED_GOAL = "the goal was changed in this run: {names}; the next turn gets the new text"
CHANGED_CHECK = "changed in this run, and part of a check: {names}; --protect '{first}' would restore it"


class LocalWorkspace:
    """The workspace of a run, or its worktree. If the agent should only look, its changes are undone after
    each turn. `earlier` are the results of the checks so far."""

    def __init__(
        self,
        context: Context,
        claims: Sequence[Claim],
        trees: Trees,
        goal_file: str = "",
        earlier: Iterable[Cell] = (),
    ) -> None:
        settings = context.settings
        self._context, self._trees = context, trees
        self._undoes = context.looks_only and trees.can_undo
        self._protected = self._protect()
        # With `looks_only` everything is protected, and a check may write anything.
        watch = self._protected.watch if self._protected and not context.looks_only else None
        self._checks = Checks(context, settings.checks, watch, earlier)
        self._done_files = [context.home / claim.text for claim in claims if claim.kind == "file"]
        self._wait_file = context.home / WAIT_FILE if settings.wait_signals else None
        self._tasks = TasksFile(context) if settings.tasks else None
        self._watched, self._goal_file = WatchedFiles(context.root), goal_file
        self._mailbox = Mailbox(context.folder.path)
        self.hook_output = ""  # of a hook that refused the latest commit

    def _protect(self) -> Protected | None:
        context, protect = self._context, self._context.settings.protect
        if context.looks_only:
            protect = Protection() if self._undoes else Protection(("**",), "refuse")
        if not protect.globs:
            return None
        return Protected(
            context.root,
            protect.globs,
            refuses_new=protect.new == "refuse",
            store=Path(context.order_folder) / "protected",
            aside=context.folder.path / "protected" / "aside",
            wants_end=context.interrupt.must_end,
        )

    def begin(self, *, is_resumed: bool = False, accepts_files: bool = False) -> None:
        """Read the tasks, copy protected files, and remember the files that checks and tools read.

        If the run is resumed, restore the protected files that were changed since it ended, unless a person accepts
        them as they are.
        """
        settings = self._context.settings
        if self._tasks:
            self._tasks.begin()
        if self._protected:
            self._protected.keep(again=accepts_files)
            if is_resumed and not self._context.looks_only:
                self._restore_changed(self._protected)
            if not self._context.looks_only:
                self._tell_gaps(self._protected)
        covers = self._protected.covers if self._protected else lambda path: False
        root = str(self._context.root)
        named = [path for check in settings.checks for path in files_named(check.command, root)]
        goal = os.path.relpath(self._goal_file, root) if self._goal_file else ""
        for message, paths in (
            (CHANGED_SETTINGS, TOOL_SETTINGS),
            (CHANGED_GOAL, [self._goal_file if goal.startswith("..") else goal] if goal else []),
            (CHANGED_CHECK, named),
        ):
            self._watched.remember([path for path in paths if not covers(path)], message)

    def _restore_changed(self, protected: Protected) -> None:
        """Restore what was changed between two runs, before the agent could be blamed for it."""
        if changed := protected.changes():
            was, it, them = ("was", "it", "it") if len(changed) == 1 else ("were", "they", "them")
            text = f"{listed(changed)} {was} changed since the run ended: {it} will be restored; "
            text += f"to keep {them}: --tests may-change"
            self._context.tell(Notice(text))
            protected.restore()
            self._context.tell(Notice(f"the changed versions are in {protected.aside}", "info"))

    def _tell_gaps(self, protected: Protected) -> None:
        """Report files that --protect does not cover, although the user may expect it."""
        tell = self._context.tell
        if unmatched := protected.unmatched_patterns:
            tell(Notice(f"--protect matches no file yet: {', '.join(unmatched)}"))
        if folders := protected.unprotected_folders:
            hint = f"name it to protect it as well: --protect '{folders[0]}/**'"
            tell(Notice(f"--protect does not cover {listed(folders, 5)}; {hint}"))
        if targets := protected.unprotected_targets:
            hint = f"name it to protect it as well: --protect '{targets[0]}'"
            tell(Notice(f"--protect protects links, but not the files that they lead to: {listed(targets, 5)}; {hint}"))

    def look(self, run: Run) -> Snapshot:
        is_done, trouble = False, ""
        for path in self._done_files:
            is_there, problem = _find_marker(path)
            is_done, trouble = is_done or is_there, trouble or problem
        waits, problem = _find_marker(self._wait_file) if self._wait_file else (False, "")
        if self._context.interrupt.level and self._context.tick:
            self._context.tick()  # the mailbox may say who asked for it
        mail, reason = self._mailbox.read(), self._context.interrupt.reason
        return Snapshot(
            at=time.time(),
            elapsed=self._context.clock.elapsed(),
            interrupted=f"a stop from {mail.stopped_by}" if reason and mail.stopped_by else reason,
            trouble=trouble or problem,
            wait_requested=_read_marker(self._wait_file) if waits and self._wait_file else "",
            done_file=is_done,
            tasks=self._tasks.read() if self._tasks else None,
            told=untold(mail, run) if mail.notes else (),
            questions=mail.questions,
            paused=mail.is_paused,
            hook_output=self.hook_output,
        )

    def guard(self) -> tuple[str, ...]:
        if self._undoes:
            if undone := self._trees.undo():
                text = f"the agent was to change nothing; its changes were undone: {listed(undone)}"
                self._context.tell(Notice(text))
            return undone
        touched = self._protected.restore() if self._protected else ()
        if touched and self._protected:
            backup = f"; its versions are in {self._protected.aside}" if self._protected.aside else ""
            text = f"the agent changed protected files, which were restored or removed: {listed(touched)}"
            self._context.tell(Notice(text + backup))
        return touched

    def check(self, number: int) -> tuple[Check, ...] | None:
        for text in self._watched.take_changes():
            self._context.tell(Notice(text))
        results = None if self._context.interrupt.level else self._checks.run(number)
        if number == 0 and results:
            self._explain_start(results)
        return results

    def _explain_start(self, checks: tuple[Check, ...]) -> None:
        """Report failures that need a person. Raise a UserError if a check's dependencies are not in the copy."""
        if error := missing_dependencies(self._context, checks):
            raise error
        for text in (*hidden_failures(checks), missing_module(self._context, checks)):
            if text:
                self._context.tell(Notice(text))

    def tree(self, number: int) -> Fingerprint | None:
        return None if self._undoes else self._trees.tree(number)  # after an undo the tree is as it was

    def restore(self, iteration: Iteration) -> tuple[Fingerprint, str] | None:
        if self._undoes or not self._trees.can_undo:
            return None
        try:
            return self._trees.restore(iteration)
        except UserError as error:
            self._context.tell(Notice(f"iteration {iteration.number} was not restored: {error.advice}"))
            return None


class TasksFile:
    """The file with the tasks of a run. The tasks that it has when the run begins are stored outside the workspace:
    they must be done even if the agent removes them from the file."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._path, self._kept = context.root / context.settings.tasks, f"{context.order_folder}/tasks.json"
        self._first: tuple[Task, ...] = ()

    def begin(self) -> None:
        try:
            self._first = msgspec.json.decode(read_file(self._kept), type=tuple[Task, ...])
        except FileNotFoundError:  # the run begins
            self._first = self._read()
            save_file(self._kept, msgspec.json.encode(self._first))
        except (OSError, *UNREADABLE) as error:
            raise UserError(f"cannot read {self._kept}: {error}", "start a new run") from None

    def read(self) -> tuple[Task, ...]:
        try:
            now = self._read()
        except UserError as error:  # the agent broke the file, so the agent has to fix it
            return (Task(f"fix it: {error.message}", False),)
        removed = [
            task for task in self._first if not task.done and not any(task.text in task_now.text for task_now in now)
        ]
        return (*now, *(Task(f"{task.text} (it was removed from the list)", False) for task in removed))

    def _read(self) -> tuple[Task, ...]:
        refuse_hidden_link(str(self._path), self._context.settings, str(self._context.root))
        return read_tasks(self._path)


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Return every task in the file, in order."""
    try:
        text = read_given(path).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"cannot read the tasks file {path}: {error.strerror}", "name one with --tasks FILE") from None
    try:
        is_json = path.suffix.lower() == ".json"
        tasks = tuple(tasks_in_json(json.loads(text)) if is_json else tasks_in_markdown(text))
    except UNREADABLE as error:
        raise UserError(f"the tasks file {path} is not JSON: {error}", "fix it, or name another with --tasks") from None
    if not tasks:
        raise UserError(
            f"the tasks file {path} names no task",
            'write one per line as "- [ ] text", or a list of {"title": "...", "passes": false} in a .json file',
        )
    return tasks


def _find_marker(path: StrPath) -> tuple[bool, str]:
    """Return whether the marker file exists, and what is wrong with it if it isn't a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        return False, f"stat {os.path.basename(path)}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return False, f"{os.path.basename(path)} is a directory"
    return (True, "") if stat.S_ISREG(mode) else (False, f"{os.path.basename(path)} is not a regular file")


def _read_marker(path: StrPath) -> str:
    """Return the text of a marker file in one line; its name if it is empty."""
    try:
        with open(open_file(path), "rb") as file:  # refuses a link, with which a sandboxed agent could read any file
            return one_line(file.read(1000).decode("utf-8", "replace")) or os.path.basename(path)
    except OSError:
        return os.path.basename(path)
