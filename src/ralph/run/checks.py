"""Run checks, the commands that verify the work, and notice changes to the files that they are made of."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.text import listed
from ralph.files import read_given
from ralph.process.keeper import Keeper
from ralph.process.parallel import Running, run_in_parallel
from ralph.process.process import Output
from ralph.process.program import Command
from ralph.run.context import Context
from ralph.settings import CheckCommand

SLUG_LENGTH = 50
CHANGED = (
    "protected files were changed while it ran, so it does not count: {}; if the check itself writes them, "
    "leave them out with --protect '!PATTERN'"
)


class Checks:
    """The check commands of a run. Later changes of the settings have no effect on them.

    `watch`, if given, is called when a check starts. It returns a function that names the protected files which have
    changed since then.
    """

    def __init__(
        self,
        context: Context,
        commands: Sequence[CheckCommand],
        watch: Callable[[], Callable[[], tuple[str, ...]]] | None = None,
    ) -> None:
        self._context, self._commands, self._watch = context, tuple(commands), watch
        self._slugs = slugs([context.redact.text(check.command) for check in commands])

    def run(self, number: int) -> tuple[Check, ...] | None:
        """Run all checks; return the results in their order, or None if the run was interrupted before the last."""
        context, settings = self._context, self._context.settings
        folder = os.path.join(context.task or "", ".ralph")
        logs = [os.path.join(folder, f"guardrail_{number:03d}_{slug}.log") for slug in self._slugs]
        # After a sandboxed check ralph looks for planted files: no other check may run then.
        at_once = 1 if context.sandboxes_checks else settings.parallel_checks
        results: list[Check] = []

        def is_enough(check: Check | None) -> bool:
            return check is None or (settings.fail_fast and not check.passed)

        with ExitStack() as stack:
            starts = [
                partial(self._start, check, log, number, stack) for check, log in zip(self._commands, logs, strict=True)
            ]
            others = [stack.enter_context(Keeper.start()) for _ in starts[1:at_once]]
            for check in run_in_parallel(starts, (context.keeper, *others), is_enough):
                if check is None:
                    return None
                context.tell(check_finished(check))
                results.append(check)
        if len(results) < len(starts) and not any(map(is_enough, results)):  # an interrupt came before the rest
            return None
        return tuple(results)

    def _start(
        self, check: CheckCommand, log_path: str, number: int, stack: ExitStack, keeper: Keeper
    ) -> Running[Check | None] | None:
        """Start a check; return None if the run is interrupted."""
        context, timeout = self._context, self._context.settings.check_timeout or None
        if context.interrupt.level:
            return None
        command = Command(argv=("/bin/sh", "-c", check.command), cwd=str(context.root), env=context.child_env(number))
        context.restore_home()
        if context.sandboxes_checks:
            command = context.sandboxed(command)
        changed_files = self._watch() if self._watch else tuple
        log = stack.enter_context(context.log(os.path.join(context.root, log_path)))
        process = context.process(command, timeout=timeout, keeper=keeper)
        output = process.start_capture(head=context.settings.quoted, tail=ERROR_LIMIT, log=log, redact=context.redact)
        context.tell(events.CheckStarted(check.command))

        def result() -> Check | None:
            log.close()
            context.report_problems(log, keeper=keeper)
            ended, changed = output(), changed_files()
            if ended.exit.ended_by == "interrupt":
                return None
            void = CHANGED.format(listed(changed, 5)) if changed else ""
            made = check_result(context.redact.text(check.command), ended, process.limits.turn, check.hint)
            return replace(made, passed=made.passed and not void, action=check.fail_action, log=log_path, void=void)

        return process, result


def check_result(name: str, output: Output, timeout: float | None, hint: str) -> Check:
    """Return the result of a check that ran to its end or to its timeout."""
    ended = output.exit
    return Check(
        name=name,
        passed=ended.code == 0 and not ended.ended_by,
        # A program that SIGKILL ended has the exit code 137, as in a shell.
        exit_code=128 - ended.code if ended.code is not None and ended.code < 0 else ended.code,
        head=output.head,
        tail=output.tail,
        cut=output.cut,
        hint=hint,
        duration=ended.duration,
        timeout=timeout if ended.ended_by == "turn-timeout" else None,
    )


# Files that decide what a program does, although its command line doesn't name them. They may not exist yet.
RECIPES = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile"),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "cargo": (".cargo/config.toml", "build.rs"),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), ("package.json",)),
}

# Files that tell agents and other tools which programs to run, even when the user starts them later.
TOOL_SETTINGS = (
    *(".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".codex/config.toml", ".codex/hooks.json"),
    *("opencode.json", "opencode.jsonc", ".gemini/settings.json", ".qwen/settings.json", ".amp/settings.json"),
    *(".cursor/hooks.json", ".cursor/mcp.json", ".envrc", ".vscode/tasks.json", ".devcontainer/devcontainer.json"),
)

Content = tuple[int, int]
"""The size and hash of a file."""


class WatchedFiles:
    """Files of the workspace whose changes are reported, once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._groups: list[tuple[str, dict[str, Content | None]]] = []

    def remember(self, paths: Iterable[str], message: str) -> None:
        """Watch these files. In the message, `{names}` stands for those that changed, and `{first}` for one of them."""
        self._groups.append((message, {path: self._read(path) for path in paths}))

    def take_changes(self) -> Iterator[str]:
        """Yield a message for each group with files that changed, and forget those."""
        for message, files in self._groups:
            if changed := [path for path, before in files.items() if self._read(path) != before]:
                yield message.format(names=listed(changed, 5), first=changed[0])
            for path in changed:
                del files[path]

    def _read(self, path: str) -> Content | None:
        try:
            content = read_given(os.path.join(self._root, path))
        except FileNotFoundError:
            return None
        except OSError:  # a folder, or unreadable
            return -1, 0
        return len(content), hash(content)


