"""Render events as lines. The result depends on the events alone, so a live run and its journal read the same. The
result of an iteration is a block with a bar in front.
"""

import os
import shlex

from ralph.core import events as e
from ralph.core.events import Event
from ralph.core.gains import describe_end, describe_start
from ralph.core.stuck_rules import WAYS_OUT
from ralph.core.text import clean, listed, short, tail
from ralph.history.fold import Fold
from ralph.history.run_history import PastIteration
from ralph.history.states import RESULT_TONES
from ralph.settings.presets import find_preset
from ralph.show.backlog_lines import sentence
from ralph.show.outlet import Style
from ralph.show.turn_lines import VERBOSE, LineLimits, TurnLines, lines_with_words
from ralph.show.words import (
    agent_name,
    baseline_sentence,
    done_when,
    duration,
    exit_words,
    from_home,
    hand_over_words,
    moment,
    path_from_here,
    verdict,
    width,
)

_BLOCKS = {
    e.RunStarted: "run",
    e.IterationStarted: "iteration",
    e.AgentStarted: "agent",
    **dict.fromkeys((e.AgentFinished, e.TurnNotCounted), "turn"),
    **dict.fromkeys((e.Baseline, e.StartMeasured, e.EndMeasured, e.CheckStarted, e.CheckFinished), "verdict"),
    **dict.fromkeys((e.ExamStarted, e.ExamFinished, e.IterationFinished, e.ClaimRejected, e.Converged), "verdict"),
    **dict.fromkeys((e.ReviewStarted, e.ReviewFinished), "review"),
    **dict.fromkeys((e.ProofStarted, e.ProofAsked), "proof"),
    **dict.fromkeys((e.Waiting, e.Paused, e.Continued), "waiting"),
    **dict.fromkeys((e.QuestionAsked, e.PersonTold), "person"),
    **dict.fromkeys((e.HandedOver, e.Notice), "notice"),
    e.ScmFinished: "scm",
    e.PermissionDenied: "denied",
    e.AgentText: "text",
    **dict.fromkeys((e.ToolStarted, e.ToolFinished, e.AgentProgress), "tool"),
    e.TodoUpdated: "todo",
}
"""The kinds of lines: an empty line separates two kinds."""
_AGENT_OUTPUT = (e.AgentText, e.ToolStarted, e.ToolFinished, e.TodoUpdated, e.AgentProgress)
_AFTER_VERDICT = (e.RunStarted, e.IterationStarted, e.ProofStarted, e.EndMeasured, e.Waiting, e.Paused, e.RunFinished)
_VERDICT_PAINT = {"good": ("green", "good"), "bad": ("red", "alarm")}  # of the bar and of the text
_GOAL_ROWS = 4


