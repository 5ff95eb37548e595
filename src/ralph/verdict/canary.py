"""Ask whether checks test the copy in which they run.

Every source file of a throwaway copy is replaced by text that no language accepts. If all checks stay green there, they
read something else: the user's tree, a server outside, or no source at all. The answer is kept in the state folder.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.json import encode

from ralph.core.events import Notice, TellAll
from ralph.core.file_classes import file_class
from ralph.core.model import Check
from ralph.core.text import listed, one_line
from ralph.errors import UserError
from ralph.files import load_json, make_folder, read_given, save_file, state_folder
from ralph.git.client import Git, git_at
from ralph.git.dependencies import FOLDERS
from ralph.settings.setup_commands import setup_hint
from ralph.verdict.leads import Lead, files_that_name, find_leads

Mode = Literal["in-place", "plain"]
Answer = Literal["tested", "untested"]

# PHP prints text outside of its tags, and succeeds.
BROKEN = b"<?php <<<<<<< ralph has broken this copy on purpose, to see whether a check notices ((( ''' \"\n"
_SOURCE = re.compile(
    r"\.(py|pyx|js|jsx|mjs|cjs|ts|tsx|mts|cts|vue|svelte|go|rs|java|kt|kts|scala|groovy|rb|php|c|cc|cpp|cxx|h|hpp|m|mm|cs"
    r"|fs|swift|ex|exs|erl|hs|ml|clj|lua|pl|pm|r|jl|dart|zig|nim|sh|bash)$"
)
# Not read by a check as product code. Tests and what says how they run are in `file_classes`; t.php is a usual script.
_SETTINGS = re.compile(r"(^|/)(setup|conf)\.py$|(^|/)t\.[a-z]+$|(^|/)testing/|\.config\.[cm]?[jt]s$")
# Files that say which packages are installed: with others, the answer may be another one.
_MANIFESTS = (
    *("pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "poetry.lock", "pdm.lock", "package.json"),
    *("package-lock.json", "pnpm-lock.yaml", "yarn.lock", "composer.lock", "Gemfile.lock", "go.mod", "Cargo.toml"),
)
SLOWDOWN, EXTRA_TIME = 3, 30.0  # a broken copy may take 3 times as long as the whole one, and 30 s more


class BrokenCopy(Protocol):
    """A throwaway copy, and how a check is run there."""

    @property
    def git(self) -> Git: ...

    def passes(self, command: str, timeout: float) -> bool | None:
        """Return whether a check passes; None if it was interrupted."""
        ...


class KeptAnswer(Struct, frozen=True):
    answer: Answer
    checks: tuple[str, ...]
    mode: Mode


class Project(Struct, frozen=True):
    """What an answer depends on, apart from the mode."""

    main: str
    copy: str
    checks: tuple[str, ...]
    env: Mapping[str, str]
    setup: str = ""

    def kept_answer(self, mode: Mode) -> Answer | None:
        kept = load_json(self._path(mode), KeptAnswer)
        return kept.answer if kept else None

    def keep(self, mode: Mode, answer: Answer) -> None:
        make_folder(os.path.dirname(self._path(mode)))
        save_file(self._path(mode), encode(KeptAnswer(answer, self.checks, mode)))

    def find_lead(self) -> Lead | None:
        """Return what leads from the environment to sources in the user's tree."""
        for lead in find_leads(self.main, self.copy, self.env):
            names = os.path.relpath(lead.target, self.main).split("/")
            if not FOLDERS.intersection(names) and names[0] not in (".git", ".ralph"):
                return lead
        return None

    def _path(self, mode: Mode) -> str:
        facts = [
            self.main,
            mode,
            self.setup,
            *self.checks,
            *(self.env.get(name, "") for name in ("PATH", "VIRTUAL_ENV")),
        ]
        for name in _MANIFESTS:
            with suppress(OSError):
                facts += [name, sha256(read_given(f"{self.main}/{name}")).hexdigest()]
        key = sha256("\0".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return os.path.join(state_folder(self.env, "canary"), f"{key}.json")


class Canary:
    """Asks about the checks of one worktree when all of them are green for the first time. One that tests the copy is
    enough.

    If the checks test the copy only in the other mode, `switch` changes to it. If they do in neither, and something
    leads to the user's tree, that is an error if it `is_strict`, else a warning and an `alarm`.
    """

    def __init__(
        self,
        project: Project,
        mode: Mode,
        open_broken: Callable[[Mode], AbstractContextManager[BrokenCopy]],
        *,
        switch: Callable[[], None] | None,
        is_strict: bool,
        redact: Callable[[str], str],
        tell: TellAll,
    ) -> None:
        self._commands = {redact(command): command for command in project.checks}
        self._green: dict[str, float] = {}  # the seconds that each green check took
        self._project, self.mode, self._open, self._switch = project, mode, open_broken, switch
        self._is_strict, self._tell = is_strict, tell
        self.answer: Answer | None = None
        self.alarm = False

    def hear(self, checks: Sequence[Check]) -> bool:
        """Note results of checks. Return whether these have to run again, because the copy is seen elsewhere now."""
        for check in checks:
            self._green.pop(check.name, None)  # red here, it would be red in the broken copy whatever it reads
            self._green |= {check.name: check.duration} if check.passed else {}
        if self.answer or not self._commands.keys() <= self._green.keys():
            return False
        self.answer = self._ask(self.mode)
        if self.answer != "untested":
            self._name_files()
            return False
        if self._switch and self._ask("plain") == "tested":
            self._switch()
            self.mode, self.answer = "plain", "tested"
            text = "no check tests a copy in place of your tree, so the copy is seen at its own path from now on"
            self._tell(Notice(text, "info"))
            self._name_files()
            return True
        self._complain()
        return False

    def _ask(self, mode: Mode) -> Answer | None:
        """Return the kept answer, or run the checks in a broken copy up to the first that is red. None if that was
        interrupted, or if there is no source to break."""
        if answer := self._project.kept_answer(mode):
            return answer
        with self._open(mode) as copy:
            if not break_sources(copy.git):
                return None
            for name, command in self._commands.items():
                passes = copy.passes(command, SLOWDOWN * self._green[name] + EXTRA_TIME)
                if passes is None:
                    return None
                if not passes:
                    self._project.keep(mode, "tested")
                    return "tested"
        self._project.keep(mode, "untested")
        return "untested"

    def _name_files(self) -> None:
        """Report tracked files that name the user's tree. A check at the copy's own path may read a part of it there,
        such as the module that an absolute `replace` in go.mod names, although it tests the rest of the copy."""
        main, copy = self._project.main, self._project.copy
        if self.mode == "plain" and (names := files_that_name(main, git_at(copy))):
            self._tell(Notice(f"checks of the copy may read your tree, which is named in {listed(names, 3)}"))

    def _complain(self) -> None:
        names = [one_line(name, 200) for name in self._green]
        checks = "this check passes" if len(names) == 1 else f"{len(names)} checks pass"
        this = f"{checks} with every source file of the copy broken: {names[0]}"
        lead = self._project.find_lead()
        if lead is None:
            self._tell(Notice(f"{this}; does it read no source, or ask a server outside?", "info"))
            return
        target = os.path.relpath(lead.target, self._project.main)
        cause = f"it doesn't test the copy, but {target} of your tree ({lead.kind}: {lead.place})"
        hint = f'{setup_hint(self._project.main, self._green)}; or set "canary": false if the checks read no source'
        if self._is_strict:
            raise UserError(f"{this}; {cause}", hint)
        self.alarm = True
        self._tell(Notice(f"{this}; {cause}; {hint}"))


def break_sources(git: Git) -> list[str]:
    """Overwrite the tracked sources of a copy that are no tests, or the tests if there is nothing else; return them.

    They are not deleted: an import would then find the user's tree, and stay green.
    """
    names = [os.fsdecode(name) for name in git.run("ls-files", "-z").split(b"\0") if name]
    sources = [name for name in names if _SOURCE.search(name) and not os.path.islink(os.path.join(git.root, name))]
    broken = [name for name in sources if not (file_class(name) or _SETTINGS.search(name))] or sources
    for name in broken:
        with open(os.path.join(git.root, name), "wb") as file:
            file.write(BROKEN)
    return broken
