"""What follows an iteration: ralph writes it to the progress file and, if it is green, commits it."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Run, Turn, Usage
from ralph.core.prompts import commit_message, own_words, section
from ralph.core.text import clean, listed
from ralph.errors import UserError
from ralph.git import scm
from ralph.git.client import require_git
from ralph.git.index import display_path
from ralph.git.remote import NO_HOOKS, GitConfigWatch, skipped_push_hook
from ralph.git.scm import CommandResult, Runner
from ralph.git.worktrees import Worktree, commit_all
from ralph.loop import Agent
from ralph.process.descendants import MARK
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import CannotStart, Command, own_program
from ralph.run.workspace import LocalWorkspace
from ralph.settings import Scm
from ralph.store.folder import cannot_write, write
from ralph.verdict.context import Context
from ralph.verdict.trees import Trees

Followup = Callable[[Run, Iteration], Usage | None]

COMMIT_GRACE = 0.3  # seconds for a running commit to finish; shorter than the grace after a second Ctrl-C
MIN_COMMIT_TIME = 10.0  # seconds for a commit even if the run's time is over, so that work is not left uncommitted
MESSAGE_PROMPT = "Provide a short imperative commit message for the changes. Output only the message, no explanation."


def ask_agent(agent: Agent, question: str, run: Run, purpose: str, *, number: int, tell: events.Tell) -> Turn:
    """Return the agent's turn about a question, after reporting what it cost as part of iteration `number`."""
    turn = agent.take_turn(question, run, purpose=purpose)
    if turn.usage != Usage():
        tell(events.Spent(number, purpose, turn.usage))
    return turn


def make_followups(
    agent: Agent,
    context: Context,
    *,
    trees: Trees,
    workspace: LocalWorkspace,
    finished: frozenset[tuple[int, str]] = frozenset(),
    settle: Followup | None = None,
) -> list[Followup]:
    """Return what to do after each iteration. `finished` are the SCM tasks of iterations that are already done;
    `settle`, if given, decides what is committed to the branch of the run's worktree."""
    followups: list[Followup] = [partial(write_progress, context)]  # first: it must be there even if the rest fails
    chosen = context.settings.scm
    if chosen is not None and chosen.tasks:
        commits = Commits(chosen, agent, context, trees=trees, workspace=workspace, finished=finished)
        commits.begin()
        followups.append(commits.make)
    if trees.worktree is not None:
        followups.append(settle or commit_to_branch(trees.worktree, context))
    return followups


def progress_file(context: Context) -> Path:
    """Return the path of the file with one section per iteration of this run."""
    return context.home / ".ralph" / "progress.md"


def clear_progress(context: Context) -> None:
    """Remove the progress file of an earlier run, which the agent would take for that of this run."""
    try:
        progress_file(context).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(progress_file(context), error) from None


def write_progress(context: Context, run: Run, iteration: Iteration) -> None:
    """Write the section of each iteration."""
    text = "\n".join(section(past) for past in run.iterations)
    context.restore_home()
    write(progress_file(context), context.redact(text.encode("utf-8", "replace")))


class Commits:
    """Asks the agent for a commit message, then runs the SCM tasks. A failure is reported and doesn't end the run, but
    if a hook refuses the commit, the claim doesn't count."""

    def __init__(
        self,
        settings: Scm,
        agent: Agent,
        context: Context,
        *,
        trees: Trees,
        workspace: LocalWorkspace,
        finished: frozenset[tuple[int, str]],
    ) -> None:
        self._settings, self._agent, self._context = settings, agent, context
        self._trees, self._workspace, self._finished = trees, workspace, finished
        self._is_git = Path(scm.parse_command(settings.command)[0]).stem.lower() == "git"

    def begin(self) -> None:
        """Report which files were changed before the run and stay out of its commits, and which hook is skipped."""
        if any("push" in task.split() for task in self._settings.tasks):
            tell_skipped_hook(self._context)
        if self._settings.all or "commit" not in self._settings.tasks:
            return
        if before := self._trees.changed_before():
            names = listed([display_path(path) for path in before], 5)
            reason = "changed before the run, and kept out of its commits unless the run changes it as well"
            self._context.tell(events.Notice(f"{reason}: {names} (--commit=all takes all)"))

    def make(self, run: Run, iteration: Iteration) -> Usage | None:
        context = self._context
        tasks = [task for task in self._settings.tasks if (iteration.number, task) not in self._finished]
        if iteration.is_refused or iteration.turn.failure or context.interrupt.level or not tasks:
            return None
        message = why = ""
        usage: Usage | None = None
        only: Sequence[bytes] | None = None
        if "commit" in tasks and self._has_changes():
            message, usage, why = self._ask_message(run, iteration)
        try:
            if "commit" in tasks:
                why = self._verify_again(iteration) or why
            only = None if why or self._settings.all else self._trees.changed_since()
        except UserError as error:  # the agent may have broken the repository; the files are still there
            why = error.advice
        if why:
            context.tell(events.ScmFinished(iteration.number, tasks[0], False, why))
            return usage
        run_one = partial(
            scm.run_task,
            self._settings.command,
            message=message,
            folder=context.root,
            git=self._trees.git,
            run=make_runner(context, self._trees.config_watch),
            only=only,
            nested=self._trees.new_nested,
        )
        for result in scm.run_tasks(self._settings.command, tasks, run_one):
            if result.task == "commit":
                refused = not result.ok and not result.was_stopped and scm.has_commit_hook(self._trees.git)
                self._workspace.hook_output = result.detail if refused else ""
            context.tell(events.ScmFinished(iteration.number, result.task, result.ok, result.detail))
        return usage

    def _has_changes(self) -> bool:
        """Return whether there may be something to commit. If not, no turn is spent on a message."""
        try:
            return not self._is_git or self._trees.has_uncommitted(all_files=self._settings.all)
        except UserError:  # the commit will say what is wrong
            return True

    def _ask_message(self, run: Run, iteration: Iteration) -> tuple[str, Usage, str]:
        """Ask the agent for a commit message. Return it, the cost of the turn, and the reason if
        there is no message."""
        during = replace(run, iterations=run.iterations[:-1])
        tell, number = self._context.tell, iteration.number
        turn = ask_agent(self._agent, MESSAGE_PROMPT, during, "message", number=number, tell=tell)
        if turn.failure:
            return "", turn.usage, turn.failure.reason
        message = commit_message(turn.text) or ""
        return message, turn.usage, "" if message else "the agent gave no commit message"

    def _verify_again(self, iteration: Iteration) -> str:
        """Run the checks again if the agent changed files while it wrote the message, and undo its changes if one
        fails.

        Return why the iteration cannot be committed; "" if it can.
        """
        self._workspace.guard()
        if not iteration.checks or not self._trees.has_changed(iteration):
            return ""
        checks = self._workspace.check(iteration.number)
        if checks is None:
            return "interrupted"
        if not all(check.passed for check in checks):
            what = "the agent changed files while it wrote a commit message, and the checks failed"
            self._trees.undo_since(iteration, what)
        return ""