class EventLines:
    """Renders events one after the other. Without `agent_output` the agent's words and tools are hidden; `announces`
    prints checks when they start, which a live status line makes unnecessary; `columns` is the width of a line (0: no
    limit); `fold` is the history up to here, by these events.
    """

    def __init__(
        self,
        style: Style,
        *,
        verbose: bool = False,
        agent_output: bool = True,
        announces: bool = True,
        columns: int = 0,
        limits: LineLimits | None = None,
    ) -> None:
        self.style, self.verbose, self.announces = style, verbose, announces
        self.limits = limits or (VERBOSE if verbose else LineLimits())
        self.fold = Fold("")
        self.talk = TurnLines(style, self.limits, columns)
        self._hides_agent = not agent_output
        self._judged: PastIteration | None = None  # whose verdict is still to come
        self._held: list[e.Notice] = []
        self._block = ""
        self._has_been_denied = False
        self._has_fail_actions = verbose  # whether they change the next prompt

    def __call__(self, event: Event, at: float = 0.0) -> list[str]:
        """Return the lines for `event`, which happened at that time, with an empty line before a new kind of block."""
        self.fold.add(event, at)
        if self._judged and isinstance(event, e.Notice):  # it would part the verdict from the checks
            self._held.append(event)
            return []
        if self._hides_agent and isinstance(event, _AGENT_OUTPUT):
            return []
        is_asking = isinstance(event, e.Paused) and event.asks
        lines = self._verdict(is_asking) if self._judged and isinstance(event, _AFTER_VERDICT) else []
        return [*lines, *self._separate_block(_BLOCKS.get(type(event), ""), self._lines_of(event))]

    def _separate_block(self, block: str, lines: list[str]) -> list[str]:
        """Return the lines of a block, with an empty line before it if a different kind came before."""
        if not lines or not block or block == self._block:
            return lines
        gap = [""] if self._block else []
        self._block = block
        return gap + lines

    def _lines_of(self, event: Event) -> list[str]:
        marks = self.style.marks
        match event:
            case e.RunStarted():
                return self._run_started(event)
            case e.IterationStarted():
                return self._iteration_started(event)
            case e.AgentStarted():
                return self._agent_started(event)
            case e.TurnNotCounted():
                kind = event.turn.ended_by or (event.turn.failure.kind if event.turn.failure else "")
                why = f" ({short(kind, 200)})" if kind else ""
                return self._loud("yellow", marks.retry, f"this turn does not count as an iteration{why}")
            # `ralph tune` needs every check to pass from the start.
            case e.Baseline() if not find_preset(self.fold.history.preset).measures:
                is_useful = any(not check.passed for check in event.checks)
                return self._barred("dim" if is_useful else "yellow", baseline_sentence(self.fold.history))
            case e.StartMeasured():
                start = event.start
                return self._barred("dim", f"metric: {describe_start(start.metric, start.values, start.noise)}")
            case e.EndMeasured() if self.fold.history.first_numbers:
                comparison = describe_end(event.comparison, self.fold.history.first_numbers.metric)
                return self._barred("green" if event.comparison.kept else "yellow", comparison)
            case e.CheckStarted() if self.verbose:
                return self._debug(f"Running guardrail: {short(event.name, 200)}")
            case e.CheckStarted() | e.ExamStarted() if self.announces:
                name = f"{'exam ' if isinstance(event, e.ExamStarted) else ''}{short(event.name, 200)}"
                return [self._bar("dim", self.style.paint("dim", f"{marks.check} {name}"))]
            case e.CheckFinished():
                return self._check_finished(event)
            case e.ExamFinished():
                sign, name = self.style.sign(event.passed), self.talk.cut(short(event.name, 200), 12)
                return [self._bar("green" if event.passed else "red", f"{sign} exam {name}")]
            case e.IterationFinished():
                self._judged = self.fold.history.iterations[-1]
                claims = " or ".join(short(claim, 80) for claim in self.fold.history.claims)
                return self._debug(f"Looking for a claim: {claims}")
            case e.ClaimRejected() if not self._judged:  # else it is part of the verdict
                text = f"claim refused: {short(event.claim, 80)}: {short(event.gate, 80)}: {short(event.reason, 500)}"
                return self._loud("alarm", marks.refused, text)
            case e.Converged():
                return self._debug(f"Claim accepted: {short(event.signal, 80)}")
        return self._side_lines(event)

    def _side_lines(self, event: Event) -> list[str]:
        """Return the lines for events between turns and checks, and for the agent's words and tools."""
        marks = self.style.marks
        match event:
            case e.ReviewStarted():
                return [f"{marks.review} review: {short(event.name, 200)}"]
            case e.ReviewFinished():
                return self._review_finished(event)
            case e.ProofStarted():
                text = "done; now the checks run without parts of the change, to see whether they notice"
                return self._loud("dim", marks.check, text)
            case e.ProofAsked():
                places = listed([short(part, 120) for part in event.parts], 5)
                return self._loud("cyan", marks.to, f"asking the agent about untested parts: {places}")
            case e.Waiting():
                until = f" until {moment(event.until, event.seconds)}" if event.until else ""
                text = f"waiting {duration(event.seconds)}{until}: {short(event.reason, 300)}"
                return self._loud("yellow", marks.waiting, text)
            case e.Paused():
                how = "" if event.asks else "; resume it with `ralph resume`"
                return self._loud("yellow", marks.paused, f"paused: {short(event.reason, 300)}{how}")
            case e.Continued():
                return self._loud("yellow", marks.to, f"resumed after a pause of {duration(event.seconds)}")
            case e.QuestionAsked():
                text = f"the agent asks: {clean(event.text[:4000])}\nanswer with `ralph tell`"
                return self._loud("warn", marks.question, text)
            case e.PersonTold():
                notes = (f"you: {clean(note.text[:4000])}" for note in event.notes)
                return [line for note in notes for line in self._loud("cyan", marks.person, note)]
            case e.ScmFinished():
                detail = f": {short(event.detail, 300)}" if event.detail else ""
                return self._result(event.ok, f"{short(event.task, 80)}{'' if event.ok else ' failed'}{detail}")
            case e.HandedOver():
                return self._loud("warn", marks.warning, hand_over_words(event.hand_over))
            case e.Notice():
                return self._notice(event)
            case e.PermissionDenied():
                return self._permission_denied(event)
        if type(event) in e.NAMES:
            return self.talk(event)
        text, tone = sentence(event)  # an event of a backlog
        return [self.style.paint(tone, text)] if text else []

    def _run_started(self, event: e.RunStarted) -> list[str]:
        paint = self.style.paint
        dot = f" {self.style.marks.dot} "
        place = short(from_home(event.workspace, os.environ.get("HOME", "")), 200)
        self._judged = None
        preset = find_preset(event.preset)
        self._has_fail_actions = self.verbose or preset.quotes_fail_action
        self.talk.root = event.worktree or event.workspace
        command = preset.command
        facts = [
            "resumed" if event.resumed else "",
            short(agent_name(event.agent), 60),
            " ".join(short(right, 20) for right in event.rights),
            short(event.preset, 40) if command == "ralph run" else "",
            place,
        ]
        title = self.talk.cut(dot.join(fact for fact in facts if fact), len(command) + len(dot))
        lines = [f"{paint('title', command)}{dot}{title}"]
        gates = [short(gate, 80) for gate in event.gates if gate != "checks"]
        unguarded = event.claims and not event.gates and not event.checks and event.claims != ("turn",)
        rows = {
            "task": short(event.task, 200),
            "goal": short(event.goal, 500),
            "done when": done_when(event.claims, len(event.checks)),
            "checks": dot.join(short(check, 80) for check in event.checks),
            "gates": dot.join(gates) or ("none: the agent's word alone ends this run" if unguarded else ""),
            "branch": short(event.branch, 200),
            "copy": f"the agent works on a copy, which it sees at {place} (yours stays as it is)"
            if event.copies == "in-place" and not event.backlog_task
            else "",
        }
        for name, text in rows.items():
            for at, row in enumerate(self.talk.rows(text, 13)[:_GOAL_ROWS] if text else ()):
                title = f"{'' if at else name:<9} "
                lines.append(f"  {paint('dim', title)} {row}")
        return lines

    def _iteration_started(self, event: e.IterationStarted) -> list[str]:
        of = f"/{event.max_iterations}" if event.max_iterations is not None else ""
        rule = self.style.marks.rule
        title = f"{rule * 2} iteration {event.iteration}{of} "
        line = title + rule * max(min(self.talk.columns or 80, 100) - len(title), 2)
        return [self.style.paint("title", line), *self._debug(f"Iteration {event.iteration}{of} starting")]

    def _agent_started(self, event: e.AgentStarted) -> list[str]:
        self.talk.reset()
        lines = [self.style.paint("dim", f"{self.style.marks.check} {short(event.agent, 80)}: commit message")]
        command = self._debug("Agent command: " + short(shlex.join(event.argv), 1000)) if event.argv else []
        return [*(lines if event.purpose == "message" else []), *command]

    def _check_finished(self, event: e.CheckFinished) -> list[str]:
        marks, paint, took = self.style.marks, self.style.paint, duration(event.duration_s)
        code = "no code" if event.exit_code is None else f"code {event.exit_code}"
        verbose = self._debug(f"Guardrail exited with {code} ({took})")
        if event.passed:
            name = self.talk.cut(short(event.name, 200), 8 + len(took))
            return [self._bar("green", f"{paint('green', marks.passed)} {name}  {paint('dim', took)}"), *verbose]
        how = f"{exit_words(event.exit_code)}, {took}"
        if event.void:
            how = "does not count"
        elif event.timeout is not None:
            how = f"timed out after {duration(event.timeout)}"
        name = self.talk.cut(short(event.name, 200), 8 + len(how))
        log = path_from_here(os.path.join(self.talk.root, event.log)) if event.log else ""
        then = ", ".join(short(part, 300) for part in (event.action if self._has_fail_actions else "", log) if part)
        rows = [self.talk.cut(short(event.void, 500), 6)] if event.void else self._last_lines(event.output)
        rows += [f"{marks.to} {self.talk.cut(then, 6)}"] if then else []
        title = f"{paint('alarm', marks.failed)} {paint('bold', name)}  {paint('red', how)}"
        return [self._bar("red", title), *(self._bar("red", f"  {paint('dim', row)}") for row in rows), *verbose]

    def _last_lines(self, output: str) -> list[str]:
        """Return the end of a failing check's output, where tools summarise what went wrong."""
        limit = self.limits.check_lines
        text = self.talk.without_root(clean(tail(output, 200 * limit)).expandtabs(4))
        return [self.talk.cut(line[:500], 4) for line in lines_with_words(text.split("\n"))[-limit:]]

    def _bar(self, tone: str, text: str) -> str:
        return f"{self.style.paint(tone, self.style.marks.verdict)} {text}"

    def _barred(self, tone: str, text: str) -> list[str]:
        return [self._bar(tone, row) for row in self.talk.rows(text, 2)]

    def _verdict(self, is_asking: bool = False) -> list[str]:
        """Return the result of the last iteration and the notices about it, once no later event can
        change the result."""
        iteration, self._judged = self._judged, None
        events, self._held = self._held, []
        notices = [line for event in events for line in self._notice(event)]
        words = verdict(iteration, self.fold.history, is_asking) if iteration else None
        if iteration is None or words is None:
            return self._separate_block("notice", notices)
        result_tone, marks = RESULT_TONES[iteration.result], self.style.marks
        bar, tone = _VERDICT_PAINT.get(result_tone, ("yellow", "bold"))
        by_result = {"refused": marks.refused, "no claim": marks.dot}
        by_tone = {"good": marks.passed, "waiting": marks.waiting}
        sign = by_result.get(iteration.result) or by_tone.get(result_tone, marks.failed)
        first, *more = self.talk.rows(words, 3 + width(sign))
        rows = [f"{sign} {first}", *(" " * (width(sign) + 1) + row for row in more)]
        for refusal in iteration.refused if iteration.result == "refused" else ():
            if refusal.gate != "checks" or not iteration.checks:  # else they are listed above
                rows += [f"  {row}" for row in self.talk.rows(f"{refusal.gate}: {refusal.reason}", 4)]
        lines = self._separate_block("verdict", [self._bar(bar, self.style.paint(tone, row)) for row in rows])
        return [*lines, *self._separate_block("notice", notices)]

    def _review_finished(self, event: e.ReviewFinished) -> list[str]:
        """Return one line for an approval, all of a refusal, and a warning if there was no verdict."""
        by = f" by {short(event.agent, 80)}" if event.agent else ""
        review = f"{short(event.name, 80)} review{by}"
        if event.problem:
            return self._loud("warn", self.style.marks.warning, f"no {review}: {short(event.problem, 500)}")
        changes = "approved" if event.passed else f"changes: {clean(event.changes[:4000])}"
        return self._result(event.passed, f"{review}: {changes}")

    def _notice(self, event: e.Notice) -> list[str]:
        if event.level == "debug":
            return self._debug(event.text)
        tone, mark = ("dim", self.style.marks.info) if event.level == "info" else ("warn", self.style.marks.warning)
        return self._loud(tone, mark, clean(event.text[:4000]))

    def _permission_denied(self, event: e.PermissionDenied) -> list[str]:
        """Return the denied tool; the advice comes only once, because the agent will try again."""
        denial = f"the agent was not allowed to use {short(event.tool, 80)}"
        if self._has_been_denied:
            return self._loud("dim", self.style.marks.info, denial)
        self._has_been_denied = True
        own = f" ({short(event.allow_list, 100)})" if event.allow_list else ""
        return self._loud("warn", self.style.marks.warning, f"{denial}. To let it: {WAYS_OUT}{own}")

    def _result(self, ok: bool, text: str) -> list[str]:
        marks = self.style.marks
        if not ok:
            return self._loud("red", marks.failed, text)
        first, *others = self._loud("plain", marks.passed, text)
        return [first.replace(marks.passed, self.style.paint("green", marks.passed), 1), *others]

    def _loud(self, color: str, mark: str, text: str) -> list[str]:
        """Return text that must be read whole: broken into rows, never cut."""
        rows = [row for line in text.strip().expandtabs(4).split("\n") for row in self.talk.rows(line, len(mark) + 2)]
        margin = " " * (width(mark) + 1)
        return [self.style.paint(color, f"{margin if at else mark + ' '}{row}") for at, row in enumerate(rows)]

    def _debug(self, text: str) -> list[str]:
        """Return the lines of a verbose run; none if it isn't verbose."""
        rows = clean(text[:20_000]).split("\n") if self.verbose else []
        return [self.style.paint("dim", f"[ralph] {line}") for line in rows]
