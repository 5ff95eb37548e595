"""The one commit that `ralph accept` makes of a run: its message, and the user's pre-commit hook."""

from collections.abc import Sequence
from pathlib import Path

from ralph.core.model import Check
from ralph.core.prompts import own_words
from ralph.core.text import clean, head, one_line
from ralph.git.client import Git, user_environment
from ralph.git.scm import CommandResult
from ralph.git.worktrees import Worktree
from ralph.run.context import Context
from ralph.run.followups import make_runner

TRAILER = "Ralph-Run"
LONGEST_TITLE = 72
LONGEST_GOAL = 2000
MAX_STAT = 20  # files in the message


def squash_message(git: Git, run_id: str, goal: str, *, base: str, tree: str, checks: Sequence[Check]) -> str:
    """Return the message for the work of a run: goal, changed files, checks, and the run's id as a trailer."""
    told = head(clean(own_words(goal)).strip(), LONGEST_GOAL, " …") or f"Work of run {run_id}"
    title = head(one_line(told.partition("\n")[0].lstrip("# ")), LONGEST_TITLE - 2, " …")
    args = ("--no-ext-diff", "--no-color", "--stat=72", f"--stat-count={MAX_STAT}")
    stat = git.run("diff", *args, base, tree).decode("utf-8", "replace").rstrip()
    passed = "\n".join(f"- {one_line(check.name)}" for check in checks)
    parts = [title, "" if title == told else told, stat, f"Checks that pass:\n{passed}" if passed else ""]
    return with_trailer("\n\n".join(part for part in parts if part), run_id)


def with_trailer(message: str, run_id: str) -> str:
    return f"{message.strip()}\n\n{TRAILER}: {run_id}\n"


def is_accepted(git: Git, run_id: str, tip: str) -> bool:
    """Return whether the user's branch has a commit made of this run, although the run's own commits are not in it."""
    out = git.run("log", f"--format=%(trailers:key={TRAILER},valueonly)", f"{tip}..HEAD")
    return run_id in out.decode("utf-8", "replace").split()


def run_pre_commit(tree: Worktree, context: Context) -> CommandResult:
    """Run the user's pre-commit hook in the worktree, in the sandbox if the run had one."""
    words = ("git", "hook", "run", "--ignore-missing", "pre-commit")
    return make_runner(context)(words, Path(tree.path), user_environment())