def commit_to_branch(worktree: Worktree, context: Context) -> Followup:
    """Return a followup that commits the work of each iteration to the worktree's branch."""

    def commit(run: Run, iteration: Iteration) -> None:
        verdict = " (checks pass)" if iteration.checks and iteration.is_green else ""
        goal = clean(own_words(run.goal)[:2000])
        message = f"ralph: iteration {iteration.number}{verdict}\n\n{goal}"
        try:
            commit_all(worktree, message, make_runner(context))
        except UserError as error:
            context.tell(events.Notice(error.advice))

    return commit


def tell_skipped_hook(context: Context) -> None:
    """Report that a sandboxed run skips the pre-push hook, if there is one."""
    if context.sandbox and (skipped := skipped_push_hook(require_git(context.root, context.deadline))):
        context.tell(events.Notice(skipped))


def make_runner(context: Context, config_watch: GitConfigWatch | None = None) -> Runner:
    """Return a function that runs git commands, or those of another SCM, below the keeper: a hook that hangs ends with
    the run.

    Commits run in the sandbox, if there is one. A push is refused if the run changed where git pushes. Background
    processes of a commit, such as git's housekeeping, may continue, unless child runs would continue with them.
    """
    settings = context.settings

    def run(command: Command) -> CommandResult:
        words = command.argv
        if config_watch and "push" in words:
            try:
                config_watch.refuse_changed_push()
            except UserError as error:
                return CommandResult(126, error.advice)
        # A git that gets SIGTERM at the moment when it locks the index leaves the lock behind.
        command = replace(command, env={**command.env, MARK: context.folder.id}, term_delay=COMMIT_GRACE)
        # Hooks and filters of a commit, which an agent can change, run in the sandbox. A push runs outside, where the
        # keys are. A program other than git would follow settings that the agent wrote, so it never runs outside.
        is_git, runs_hooks = Path(words[0]).stem.lower() == "git", False
        if not is_git or any(word in ("add", "commit", "hook", "status", "update-index") for word in words[1:]):
            command, runs_hooks = context.sandboxed(command), True
        if not command.sandboxed:
            without_hooks = NO_HOOKS if context.sandbox else ()
            program = own_program(words[0], context.deadline.untrusted) or words[0]
            command = replace(command, argv=(program, *without_hooks, *words[1:]))
        if runs_hooks:
            command = context.entered(command)
        timeout = min(scm.TASK_TIMEOUT, max(context.clock.time_left(), MIN_COMMIT_TIME))
        try:
            process = KeptProcess(
                command,
                keeper=context.keeper,
                limits=Limits(turn=timeout, grace=settings.grace),  # even if the run's time is over
                interrupt=context.interrupt,
                tick=context.tick,
                keep_children=settings.keep_children or not context.keeper.has_spared,
            )
            # The first lines say what the commit is; thousands of file names may follow.
            output = process.capture(head=1000, tail=scm.MAX_OUTPUT, redact=context.redact)
        except CannotStart as error:
            return CommandResult(127, error.message)
        ended = output.exit
        if ended.ended_by:
            return CommandResult(scm.STOPPED, f"{words[0]} was ended: {ended.ended_by}")
        text = output.tail if output.tail.startswith(output.head) else f"{output.head}\n{output.tail}"
        return CommandResult(ended.code if ended.code is not None else 1, clean(text))

    return run
