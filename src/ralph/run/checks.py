"""Does the work pass, and is it good? Runs the commands that verify it, all of them, each in its own process group.
Every so many green iterations the agent reviews its own work, prompt by prompt.

Reviews belong to the iteration they follow and are not counted. The checks run after every review turn, and theirs is
the last word: a review that ends red makes its iteration red, so it is neither committed nor counted as done."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check, Iteration, Review, Run, Turn
from ralph.core.prompts import ERROR_LIMIT, Brief, check_note, guardrails
from ralph.core.text import listed
from ralph.files import read_given
from ralph.loop import Parts
from ralph.process.keeper import Keeper
from ralph.process.process import Output, Process, Running, run_in_parallel
from ralph.process.program import Command
from ralph.run.context import Context
from ralph.run.sandboxing import open_run_sandbox
from ralph.settings import CheckCommand, ReviewPrompt, Reviews, Settings

SLUG_LENGTH = 50
CHANGED = (
    "protected files were changed while it ran, so that it does not count: {}; where the check itself writes them, "
    "leave them out with --protect '!PATTERN'"
)


class Checks:
    """The commands are as they were when the run started: what the agent does to the settings changes nothing. How long
    one may take, how many run at once and whether a red one is enough is in the `settings`.
    `witness` begins to look at what no check may see changed, and says at the end what was, for whatever reason."""

    def __init__(self, context: Context, guards: Sequence[CheckCommand], settings: Settings) -> None:
        self._context, self._guards, self._settings = context, tuple(guards), settings
        self._timeout = settings.check_timeout or None
        self.witness: Callable[[], Callable[[], tuple[str, ...]]] | None = None
        self._slugs = slugs([context.redact.text(guard.command) for guard in guards])

    def run(self, number: int) -> tuple[Check, ...] | None:
        """Run all checks; return the results in their order, or None if the run was interrupted before the last."""
        folder = os.path.join(self._context.task or "", ".ralph")
        logs = [os.path.join(folder, f"guardrail_{number:03d}_{slug}.log") for slug in self._slugs]
        # After a sandboxed check ralph looks for planted files: no other check may run then.
        is_sandboxed = self._context.box and self._context.boxes_checks
        at_once = 1 if is_sandboxed else self._settings.parallel_checks
        results: list[Check] = []

        def is_enough(check: Check | None) -> bool:
            return check is None or (self._settings.fail_fast and not check.passed)

        with ExitStack() as stack:
            starts = [
                partial(self._start, guard, log, number, stack) for guard, log in zip(self._guards, logs, strict=True)
            ]
            others = [stack.enter_context(self._context.keeper.another()) for _ in starts[1:at_once]]
            for check in run_in_parallel(starts, (self._context.keeper, *others), is_enough):
                if check is None:
                    return None
                self._context.tell(finished(check))
                results.append(check)
        if len(results) < len(starts) and not any(map(is_enough, results)):  # the rest was not started
            return None
        return tuple(results)

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(guard.command for guard in self._guards)

    def _start(
        self, guard: CheckCommand, log_path: str, number: int, stack: ExitStack, keeper: Keeper
    ) -> Running[Check | None] | None:
        """Start a check, unless the run is interrupted."""
        context = self._context
        if context.interrupt.level:
            return None
        shell = ("cmd", "/c") if sys.platform == "win32" else ("/bin/sh", "-c")
        command = Command(argv=(*shell, guard.command), cwd=str(context.root), env=context.marked(number))
        context.settle_in()
        if context.boxes_checks:
            command = context.boxed(command)
        changed_files = self.witness() if self.witness else tuple
        log = stack.enter_context(context.log(os.path.join(context.root, log_path)))
        process = Process(
            command,
            keeper=keeper,
            limits=context.limits(self._timeout),
            interrupt=context.interrupt,
            tick=context.tick,
            keep_children=context.keep_children,
        )
        output = process.start_capture(head=self._settings.quoted, tail=ERROR_LIMIT, log=log, redact=context.redact)
        context.tell(events.CheckStarted(guard.command))

        def result() -> Check | None:
            log.close()
            context.tell_troubles(log, keeper=keeper)
            return self._result(guard, output(), log_path, changed_files(), process.limits.turn)

        return process, result

    def _result(
        self, guard: CheckCommand, output: Output, log_path: str, changed: tuple[str, ...], timeout: float | None
    ) -> Check | None:
        """Return the result of a check that has ended; None if it was interrupted."""
        ended = output.exit
        if ended.ended_by == "interrupt":
            return None
        # A program that SIGKILL ended has the exit code 137, as in a shell.
        code = 128 - ended.code if ended.code is not None and ended.code < 0 else ended.code
        void = CHANGED.format(listed(changed, 5)) if changed else ""
        return Check(
            name=self._context.redact.text(guard.command),
            passed=ended.code == 0 and not ended.ended_by and not void,
            exit_code=code,
            head=output.head,
            tail=output.tail,
            cut=output.cut,
            hint=guard.hint,
            action=guard.fail_action,
            log=log_path,
            duration=ended.duration,
            timeout=timeout if ended.ended_by == "turn-timeout" else None,
            void=void,
        )


# Programs that do what a file says, which their command line does not name: also one that was not there before.
RECIPES = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile"),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "cargo": (".cargo/config.toml", "build.rs"),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), ("package.json",)),
}


# What says to agents and other tools which programs to run: whoever starts one of them later obeys it.
OBEYED = (
    *(".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".codex/config.toml", ".codex/hooks.json"),
    *("opencode.json", "opencode.jsonc", ".gemini/settings.json", ".qwen/settings.json", ".amp/settings.json"),
    *(".cursor/hooks.json", ".cursor/mcp.json", ".envrc", ".vscode/tasks.json", ".devcontainer/devcontainer.json"),
)


Content = tuple[int, int]
"""Of a file: its size, and a number that stands for what is in it."""


class NamedFiles:
    """Files of the workspace about whose changes somebody wants to know, such as those that checks are made of: with
    them an agent changes what is verified."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, tuple[str, Content | None]] = {}  # in what of the top folder, and what they held

    def look(self, paths: Iterable[str]) -> None:
        """Sees what they are now."""
        self._files = {path: (path.partition("/")[0].lower(), self._content_of(path)) for path in paths}

    def news(self) -> tuple[str, ...]:
        """Those that were changed since, where that has not been said."""
        changed = [path for path in self._likely() if self._content_of(path) != self._files[path][1]]
        for path in changed:
            del self._files[path]
        return tuple(changed)

    def _likely(self) -> list[str]:
        """Those that may be others by now. That one still is not there, as most of them, a list of names tells of all
        at once: the folder that it would be in is not, either."""
        names: set[str] = set()
        if self._files:
            with suppress(OSError):
                names = set(map(str.lower, os.listdir(self._root)))
        return [path for path, (top, held) in self._files.items() if held or top in names]

    def _content_of(self, path: str) -> Content | None:
        """Nothing where there is none."""
        try:
            content = read_given(os.path.join(self._root, path))
        except FileNotFoundError:
            return None
        except OSError:  # a folder, or what nobody can read
            return -1, 0
        return len(content), hash(content)


