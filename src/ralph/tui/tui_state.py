"""The state of the TUI (all runs, the selected one, the options of the next one) and its commands."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.actions import control
from ralph.actions.launch import Launched, NextRun, cap_words, has_room_apart, words_about
from ralph.core.events import Event, RunFinished, TodoUpdated
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.history.feed import Feed
from ralph.history.overview import Now, is_mergeable, latest_successes, run_now
from ralph.process.ralph_child import StopLevel
from ralph.settings import settings_files
from ralph.show.event_lines import EventLines
from ralph.show.outlet import Style, outcome_tone
from ralph.show.words import money, nickname, outcome_sentence
from ralph.store.register import Listed, runs
from ralph.tui.slash_commands import TypedCommand

MAX_RUNS = 200
HINTS = {control.AT_WORK: "p pauses it", control.IS_DONE: "type a new goal"}
RESUME_HINT = "r resumes a run that ended unfinished"
SURVEY_SHARE = 50  # surveys may take one fiftieth of the time


class Started(Launched):
    """A run or a command that was started here, with the line that the user typed for it, and the message to show if it
    succeeds."""

    line = ""
    success = ""


class TuiState:
    """The state of the TUI without its widgets. `given` are options for every run started here, by name."""

    def __init__(
        self, workspace: Path, plan: Mapping[str, Any] | None = None, env: Mapping[str, str] = os.environ
    ) -> None:
        self._workspace, self._env, self.home = workspace, env, env.get("HOME", "")
        options = dict(plan or {})
        self.plan = NextRun(
            workspace=str(workspace),
            cap=options.pop("ralph", None),
            agent=options.pop("agent", ""),
            checks=tuple(options.pop("check", ())),
            given=options,
        )
        self.runs: list[Listed] = []
        self.present: dict[str, Now] = {}
        self.chosen = ""
        self.launched: list[Started] = []
        self._next_survey = 0.0

    @property
    def run(self) -> Listed:
        """The run that is shown."""
        run = next((run for run in self.runs if run.id == self.chosen), None)
        if run is None:
            raise UserError("no run yet", "type a goal to start one")
        return run

    def carry_out(self, command: TypedCommand) -> str:
        """Carry out the command; return a message about it."""
        act: Callable[[TypedCommand], str] = getattr(self, f"do_{command.name.replace('-', '_')}")
        try:
            return act(command)
        except control.Objected as error:
            raise UserError(f"{nickname(error.run)} {error.why}", HINTS.get(error.why, RESUME_HINT)) from None

    @property
    def is_due(self) -> bool:
        """Whether another survey is due. If surveys are slow, they are made less often."""
        return time.monotonic() >= self._next_survey

    def survey(self) -> None:
        """Look at all runs."""
        began = time.monotonic()
        self.plan = replace(
            self.plan, has_settings=any(map(os.path.lexists, settings_files(self._workspace, self._env)))
        )
        by_id = {run.id: run for run in runs(self._env)}
        newest = sorted(by_id.values(), key=lambda run: rank(run, by_id), reverse=True)
        self.runs = newest[:MAX_RUNS]
        successes, present = latest_successes(by_id.values()), time.time()
        self.present = {run.id: run_now(run, present, successes=successes) for run in self.runs}
        for child in self.launched:  # show a run that was started here as soon as it is registered
            run_id = next((run.id for run in self.runs if not child.run and child.plays(run)), "")
            if run_id:
                child.run = self.chosen = run_id
        if all(run.id != self.chosen for run in self.runs):  # prefer one that is running, then one in this folder
            here = [run for run in self.runs if run.facts.workspace == self.plan.workspace]
            obvious = [*(run for run in (*here, *self.runs) if run.is_alive), *here, *self.runs]
            self.chosen = obvious[0].id if obvious else ""
        now = time.monotonic()
        self._next_survey = now + (now - began) * SURVEY_SHARE

    def launch(self, words: list[str], line: str = "") -> None:
        """Start a run; `line` is what the user typed for it."""
        started = Started()
        started.start(words, self._env)
        started.line = line
        self.launched.append(started)
        self._next_survey = 0.0

    def launch_command(self, run: Listed, words: tuple[str, ...], success: str) -> None:
        """Start a command about a run; `success` is the message if it succeeds."""
        self.launch(words_about(run, *words))
        self.launched[-1].run, self.launched[-1].success = run.id, success

    @property
    def running(self) -> list["Started"]:
        """Runs started here without an outcome at the last survey. A run with an outcome is only cleaning up."""
        over = {run.id for run in self.runs if run.facts.outcome}
        return [child for child in self.launched if child.exit_code is None and child.run not in over]

    def take_ended(self) -> list[tuple[bool, str, str]]:
        """Remove the runs started here that have ended. Return whether each succeeded, its last message, and its line
        if it never began."""
        messages = []
        for child in [child for child in self.launched if child.exit_code is not None]:
            self.launched.remove(child)
            name = f"{nickname(child.run)}: " if child.run else ""
            is_success = child.exit_code == 0
            message = name + (child.success if child.success and is_success else child.error_text())
            messages.append((is_success, message, "" if child.run or is_success else child.line))
            child.close()
        return messages

    def close(self) -> None:
        """End the runs that were started here and not released. A run that already has an outcome may finish cleaning
        up."""
        running = self.running
        for child in self.launched:
            if child not in running:
                child.let_go()
            child.close()
        self.launched = []

    def do_tell(self, command: TypedCommand) -> str:
        questions = control.tell(self.run, command.text)
        if questions:
            return f"answered: {one_line(questions[0].text)}"
        later = "" if self.run.is_alive else ", once it is resumed (r)"
        return f"the next prompt of {nickname(self.run.id)} carries it{later}"

    def do_stop(self, command: TypedCommand) -> str:
        return _stop(self.run, now=command.text == "now")

    def do_pause(self, command: TypedCommand) -> str:
        control.pause(self.run)
        return f"{nickname(self.run.id)} pauses before its next turn; r resumes it"

    def do_resume(self, command: TypedCommand) -> str:
        """End a pause, or start a process that resumes the run."""
        run = control.reload(self.run, control.why_not_resume)
        if run.is_alive:
            return f"{nickname(run.id)} continues" + (" without an answer" if control.unpause(run) else "")
        how = [f"--{command.text}"] if command.text else []
        self.launch(["resume", run.id, "--quiet", "-C", run.facts.workspace, *how])
        return f"{nickname(run.id)} resumes"

    def do_accept(self, command: TypedCommand) -> str:
        name, run = nickname(self.run.id), self.run
        if run.by_kind(not is_mergeable(run), False):
            raise UserError(f"{name} has no branch to accept or discard", "only ended runs in a worktree have one")
        is_accepted = command.name == "accept"
        self.launch_command(run, (command.name, run.id), "merged into your branch" if is_accepted else "discarded")
        return f"accepting {name}: its checks run once more" if is_accepted else f"discarding {name}"

    do_discard = do_accept

    def do_retry(self, command: TypedCommand) -> str:
        run = self.run
        work = next((run for run in self.runs if run.id == (run.facts.work or run.id)), run)
        key, _, note = command.text.partition(" ")
        then = "" if work.is_alive else "; r resumes the backlog"
        self.launch_command(work, ("work", "retry", key, note), f"{key} is retried{then}")
        return f"retrying {key}"

    def do_dismiss(self, command: TypedCommand) -> str:
        ended = [run for run in self.runs if not run.is_alive and self.present[run.id].needs_you]
        chosen = ended if command.text == "all" else [self.run]
        for run in chosen:
            control.dismiss(run)
        self._next_survey = 0.0
        return "dismissed " + (nickname(self.run.id) if command.text != "all" else plural(len(chosen), "run"))

    def do_cancel_ralph(self, command: TypedCommand) -> str:
        """End a run at once: one that is still starting, else the one shown."""
        starting = [child for child in self.launched if not child.run]
        if starting:
            starting[-1].request_stop(StopLevel.NOW)
            starting[-1].line = ""
            return "the run that was just started ends now"
        return _stop(self.run, now=True)

    def do_goal(self, command: TypedCommand) -> str:
        plan, apart = self._place_for_another()
        self.launch(plan.words(command.text), command.text)
        return f"{apart}starting: {self.plan_words}"

    def do_ralph_loop(self, command: TypedCommand) -> str:
        plan, apart = self._place_for_another()
        self.launch(plan.promise(command.text, command.values), f"/{command.name} {command.text}")
        return f"{apart}starting: loop until the promise"

    do_ulw_loop = do_ralph_loop

    @property
    def plan_words(self) -> str:
        """Describe in a few words what a goal would start."""
        options = self.plan.given
        words = [
            str(self.plan),
            f"model {options['model']}" if options.get("model") else "",
            f"at most {money(options['max_cost'])}" if options.get("max_cost") else "",
            "in a worktree" if options.get("worktree") else "",
            "in a sandbox" if options.get("sandbox") else "",
            "yolo" if options.get("yolo") else "",
        ]
        return ", ".join(part for part in words if part)

    def _place_for_another(self) -> tuple[NextRun, str]:
        """Return the options of the next run. If this folder is busy, it gets a worktree and a note that says so."""
        place = self.plan.workspace
        alive = (run for run in self.runs if run.is_alive)
        busy = [nickname(run.id) for run in alive if run.facts.workspace == place and not run.facts.branch]
        busy += ["another run" for child in self.launched if not child.run]
        if self.plan.given.get("worktree") or not busy:
            return self.plan, ""
        name = busy[0]
        if not has_room_apart(place):
            raise UserError(f"{name} is running here", "/tell TEXT talks to it, /stop ends it")
        apart = replace(self.plan, given={**self.plan.given, "worktree": True})
        return apart, f"{name} is running here, so this one gets a worktree · "

    def do_ralph(self, command: TypedCommand) -> str:
        if command.number is not None:
            self.plan = replace(self.plan, cap=command.number)
        elif command.text == "default":
            self.plan = replace(self.plan, cap=None)
        cap = self.plan.cap
        cap_text = "not set" if cap is None else {0: "off", -1: "none"}.get(max(cap, -1), str(cap))
        return f"cap: {cap_text} · the next run: {self.plan if cap is None else cap_words(cap)}"

    def do_check(self, command: TypedCommand) -> str:
        if command.text == "off":
            self.plan = replace(self.plan, checks=())
        elif command.text and command.text not in self.plan.checks:
            self.plan = replace(self.plan, checks=(*self.plan.checks, command.text))
        return f"checks: {' · '.join(self.plan.checks) or 'none'}"

    def do_agent(self, command: TypedCommand) -> str:
        if command.text:
            self.plan = replace(self.plan, agent="" if command.text == "default" else command.text)
        return f"agent: {self.plan.agent or 'as the settings say, or the first that is installed'}"


def rank(run: Listed, by_id: Mapping[str, Listed]) -> tuple[bool, str, bool, bool, str]:
    """Return the sort key of a run: running before ended, newest first, a backlog above its tasks."""
    work = by_id.get(run.facts.work, run)
    return work.is_alive or run.is_alive, work.id, run is work, run.is_alive, run.id


def _stop(run: Listed, now: bool = False) -> str:
    how = "now" if control.stop(run, now) else "after its current turn; S stops it now"
    return f"{nickname(run.id)} stops {how}"


class ShownRun:
    """The run that is shown: its growing journal as facts (`fold`) and as lines."""

    def __init__(self, run: Listed, style: Style) -> None:
        self.run = run.id
        self._journal, self._style = run.folder.journal, style
        self._feed: Feed | None = None

    def open(self, columns: int) -> list[str]:
        """Read the journal from the beginning; return its latest lines, at most `columns` wide."""
        self.close()
        self._feed = Feed.open(self._journal)
        self._columns, self._lines = columns, EventLines(self._style, announces=False, columns=columns)
        self.fold = self._lines.fold
        self.fold.history.run = self.run
        lines = self.read_new() or []
        if lines and self._feed.left_out:
            lines.insert(0, self._style.paint("dim", f"{self._style.marks.more} earlier events: see `ralph logs`"))
        return lines

    def read_new(self) -> list[str] | None:
        """Read what is new and return its lines; None if nothing is new."""
        assert self._feed
        if self._feed.is_replaced:
            return self.open(self._columns)
        news = self._feed.read()
        lines: list[str] = []
        for item in news:
            if item.is_recent:
                lines += stream_lines(self._lines, item.event, item.entry.at)
            else:
                self.fold.add(item.event, item.entry.at)
        return lines if news else None

    def close(self) -> None:
        if self._feed:
            self._feed.close()
            self._feed = None


def stream_lines(lines: EventLines, event: Event, at: float) -> list[str]:
    """Return the lines for an event: none for the todo list, which has a pane. The last event adds the outcome."""
    if isinstance(event, TodoUpdated):
        lines.fold.add(event, at)
        return []
    rows = lines(event, at)
    if isinstance(event, RunFinished):
        outcome = lines.talk.rows(outcome_sentence(lines.fold.history), 0)
        return [*rows, "", *(lines.style.paint(outcome_tone(event.exit_code), row) for row in outcome)]
    return rows
