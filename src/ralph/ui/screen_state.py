"""What does the full screen know, and what follows from a command? All runs, the one looked at, and the next one."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.core import events
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.history.feed import Feed, News
from ralph.history.overview import RunNow, run_now
from ralph.history.run_history import Fold
from ralph.records.register import Listed, listed, runs
from ralph.run.launch import Launched, NextRun, cap_words, has_room_apart
from ralph.settings.layers import settings_files
from ralph.show.event_lines import EventLines
from ralph.show.outlet import Style, outcome_tone
from ralph.show.words import money, nickname, outcome_sentence
from ralph.steering import control
from ralph.ui.typed import TypedCommand

MOST_RUNS = 200
HINTS = {control.AT_WORK: "p pauses it", control.IS_DONE: "type a new goal"}
GO_ON = "r goes on with a run that ended unfinished"
SHARE = 50  # looking at all runs may take one fiftieth of the time


class ScreenState:
    """Everything but the screen itself. `given` are options that hold for every run started here, by name."""

    def __init__(
        self, workspace: Path, given: Mapping[str, Any] | None = None, env: Mapping[str, str] = os.environ
    ) -> None:
        self._workspace, self._env, self.home = workspace, env, env.get("HOME", "")
        said = dict(given or {})
        self.plan = NextRun(
            workspace=str(workspace),
            cap=said.pop("ralph", None),
            agent=said.pop("agent", ""),
            checks=tuple(said.pop("check", ())),
            given=said,
        )
        self.runs: list[Listed] = []
        self.present: dict[str, RunNow] = {}
        self.chosen = ""
        self.launched: list[Launched] = []
        self._typed: dict[int, str] = {}
        self._next_survey = 0.0

    @property
    def run(self) -> Listed:
        """The run that is looked at."""
        found = next((run for run in self.runs if run.id == self.chosen), None)
        if found is None:
            raise UserError("there is no run yet", "type a goal to start one")
        return found

    def carry_out(self, command: TypedCommand) -> str:
        """Does what the command says, and says what was done."""
        act: Callable[[TypedCommand], str] = getattr(self, f"do_{command.name.replace('-', '_')}")
        try:
            return act(command)
        except control.Objected as error:
            raise UserError(f"{nickname(error.run)} {error.why}", HINTS.get(error.why, GO_ON)) from None

    @property
    def is_due(self) -> bool:
        """Whether it is time for another survey: where one takes long, they are made less often."""
        return time.monotonic() >= self._next_survey

    def survey(self) -> None:
        """Looks at all runs."""
        began = time.monotonic()
        self.plan = replace(
            self.plan, has_settings=any(map(os.path.lexists, settings_files(self._workspace, self._env)))
        )
        known = {run.id: run for run in (*runs(self._env), *self._local())}
        newest = sorted(known.values(), key=lambda run: rank(run, known), reverse=True)
        self.runs = newest[:MOST_RUNS]
        self.present = {run.id: run_now(run, time.time()) for run in self.runs}
        for one in self.launched:  # a run that was started here is looked at as soon as it is known
            found = next((run.id for run in self.runs if not one.run and one.plays(run)), "")
            if found:
                one.run = self.chosen = found
        if all(run.id != self.chosen for run in self.runs):  # the obvious one: at work, and here
            here = [run for run in self.runs if run.facts.workspace == self.plan.workspace]
            obvious = [*(run for run in (*here, *self.runs) if run.is_alive), *here, *self.runs]
            self.chosen = obvious[0].id if obvious else ""
        now = time.monotonic()
        self._next_survey = now + (now - began) * SHARE

    def _local(self) -> list[Listed]:
        """Runs of this workspace that the user's register may not know."""
        folder = self._workspace / ".ralph" / "runs"
        try:
            names = sorted(os.listdir(folder))[-MOST_RUNS:]
        except OSError:
            return []
        return [run for name in names if (run := listed(folder / name))]

    def launch(self, words: list[str], line: str = "") -> None:
        """Starts a run; `line` is what was typed for it."""
        self.launched.append(Launched.start(words, self._env))
        self._typed[self.launched[-1].pid] = line
        self._next_survey = 0.0

    @property
    def at_work(self) -> list[Launched]:
        """What was started here and has no outcome yet, as the last survey saw it: who has one only tidies up."""
        over = {run.id for run in self.runs if run.facts.outcome}
        return [one for one in self.launched if one.exit_code is None and one.run not in over]

    def take_ended(self) -> list[tuple[bool, str, str]]:
        """The runs started here that have ended since the last call: whether all was well, their last words and, where
        one never began, what was typed for it."""
        over = [one for one in self.launched if one.exit_code is not None]
        self.launched = [one for one in self.launched if one not in over]
        said = []
        for one in over:
            name = f"{nickname(one.run)}: " if one.run else ""
            line = self._typed.pop(one.pid, "")
            said.append((one.exit_code == 0, name + one.last_words(), "" if one.run or one.exit_code == 0 else line))
            one.close()
        return said

    def close(self) -> None:
        """What was started here, and was not let go, ends; who has an outcome may tidy up in peace."""
        at_work = self.at_work
        for one in self.launched:
            if one not in at_work:
                one.let_go()
            one.close()
        self.launched = []

    def _at_work(self) -> Listed:
        """The run to cancel: the one looked at, or the one at work here."""
        here = [run for run in self.runs if run.is_alive and run.facts.workspace == self.plan.workspace]
        chosen = [run for run in self.runs if run.id == self.chosen and run.is_alive]
        if not chosen and not here:
            raise UserError("no run is at work here", "type a goal to start one")
        return (chosen or here)[0]

    def do_tell(self, command: TypedCommand) -> str:
        questions = control.tell(self.run, command.text)
        if questions:
            return f"answered: {one_line(questions[0].text)}"
        later = "" if self.run.is_alive else ", once it goes on (r)"
        return f"the next prompt of {nickname(self.run.id)} carries it{later}"

    def do_stop(self, command: TypedCommand) -> str:
        return _stop(self.run, now=command.text == "now")

    def do_pause(self, command: TypedCommand) -> str:
        control.pause(self.run)
        return f"{nickname(self.run.id)} pauses before its next turn; r goes on"

    def do_resume(self, command: TypedCommand) -> str:
        """Ends a pause; a run that no process plays is taken up by a new one."""
        run = control.present(self.run, control.cannot_go_on)
        if run.is_alive:
            return f"{nickname(run.id)} goes on" + (" without an answer" if control.go_on(run) else "")
        self.launch(["resume", run.id, "--quiet", "-C", run.facts.workspace])
        return f"{nickname(run.id)} goes on"

    def do_cancel_ralph(self, command: TypedCommand) -> str:
        """Ends the run at once, be it only just started."""
        starting = [one for one in self.launched if not one.run]
        if not starting:
            return _stop(self._at_work(), now=True)
        starting[-1].end()
        self._typed.pop(starting[-1].pid, None)
        return "what was just started ends now"

    def do_goal(self, command: TypedCommand) -> str:
        plan, apart = self._place_for_another()
        self.launch(plan.words(command.text), command.text)
        return f"{apart}starting: {self.plan_words}"

    def do_ralph_loop(self, command: TypedCommand) -> str:
        plan, apart = self._place_for_another()
        self.launch(plan.promise(command.text, command.values), f"/{command.name} {command.text}")
        return f"{apart}starting: loop until its promise is kept"

    do_ulw_loop = do_ralph_loop

    @property
    def plan_words(self) -> str:
        """What a goal would start, in a few words."""
        given = self.plan.given
        said = [
            str(self.plan),
            f"model {given['model']}" if given.get("model") else "",
            f"at most {money(given['max_cost'])}" if given.get("max_cost") else "",
            "in a worktree" if given.get("worktree") else "",
        ]
        return ", ".join(part for part in said if part)

    def _place_for_another(self) -> tuple[NextRun, str]:
        """One run at a time works in a folder: where it is busy, the next one gets a worktree, and that is said."""
        place = self.plan.workspace
        at_work = (run for run in self.runs if run.is_alive and run.facts.workspace == place and not run.facts.branch)
        here = next(at_work, None)
        starting = any(not one.run for one in self.launched)
        if self.plan.given.get("worktree") or not (here or starting):
            return self.plan, ""
        name = nickname(here.id) if here else "another run"
        if not has_room_apart(place):
            raise UserError(f"{name} is at work here", "/tell TEXT says something to it, /stop ends it")
        apart = replace(self.plan, given={**self.plan.given, "worktree": True})
        return apart, f"{name} is at work here, so this one gets a worktree · "

    def do_ralph(self, command: TypedCommand) -> str:
        if command.number is not None:
            self.plan = replace(self.plan, cap=command.number)
        elif command.text == "default":
            self.plan = replace(self.plan, cap=None)
        cap = self.plan.cap
        said = "not set" if cap is None else {0: "off", -1: "none"}.get(max(cap, -1), str(cap))
        return f"cap: {said} · the next run: {self.plan if cap is None else cap_words(cap)}"

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

    def _give(self, name: str, value: Any) -> None:
        """An option that holds for every run to come, until it is taken back."""
        given = {key: known for key, known in self.plan.given.items() if key != name}
        self.plan = replace(self.plan, given=given | ({name: value} if value else {}))

    def do_model(self, command: TypedCommand) -> str:
        if command.text:
            self._give("model", "" if command.text == "default" else command.text)
        return f"model: {self.plan.given.get('model') or 'as the agent chooses'}"

    def do_worktree(self, command: TypedCommand) -> str:
        if command.text:
            self._give("worktree", command.text == "on")
        return f"worktree: {'on' if self.plan.given.get('worktree') else 'off, unless this folder is busy'}"

    def do_max_cost(self, command: TypedCommand) -> str:
        if command.text:
            self._give("max_cost", command.values.get("max_cost"))
        most = self.plan.given.get("max_cost")
        return f"max cost: {money(most) if most else 'no limit'}"