def named_in(command: str, root: str) -> list[str]:
    """The files in the workspace that a command line names, and those that decide what its programs do, be they there
    or not: by their paths from there."""
    words = command.replace(";", " ").replace("&", " ").replace("|", " ").replace("(", " ").replace(")", " ").split()
    named = [word.strip("'\"<>") for word in words]
    programs = [os.path.basename(word) for word in named]
    deciding = [name for program in programs for name in RECIPES.get(program, ())]
    modules = [module.replace(".", "/") for option, module in pairwise(named) if option == "-m"]
    deciding += [f"{module}{end}" for module in modules for end in (".py", "/__init__.py")]  # Python's own come later
    if "make" in programs:  # a target that there is a file of counts as made
        deciding += named
    named = [name for name in named if name and os.path.isfile(os.path.join(root, name))]
    places = [os.path.relpath(os.path.join(root, name), root) for name in (*named, *deciding) if name]
    return [place for place in dict.fromkeys(places) if not place.startswith("..") and place != "."]


def finished(check: Check) -> events.CheckFinished:
    shown = "" if check.passed else check.tail
    return events.CheckFinished(
        name=check.name,
        passed=check.passed,
        exit_code=check.exit_code,
        duration_s=check.duration,
        log=check.log,
        output=shown,
        action="" if check.passed else check.action,
        timeout=check.timeout,
        void=check.void,
    )


