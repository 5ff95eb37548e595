"""What is true in the workspace right now? The facts that the rules are told, and the checks that verify the work."""

import time
from collections.abc import Callable
from pathlib import Path

from ralph.core.model import Check, Run, Snapshot, Task
from ralph.world.checks import Checks
from ralph.world.marker import marked, words_of
from ralph.world.site import Site
from ralph.world.steering.mailbox import Mailbox, untold


class LocalWorkspace:
    """`tree` and `guard` cost git and file system work: they are given only where a rule needs them."""

    def __init__(
        self,
        site: Site,
        checks: Checks,
        *,
        done_files: tuple[Path, ...] = (),
        wait_file: Path | None = None,
        tasks: Callable[[], tuple[Task, ...]] | None = None,
        tree: Callable[[int], str | None] | None = None,
        guard: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self._site, self._checks = site, checks
        self._done_files, self._wait_file = done_files, wait_file
        self._tasks, self._tree, self._guard = tasks, tree, guard
        self._mailbox = Mailbox(site.folder.path)

    def look(self, run: Run) -> Snapshot:
        done, trouble = False, ""
        for path in self._done_files:
            found, problem = marked(path)
            done, trouble = done or found, trouble or problem
        waits, problem = marked(self._wait_file) if self._wait_file else (False, "")
        signal = self._site.interrupt.reason
        mail = self._mailbox.read()
        return Snapshot(
            at=time.time(),
            elapsed=self._site.elapsed(),
            interrupted=f"received {signal}" if signal else "",
            trouble=trouble or problem,
            wait_requested=f"the agent asked to wait: {words_of(self._wait_file)}" if waits and self._wait_file else "",
            done_file=done,
            tasks=self._tasks() if self._tasks else None,
            told=untold(mail, run) if mail.notes else (),
            questions=mail.questions,
            paused=mail.is_paused,
        )

    def guard(self) -> tuple[str, ...]:
        return self._guard() if self._guard else ()

    def check(self, number: int) -> tuple[Check, ...] | None:
        return None if self._site.interrupt.level else self._checks.run(number)

    def tree(self, number: int) -> str | None:
        return self._tree(number) if self._tree else None