def rank(run: Listed, known: Mapping[str, Listed]) -> tuple[bool, str, bool, bool, str]:
    """What lives is above what has ended, the newest first; a work is above its items, which stay together."""
    work = known.get(run.facts.work, run)
    return work.is_alive or run.is_alive, work.id, run is work, run.is_alive, run.id


def _stop(run: Listed, now: bool = False) -> str:
    how = "now" if control.stop(run, now) else "after what it does at this moment; S ends it now"
    return f"{nickname(run.id)} ends {how}"


class Watching:
    def __init__(self, run: Listed, style: Style, columns: int) -> None:
        self.run = run.id
        self._journal = run.folder.journal
        self.scroll = Scroll(style, columns)

    def begin(self) -> None:
        """Reads from the beginning."""
        self._feed = Feed.open(self._journal)
        self.fold = Fold(self.run)
        self.scroll = Scroll(self.scroll.style, self.scroll.columns)

    @property
    def is_behind(self) -> bool:
        return self._feed.is_behind or self._feed.has_grown

    def look(self) -> bool:
        """Reads on; whether there was anything new."""
        if self._feed.is_replaced:
            before = self._feed
            self.begin()
            before.close()
        counted, news = self._feed.count(), self._feed.look()
        for one in counted:
            self.fold.hear(one.event, one.entry.at)
        self.scroll.leaves_out = self._feed.left_out > 0
        self.scroll.add(news)
        return bool(counted or news)

    def close(self) -> None:
        self._feed.close()


