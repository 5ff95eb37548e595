"""Commands that steer a run: `ralph tell`, `pause`, `stop`, `ask`, and `resume`, which continues it by its journal."""

import os
import sys
import time
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.actions import control
from ralph.backlog.task_requests import tell_task
from ralph.cli.play import play
from ralph.cli.request import Shown, one_run
from ralph.cli.table import DIRECTORY, Values, command, folder_of
from ralph.cli.work import resume as resume_backlog
from ralph.core.events import Notice
from ralph.core.model import Outcome, Run
from ralph.core.secrets import MARK
from ralph.core.text import nickname, one_line
from ralph.errors import UserError
from ralph.options import command_options
from ralph.options.option import Option, as_settings, only, setting
from ralph.process.keeper import Keeper
from ralph.run import request as requests
from ralph.run.request import RunRequest
from ralph.settings import override
from ralph.store.journal import StoredRun, load_run
from ralph.store.mailbox import Mailbox, ask_by_file
from ralph.store.register import Listed, backlogs_in, find_workspace, run_at
from ralph.supervise.supervision import supervise_task


@command(
    DIRECTORY, words="[RUN] TEXT", examples=('ralph tell "The API moved to port 8080"', "ralph tell k3fa - < advice.md")
)
def tell(values: Values, words: list[str]) -> int:
    """Leave a note for the next prompt of a run. Several notes queue up. If the agent has asked something, the note
    answers its oldest question."""
    *named, text = words or [""]
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("no text to send", 'ralph tell [RUN] "TEXT"; - reads the text from standard input')
    if len(named) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "put the text in quotes")
    folder = folder_of(values)
    here = find_workspace(folder)
    has_backlogs = bool(backlogs_in(here / ".ralph"))
    if named and has_backlogs and (confirmation := tell_task(named[0], text, folder)):  # the task's loop is not running
        print(confirmation)
        return 0
    run = one_run(values, named, control.why_not_tell)
    questions = control.tell(run, text)
    if questions:
        print(f"answered: {one_line(questions[0].text)}")
    later = f"run {run.id} is not running; its next prompt carries it after `ralph resume {run.id}`"
    print(f"the next prompt of run {run.id} carries it" if run.is_alive else later)
    for question in questions[1:]:
        print(f"still asked: {one_line(question.text)}")
    return 0


@command(DIRECTORY, words="[RUN]", examples=("ralph pause", "ralph pause k3fa"))
def pause(values: Values, words: list[str]) -> int:
    """Pause a run: the current turn finishes, and no other starts until `ralph resume`. A pause doesn't count against
    --max-time."""
    run = one_run(values, words, control.why_not_running)
    control.pause(run)
    print(f"run {run.id} pauses before its next turn; continue with `ralph resume {nickname(run.id)}`")
    return 0


POLL_INTERVAL = 0.05  # seconds


