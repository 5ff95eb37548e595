"""The command `ralph`: run one command line, and turn whatever happens into an exit code.

Errors become exit codes only here."""

import difflib
import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from shlex import quote

import click
from click.shell_completion import get_completion_class

from ralph import __version__
from ralph.cli.table import CONTEXT, EVERYDAY, SECTIONS, SUMMARIES, CommandGroup, Values, command, find
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import head
from ralph.errors import UserError, complain, shortage
from ralph.options.command_options import usage_error
from ralph.options.option import Option
from ralph.process.signals import restore_signals
from ralph.process.streams import open_standard_streams

BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141

PLAYING = ("run", "loop", "task", "job", "resume")
"""Commands that handle signals themselves once a run has begun; before that, a signal ends them at once. In the other
commands Ctrl-C raises an exception, so that they can clean up."""
VERBOSE = ("-v", "-V")
OWN_OPTIONS = (*VERBOSE, "--version", "-h", "--help")
"""The options of `ralph` without a command."""
INTERNAL = ("run-gate", "run-task")
"""Commands that only `ralph work` starts."""

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""The disk is full, or the terminal is gone."""
PATH_ERRORS = (
    *(errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG),
)
"""Something else is in the place of a file: a link, a pipe or a folder, or ralph may not use it, or no file has such a
name."""


def run_cli(argv: list[str]) -> int:
    """Return the exit code: the outcome's, 2 for bad input, 130 for Ctrl-C, 3 for a bug in ralph."""
    open_standard_streams()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - used until the process ends
    return exit_code(lambda: dispatch(argv))