MOST_EVENTS = 4000
MOST_BYTES = 4 << 20
MOST_LINES = 5000


class Scroll:
    """Keeps events, so that their lines can be made anew when the pane gets another width. `leaves_out`: there are
    earlier ones, too many to be shown. With the last event of a run is kept what is said about its end."""

    def __init__(self, style: Style, columns: int) -> None:
        self.style, self.columns = style, columns
        self.leaves_out = False
        self._fold = Fold("")
        self._kept: deque[tuple[News, str]] = deque()
        self._bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._render = EventLines(self.style, announces=False, columns=self.columns)
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.begin = 0  # the number of the first line that is still there

    def add(self, news: list[News]) -> None:
        told = [(one, self._ending(one)) for one in news]
        self._kept += told
        self._bytes += sum(one.size for one in news)
        while len(self._kept) > MOST_EVENTS or self._bytes > MOST_BYTES:
            self._bytes -= self._kept.popleft()[0].size
        self._write(told)

    def _ending(self, news: News) -> str:
        self._fold.hear(news.event, news.entry.at)
        is_over = isinstance(news.event, events.RunFinished)
        return outcome_sentence(self._fold.history) if is_over else ""

    def fit(self, columns: int) -> None:
        """Renders everything anew for another width."""
        if columns != self.columns:
            self.columns = columns
            self._begin()
            self._write(self._kept)

    def _write(self, told: Iterable[tuple[News, str]]) -> None:
        for news, ending in told:
            event = news.event
            # the list of what is to do has a pane of its own
            lines = [] if isinstance(event, events.TodoUpdated) else self._render(event)
            if isinstance(event, events.RunFinished):
                tone = outcome_tone(event.exit_code)
                lines = [*lines, "", *(self.style.paint(tone, row) for row in self._render.talk.rows(ending, 0))]
            if self.leaves_out and not self.lines:
                more = f"{self.style.marks.more} earlier events: `ralph logs` has all"
                lines = [self.style.paint("dim", more), *lines]
            self.begin += max(len(self.lines) + len(lines) - MOST_LINES, 0)
            self.lines.extend(lines)