def files_of_check(command: str, root: str) -> list[str]:
    """Return the files that a command line names, and those that decide what its programs do, relative to `root`. The
    latter need not exist."""
    named = [word.strip("'\"<>") for word in re.findall(r"[^\s;&|()]+", command)]
    programs = [os.path.basename(word) for word in named]
    deciding = [name for program in programs for name in RECIPES.get(program, ())]
    modules = [module.replace(".", "/") for option, module in pairwise(named) if option == "-m"]
    # Python prefers these to its own modules.
    deciding += [f"{module}{end}" for module in modules for end in (".py", "/__init__.py")]
    if "make" in programs:  # a file with the name of a target makes `make` do nothing
        deciding += named
    named = [name for name in named if name and os.path.isfile(os.path.join(root, name))]
    paths = [os.path.relpath(os.path.join(root, name), root) for name in (*named, *deciding) if name]
    return [path for path in dict.fromkeys(paths) if not path.startswith("..") and path != "."]


def check_finished(check: Check) -> events.CheckFinished:
    return events.CheckFinished(
        name=check.name,
        passed=check.passed,
        exit_code=check.exit_code,
        duration_s=check.duration,
        log=check.log,
        output="" if check.passed else check.tail,
        action="" if check.passed else check.action,
        timeout=check.timeout,
        void=check.void,
    )


def slugs(commands: Sequence[str]) -> list[str]:
    """Return a name for the log of each command: letters and digits, short, and unique."""
    names: dict[str, None] = {}
    seen: dict[str, int] = {}  # the last number of each name; there may be thousands of similar checks
    for command in commands:
        # `./mvnw clean install -T 2C` is `mvnw_clean_install_T_2C`
        name = re.sub("[^A-Za-z0-9]+", "_", command).strip("_")[:SLUG_LENGTH].rstrip("_") or "check"
        unique = name
        while unique in names:
            seen[name] = seen.get(name, 0) + 1
            unique = f"{name}_{seen[name]}"
        names[unique] = None
    return list(names)