def exit_code(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; report an error in one line."""
    try:
        try:
            code = run()
            if code == 0 and sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()  # only now do we know whether the output could be written
            return code
        except Exception as error:  # noqa: BLE001 - the one boundary: a bug must not look like a result
            return report_error(error)
    except KeyboardInterrupt:  # also while an error is reported
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        _discard_output(1, 2)  # the reader may be gone
        return INTERRUPTED


def report_error(error: Exception) -> int:
    """Print what went wrong, with a hint; return the exit code."""
    if isinstance(error, click.UsageError):
        error = usage_error(error)
    if isinstance(error, BrokenPipeError):
        _discard_output(1)
        return BROKEN_PIPE
    user_error = error if isinstance(error, UserError) else _system_error(error)
    if user_error is None:
        return _report_bug(error)
    complain(user_error.message, user_error.hint)
    return BAD_INPUT


def _system_error(error: Exception) -> UserError | None:
    """Return the UserError for an error that the machine or the user caused; None for a bug."""
    number, name = (error.errno or 0, error.filename) if isinstance(error, OSError) else (0, None)
    if number in PATH_ERRORS and name:
        path = head(str(name), 1000, "…")
        return UserError(f"cannot use {path}: {os.strerror(number)}", "check what is there, and its owner")
    if number in WRITE_ERRORS:
        return UserError(f"cannot write: {os.strerror(number)}", "free some space, or redirect the output")
    if short := shortage(error):
        return short
    try:
        os.getcwd()
    except FileNotFoundError:
        return UserError("the current folder was deleted", "change to another one")
    return None


def _report_bug(error: Exception) -> int:
    redact = Redactor(secret_values(os.environ)).text
    try:
        fd, path = tempfile.mkstemp(".txt", "ralph-bug-")
    except OSError as trouble:  # possibly the cause of the error as well
        complain(f"cannot make a temporary file: {trouble.strerror}", "free some space, or set TMPDIR")
        return BAD_INPUT
    with open(fd, "w", errors="replace") as file:
        file.write(redact("".join(traceback.format_exception(error))))
    complain(
        f"internal error: {type(error).__name__}: {redact(str(error))}",
        f"this is a bug in ralph; the traceback is in {path}",
    )
    return BUG


def _discard_output(*streams: int) -> None:
    """Redirect these file descriptors to /dev/null, so that buffered output can't fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream)


def with_command(argv: list[str]) -> list[str]:
    """Put `run`, the default command, in front of a goal of several words or an option of `run`."""
    if len(argv) > 1 and argv[0] in VERBOSE:  # alone it prints the version
        command, *words = with_command(argv[1:])
        return [command, argv[0], *words]
    if argv and argv[0] not in OWN_OPTIONS and (argv[0].startswith("-") or " " in argv[0].strip()):
        return ["run", *argv]
    return argv


def dispatch(argv: list[str]) -> int:
    """Run the command that the words name; return its exit code."""
    argv = with_command(argv)
    if not argv or argv[0] not in PLAYING:
        restore_signals()
    if argv and argv[0] in INTERNAL:
        from ralph.backlog.child_process import run_child

        return run_child(argv[0], argv[1:])
    if not argv and COMPLETE_VARIABLE not in os.environ:
        argv = ["help"]
    try:
        result = root.main(argv, prog_name="ralph", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    return result if isinstance(result, int) else 0


# Names that people may try, and the command that does what they mean.
SYNONYMS = {
    **dict.fromkeys(("status", "stats", "list", "ls", "jobs", "tasks", "top"), "ps"),
    **dict.fromkeys(("cancel", "kill", "abort", "end", "quit"), "stop"),
    **dict.fromkeys(("merge", "apply", "land"), "accept"),
    **dict.fromkeys(("undo", "restore", "rollback", "reset"), "rewind"),
    **dict.fromkeys(("continue", "restart", "retry"), "resume"),
    **dict.fromkeys(("config", "setup", "settings"), "init"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("log", "tail", "follow"), "logs"),
    **dict.fromkeys(("web", "server", "dashboard"), "serve"),
    **dict.fromkeys(("start", "exec"), "run"),
    **dict.fromkeys(("rm", "remove", "reject", "drop"), "discard"),
    **dict.fromkeys(("gc", "prune"), "clean"),
    **dict.fromkeys(("tui", "screen"), "ui"),
    **dict.fromkeys(("answer", "say", "note"), "tell"),
    "supervise": "task",
    "supervisor": "task",
    "example": "demo",
}
COMPLETE_VARIABLE = "_RALPH_COMPLETE"  # set by the shell that asks for completions


class Root(CommandGroup):
    """The command `ralph`. Without arguments it lists the everyday commands, with `--help` all of them."""

    shows_all = True

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return find(name) if name in SUMMARIES else None

    def unknown_command(self, ctx: click.Context, name: str) -> UserError:
        if matches := difflib.get_close_matches(name, [*SYNONYMS, *SUMMARIES], 1):
            near = SYNONYMS.get(matches[0], matches[0])
            hint = f"did you mean `ralph {near}` ({SUMMARIES[near]})?"
        else:
            start = f"ralph run -f {quote(name)}" if os.path.isfile(name) else f'ralph run "{name} …"'
            hint = f"`ralph help --all` lists the commands; to start an agent: {start}"
        return UserError(f"no such command: {name}", hint)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, SUMMARIES))
        sections = SECTIONS
        if not self.shows_all:
            sections = {"Everyday commands": {name: SUMMARIES[name] for name in EVERYDAY}}
        for title, section in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), summary) for name, summary in section.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        more = "ralph help COMMAND explains one" + ("" if self.shows_all else ", ralph help --all lists the rest")
        formatter.write_text(f"{more}.")


@click.group(cls=Root, context_settings=CONTEXT)
@click.version_option(__version__, "-v", "-V", "--version", message="ralph %(version)s")
def root() -> None:
    """Run a coding agent in a loop until the work is verifiably done.

    Try `ralph demo`. Then, in your repository: ralph loop "Make the tests pass" --check "pytest -q"
    """


@command(Option("--all", "List every command."), words="[COMMAND]")
def help(values: Values, words: list[str]) -> int:  # noqa: A001 (the command's name)
    """Show the help of a command, or list the commands."""
    root.shows_all = bool(values.get("all"))
    root.main([*words, "--help"], prog_name="ralph", standalone_mode=False)
    return 0


@command(words="bash|zsh|fish")
def completion(values: Values, words: list[str]) -> int:
    """Print the completion script for your shell.

    eval "$(ralph completion bash)"   # in ~/.bashrc

    eval "$(ralph completion zsh)"    # in ~/.zshrc, after compinit

    ralph completion fish > ~/.config/fish/completions/ralph.fish
    """
    shell = get_completion_class(" ".join(words))
    if shell is None:
        raise UserError("no shell named", "ralph completion bash, zsh or fish")
    print(shell(click.Command("ralph"), {}, "ralph", COMPLETE_VARIABLE).source())
    return 0