@command(
    Option("--now", "Kill the current turn as well, with everything that it started."),
    Option("--wait", "Return when the run has ended."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph stop", "ralph stop --now k3fa"),
)
def stop(values: Values, words: list[str]) -> int:
    """Stop a run as Ctrl-C would: the current step may finish, within the run's --grace. `ralph resume` continues a
    stopped run."""
    run = one_run(values, words, control.why_not_running)
    gently = "stops after the current step; `ralph stop` again stops it now"
    print(f"run {run.id} {'stops now' if control.stop(run, bool(values.get('now'))) else gently}")
    while values.get("wait") and (current := run_at(run.place)) and current.is_alive:
        time.sleep(POLL_INTERVAL)
    return 0


@command(words="QUESTION", examples=('ralph ask "Which of the two APIs should I keep?"',))
def ask(values: Values, words: list[str]) -> int:
    """For agents inside a run: ask the person who started the run. The answer is in the next prompt; with
    --on-question wait, the run waits for it."""
    text = " ".join(words)
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("no question", 'ralph ask "QUESTION"; - reads it from standard input')
    folder = os.environ.get("RALPH_RUN_FOLDER", "")
    if not folder:
        raise UserError("not inside a run", 'only an agent can ask; to write to an agent: ralph tell "TEXT"')
    if not Path(folder).is_dir():
        raise UserError(f"folder of the run not found: {folder}", "continue without an answer")
    if not ask_by_file(text):
        Mailbox(Path(folder)).ask(text)
        run = run_at(folder)
        if run and run.is_alive:
            control.wake(run)
    print("The question is passed on. End your turn: the answer, if any, comes with the next prompt.")
    return 0


SPENT = {
    Outcome.EXHAUSTED: ("all its iterations", ("max_iterations",), "-m N"),
    Outcome.BUDGET: ("its budget", ("max_cost", "max_tokens"), "--max-cost USD or --max-tokens N"),
    Outcome.TIMEOUT: ("its time", ("max_time",), "--max-time TIME"),
}
"""What each limit has used up, and the options that give the run more of it."""
_NEW_LIMIT = "A new limit for the whole run."
CHANGES = (
    setting("maximumIterations", "-m --max-iterations", "N more iterations."),
    setting("maxCost", text=_NEW_LIMIT),
    setting("maxTokens", text=_NEW_LIMIT),
    setting("maxTime", text=_NEW_LIMIT),
    setting("until", text="Another claim that counts from now on, for example `checks`."),
    setting("then", text="An agent that takes over at once if the run is stuck, else when it is."),
    setting("yolo", text="Let the agent use its tools without asking from now on."),
    setting("sandbox.enabled", text="Run it in a sandbox from now on (Linux)."),
    setting("tests", text="may-change: accept test and protected files as they are now; green checks end the run."),
    setting("session", text="Start each turn in a fresh session from now on, or continue the last one."),
)
"""The options that change the settings of the run."""


@command(
    *CHANGES,
    DIRECTORY,
    *only(command_options.OUTPUT, "json", "quiet", "verbose"),
    words="[RUN]",
)
def resume(values: Values, words: list[str]) -> int:
    """Continue a run: a paused one, the last unfinished one here, or RUN.

    Iteration numbers continue, nothing that was recorded as done is repeated, and a run that waited for a usage limit
    waits for the rest of it."""
    accepts_files = bool(words) and values.get("tests") == "may-change"
    ended = one_run(values, words, partial(control.why_not_resume, accepts_files=accepts_files))
    if ended.is_alive:
        # The end of a pause: the process that plays the run continues.
        if any(option.name in values for option in CHANGES):
            raise UserError(f"run {ended.id} is running: its limits are fixed", "stop it first: ralph stop")
        print(f"run {ended.id} continues" + (" without an answer" if control.unpause(ended) else ""))
        return 0
    mailbox = Mailbox(ended.place)
    mailbox.unpause()
    mailbox.sign_stop()
    display = Shown.parse(values)
    return ended.by_kind(partial(_resume_run, ended, display, values), partial(resume_backlog, ended, display))()


def _resume_run(ended: Listed, display: Shown, values: Values) -> int:
    story = load_run(ended.folder.journal)
    request = requests.read(ended.id)
    notices = refuse_redacted(request)
    request, place = relocate(request, ended.folder.path), None
    if request.task:
        # A task starts again: its markers are removed, and its attempts are counted from one.
        request = with_limits(request, StoredRun(run=Run(id="")), values)
        place = supervise_task(request, reopens=True)
    else:
        accepts_files = values.get("tests") == "may-change"
        refuse_unresumable(story, has_reason=accepts_files or bool(Mailbox(ended.place).read().notes))
        request = with_limits(request, story, values)
    with Keeper.start() as keeper:
        _, stop = play(
            request,
            keeper,
            display,
            place=place,
            story=None if place else story,
            accepts_files=values.get("tests") == "may-change",
            notices=notices,
        )
        return stop.outcome.exit_code


def relocate(request: RunRequest, folder: Path) -> RunRequest:
    """Return the request with the folder where the run was found: its workspace or task may have been moved."""
    recorded, actual = Path(request.task or request.workspace), folder.parents[2]
    old_folder = recorded / ".ralph" / "runs" / folder.name
    if folder.parents[1].name != ".ralph" or (old_folder.exists() and old_folder.samefile(folder)):
        return request
    goal = Path(request.goal_file)
    if request.goal_file and goal.is_relative_to(recorded):
        request = replace(request, goal_file=str(actual / goal.relative_to(recorded)))
    return replace(request, task=str(actual)) if request.task else replace(request, workspace=str(actual))


def refuse_unresumable(story: StoredRun, has_reason: bool) -> None:
    """Raise if there is nothing to continue. A run that is done continues for a reason: its agent has notes to read, or
    a person accepts its tests as they are."""
    if story.is_done and not has_reason:
        raise UserError(f"run {story.run.id} is done", "start a new one with `ralph run`")
    if story.missing or story.started is None:
        gap = f"iteration {story.missing}" if story.missing else "its start"
        raise UserError(
            f"the journal of run {story.run.id} is damaged: {gap} cannot be read",
            "start a new run: the work is in the workspace, and in refs/ralph/ of its repository",
        )


def refuse_redacted(request: RunRequest) -> tuple[Notice, ...]:
    """Raise if the settings contained a key, which is never written down; return a notice if the goal did."""
    mark = MARK.decode()
    if mark in requests.encode(replace(request, goal_text="")).decode():
        raise UserError(
            "this run was started with a key in its settings, which ralph did not store",
            "start a new run, and keep keys in the environment",
        )
    if mark in request.goal_text:
        return (Notice(f"the goal contained a key, which ralph did not store: the agent now reads {mark}"),)
    return ()


def with_limits(request: RunRequest, story: StoredRun, values: Values) -> RunRequest:
    """Return the request with new limits. Raise if the run has used up a limit and gets no more of it."""
    for name in ("max_iterations", "max_tokens"):
        if values.get(name, 1) < 1:
            raise UserError(f"--{name.replace('_', '-')} {values[name]} is too small", "give a number above 0")
    changes = as_settings(CHANGES, values)
    if "maximumIterations" in changes:
        changes["maximumIterations"] += len(story.run.iterations) - request.settings.traits.counts_continuations
    for key, earlier in (("until", request.settings.until), ("then", request.settings.then)):
        if key in changes:
            changes[key] = [*earlier, *changes[key]]
    if "sandbox" in changes:  # there the agent need not ask
        changes["yolo"] = True
    settings = override(request.settings, changes) if changes else request.settings
    outcome = story.finished.outcome if story.finished else None
    if outcome in SPENT and "until" not in values:  # a new claim may make the work done as it is
        what, names, option = SPENT[outcome]
        if not any(name in values for name in names):
            raise UserError(f"run {story.run.id} has used {what}", f"give it more: ralph resume {option}")
    return replace(request, settings=settings)