def slugs(commands: Sequence[str]) -> list[str]:
    """A name for each command's log: letters and digits, short, and no two alike."""
    names: dict[str, None] = {}
    seen: dict[str, int] = {}  # counted on, not from one: thousands of checks may be alike
    for command in commands:
        name = "".join(char if char.isascii() and char.isalnum() else "_" for char in command)
        while "__" in name:  # `./mvnw clean install -T 2C` is `mvnw_clean_install_T_2C`
            name = name.replace("__", "_")
        name = name.strip("_")[:SLUG_LENGTH].strip("_") or "check"
        unique = name
        while unique in names:
            seen[name] = seen.get(name, 0) + 1
            unique = f"{name}_{seen[name]}"
        names[unique] = None
    return list(names)


def reviewing(plan: Reviews, quoted: int) -> Callable[[Run, Iteration, Parts], Iteration]:
    """`quoted`: how much of a red check's output the next prompt quotes."""

    def review(run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        if not is_due(plan, run, iteration):
            return iteration
        for prompt in plan.prompts:
            parts.tell(events.ReviewStarted(prompt.name))
            iteration = one_review(prompt, run, iteration, parts)
            parts.tell(events.ReviewFinished(prompt.name, iteration.is_green))
            if not iteration.checked or iteration.reviews[-1].failure:
                break
        return iteration

    def one_review(asked: ReviewPrompt, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        turns: list[Turn] = []
        prompt = asked.prompt
        for _ in range(plan.guardrail_retry_limit + 1):
            turns.append(parts.agent.take_turn(prompt, run, purpose=f"review-{asked.name}"))
            touched = (*iteration.touched, *parts.workspace.guard())
            checks = parts.workspace.check(iteration.number)
            iteration = replace(iteration, checks=checks or (), checked=checks is not None, touched=touched)
            if iteration.is_green or not iteration.checked or turns[-1].failure:
                break
            notes = tuple(check_note(check, quoted) for check in iteration.checks if not check.passed)
            prompt = guardrails(Brief(goal=prompt, number=1, notes=notes))
        done = Review(asked.name, iteration.is_green and turns[-1].failure is None, tuple(turns))
        return replace(iteration, reviews=(*iteration.reviews, done))

    return review


def is_due(plan: Reviews, run: Run, iteration: Iteration) -> bool:
    """Enough iterations since the last review that did not break off, and this one is green."""
    since = 1
    for earlier in reversed(run.iterations):
        if earlier.reviews and not any(review.failure for review in earlier.reviews):
            break
        since += 1
    is_good = iteration.is_green and iteration.turn.failure is None
    return bool(plan.prompts) and 0 < plan.review_after <= since and is_good


@contextmanager
def enclosed(context: Context, settings: Settings, workspace: str) -> Iterator[Context]:
    """The same context with a box of its own, where boxes are asked for: for checks without an agent."""
    context = replace(context, boxes_checks=settings.sandbox.checks)
    if not settings.sandbox.enabled:
        yield context
        return

    box = context.box = open_run_sandbox(context, settings, (), workspace)
    try:
        yield context
    finally:
        box.close()
