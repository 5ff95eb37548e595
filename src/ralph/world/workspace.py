"""What is true in the workspace right now? The facts that the rules are told, and the checks that verify the work."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ralph.core.model import Check, Run, Snapshot, Task
from ralph.world.checks import Checks
from ralph.world.site import Site


class LocalWorkspace:
    """`tree` and `guard` cost git and file system work: they are given only where a rule needs them."""

    def __init__(
        self,
        site: Site,
        checks: Checks,
        *,
        done_files: tuple[str, ...] = (),
        tasks: Callable[[], tuple[Task, ...]] | None = None,
        tree: Callable[[int], str | None] | None = None,
        guard: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self._site, self._checks = site, checks
        self._done_files = [site.root / name for name in done_files]
        self._tasks, self._tree, self._guard = tasks, tree, guard

    def look(self, run: Run) -> Snapshot:
        done, trouble = False, ""
        for path in self._done_files:
            found, problem = is_done_file(path)
            done, trouble = done or found, trouble or problem
        signal = self._site.interrupt.reason
        return Snapshot(
            at=time.time(),
            elapsed=self._site.elapsed(),
            interrupted=f"received {signal}" if signal else "",
            trouble=trouble,
            done_file=done,
            tasks=self._tasks() if self._tasks else None,
        )

    def guard(self) -> tuple[str, ...]:
        return self._guard() if self._guard else ()

    def check(self, number: int) -> tuple[Check, ...] | None:
        return None if self._site.interrupt.level else self._checks.run(number)

    def tree(self, number: int) -> str | None:
        return self._tree(number) if self._tree else None


def is_done_file(path: Path) -> tuple[bool, str]:
    """Whether the file that claims "done" is there, and what is wrong with it if it cannot be one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        return False, f"cannot look at {path}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return False, f"{path.name} is a directory"
    return True, ""
