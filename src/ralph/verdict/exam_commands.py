"""Parse the command of an exam: one program with arguments, whose script is outside the repository.

The command can be read in the settings and in the process list; only its script is secret. So ralph refuses a command
without a script file, and a script that is in the repository or in its history.
"""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.git.client import Git, find_git
from ralph.process.program import find_program
from ralph.sandbox.mounts import is_inside
from ralph.settings.schema import Settings
from ralph.verdict.shell_lines import is_assignment, is_runner, split_line

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/usr/bin", "/etc")
_SHELL = re.compile(r"[;&|<>`]|\$\(")
COULD_READ = "the agent could read the exam; --sandbox hides its folder"
OUTSIDE = "keep it outside the repository, such as --exam 'python ~/exams/parser.py'"


class ExamProgram(Struct, frozen=True):
    """The program of an exam: `argv` has absolute paths, `env` the variables that the command sets, and `script` is the
    file that the agent must not see."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    script: str

    @property
    def folder(self) -> str:
        return self.script if os.path.isdir(self.script) else os.path.dirname(self.script)


def parse_exam(command: str, workspace: str) -> ExamProgram:
    """Return the program of an exam's command. Raise a UserError if it names no script or cannot start."""
    try:
        commands = split_line(command)
    except ValueError as error:
        raise _cannot_start(command, str(error)[:1].lower() + str(error)[1:]) from None
    if len(commands) > 1 or _SHELL.search(command):
        raise UserError(f"the exam uses shell syntax: {one_line(command)}", f"write it to a file, and {OUTSIDE}")
    words = commands[0] if commands else []
    added = list(takewhile(is_assignment, words))
    argv = [os.path.expandvars(os.path.expanduser(word)) for word in words[len(added) :]]
    if not argv:
        raise _cannot_start(command, "it names no program")
    script_at = _script_at(argv, workspace)
    if script_at is None:
        named = [word for word in argv[1:] if "/" in word or os.path.splitext(word)[1]]
        missing = next((word for word in named if " " not in word and not word.startswith("-")), "")
        if missing:
            raise _cannot_start(command, f"file not found: {missing}")
        raise UserError(f"the exam doesn't name a script: {one_line(command)}", OUTSIDE)
    script = _find(argv[0], workspace) if script_at == 0 else os.path.join(workspace, argv[script_at])
    argv[script_at] = script = os.path.realpath(script)
    if script_at and "/" not in argv[0]:
        _find(argv[0], workspace)
    return ExamProgram(tuple(argv), dict(word.split("=", 1) for word in added), script)


def find_exams(settings: Settings, workspace: str) -> tuple[ExamProgram, ...]:
    return tuple(parse_exam(exam.command, workspace) for exam in settings.exams)


def validate_exams(settings: Settings, workspace: str) -> None:
    """Raise a UserError if these exams cannot be run in this workspace."""
    if not settings.exams:
        return
    git = find_git(Path(workspace))
    if git is None:
        raise UserError("--exam needs a git repository: it runs on a copy of a checkpoint", "git init, and commit once")
    for program in find_exams(settings, workspace):
        _refuse_known(program, git)


def hide_exams(settings: Settings, workspace: str) -> Settings:
    """Return the settings without their exams, and with a sandbox that hides these."""
    hidden = hidden_paths(settings, workspace)
    return replace(settings, exams=(), sandbox=replace(settings.sandbox, hide=(*settings.sandbox.hide, *hidden)))


def hidden_paths(settings: Settings, workspace: str) -> tuple[str, ...]:
    """Return the paths of the exams that a sandbox hides: their folders, or only the script if the folder is in use."""
    home = os.path.realpath(os.path.expanduser("~"))
    needed = (home, os.path.realpath(workspace), *map(os.path.realpath, os.environ.get("PATH", "").split(os.pathsep)))

    def is_shared(folder: str) -> bool:
        return any(is_inside(path, (folder,)) for path in (*needed, *_SHARED_FOLDERS))

    programs = find_exams(settings, workspace)
    return tuple(dict.fromkeys(program.script if is_shared(program.folder) else program.folder for program in programs))


def _find(program: str, workspace: str) -> str:
    return find_program(program, os.environ, workspace)


def _script_at(argv: Sequence[str], workspace: str) -> int | None:
    """Return the index of the exam's script in `argv`; None if there is only a runner, without an existing file."""
    if not is_runner(os.path.basename(argv[0])) and (
        "/" in argv[0] or not is_inside(_find(argv[0], workspace), _SYSTEM_FOLDERS)
    ):
        return 0
    files = (at for at, word in enumerate(argv) if at and os.path.exists(os.path.join(workspace, word)))
    return next((at for at in files if not is_runner(argv[at])), None)


def _refuse_known(program: ExamProgram, git: Git) -> None:
    """Raise if the agent can read the exam in the repository, or in its history."""
    if is_inside(program.script, (os.path.realpath(git.root), os.path.realpath(git.common_dir))):
        raise UserError(f"the exam is in the repository, where the agent reads it: {program.script}", OUTSIDE)
    if not os.path.isfile(program.script):
        return
    name = git.run("hash-object", "--no-filters", "--", program.script).decode().strip()
    if git.try_run("cat-file", "-e", name, env={"GIT_NO_LAZY_FETCH": "1"}).code == 0:
        raise UserError(
            f"the exam is in the repository's history, where the agent can read it: {program.script}",
            "write a new one, and never commit it",
        )


def _cannot_start(command: str, why: str) -> UserError:
    return UserError(f'the exam "{one_line(command)}" cannot start: {why}', "fix --exam")
