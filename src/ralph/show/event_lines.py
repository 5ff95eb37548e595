"""Render events as lines. The result depends on the events alone, so a live run and its journal read the same. The
result of an iteration is a block with a bar in front.
"""

import os
import shlex
from collections.abc import Callable
from typing import Any

from ralph.core import events as e
from ralph.core.events import TALK, Event
from ralph.core.gains import describe_end, describe_start
from ralph.core.model import WAYS_OUT
from ralph.core.text import clean, listed, plural, short, tail
from ralph.history.run_history import Fold, PastIteration
from ralph.show.outlet import Style
from ralph.show.turn_lines import VERBOSE, LineLimits, TurnLines, telling
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
from ralph.show.works import sentence

LineTeller = Callable[[Any], list[str]]
_AFTER_VERDICT = {
    *(e.RunStarted, e.IterationStarted, e.ProofStarted, e.EndMeasured, e.Waiting, e.Paused, e.RunFinished),
}
_TONES = {
    "done": ("good", "passed"),
    "kept": ("good", "passed"),
    "dropped": ("bold", "failed"),
    "no claim": ("bold", "dot"),
    "children at work": ("bold", "waiting"),
    "refused": ("alarm", "refused"),
}
_GOAL_ROWS = 4
COMMANDS = {
    "checks": "ralph loop",
    "tune": "ralph tune",
    "supervise": "ralph task",
}  # the command that a preset belongs to


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
        self._judged: PastIteration | None = None  # whose verdict is still to come
        self._held: list[e.Notice] = []
        self._block = ""
        self._has_been_denied = False
        self._has_fail_actions = verbose  # whether they change the next prompt
        talk = self.talk = TurnLines(style, self.limits, columns)
        self._cut = talk.cut
        self._tellers: dict[type, tuple[str, LineTeller]] = {
            e.RunStarted: ("run", self._run_started),
            e.IterationStarted: ("iteration", self._iteration_started),
            e.AgentStarted: ("agent", self._agent_started),
            e.AgentFinished: ("turn", talk.finished),
            e.TurnNotCounted: ("turn", self._turn_not_counted),
            e.Baseline: ("verdict", self._baseline),
            e.CheckStarted: ("verdict", self._check_started),
            e.StartMeasured: ("verdict", self._start_measured),
            e.EndMeasured: ("verdict", self._end_measured),
            e.CheckFinished: ("verdict", self._check_finished),
            e.ExamStarted: ("verdict", self._exam_started),
            e.ExamFinished: ("verdict", self._exam_finished),
            e.ReviewStarted: ("review", lambda event: [f"{style.marks.review} review: {short(event.name, 200)}"]),
            e.ReviewFinished: ("review", self._review_finished),
            e.IterationFinished: ("verdict", self._iteration_finished),
            e.ClaimRejected: ("verdict", self._claim_rejected),
            e.ProofStarted: ("proof", self._proof_started),
            e.ProofAsked: ("proof", self._proof_asked),
            e.RunFinished: ("verdict", lambda event: []),
            e.Waiting: ("waiting", self._waiting),
            e.Paused: ("waiting", self._on_paused),
            e.Continued: ("waiting", self._on_continued),
            e.QuestionAsked: ("person", self._question_asked),
            e.PersonTold: ("person", self._person_told),
            e.HandedOver: ("notice", self._handed_over),
            e.ScmFinished: ("scm", self._scm_finished),
            e.Notice: ("notice", self._notice),
            e.PermissionDenied: ("denied", self._permission_denied),
            e.AgentResult: ("", talk.result),
        }
        if verbose:
            self._tellers[e.Converged] = ("verdict", self._on_converged)
        if agent_output:
            self._tellers |= {
                e.AgentText: ("text", talk.text),
                e.ToolStarted: ("tool", talk.tool_started),
                e.ToolFinished: ("tool", talk.tool_finished),
                e.TodoUpdated: ("todo", talk.todo),
                e.AgentProgress: ("tool", talk.progress),
            }

    def __call__(self, event: e.Event, at: float = 0.0) -> list[str]:
        """Return the lines for `event`, which happened at that time, with an empty line before a new kind of block."""
        if type(event) not in TALK:
            self.fold.add(event, at)
        found = self._tellers.get(type(event))
        if found is None:
            if type(event) in e.NAMES:
                return []

            text, tone = sentence(event)
            return [self.style.paint(tone, text)] if text else []
        block, teller = found
        if self._judged and isinstance(event, e.Notice):  # it would part the verdict from the checks
            self._held.append(event)
            return []
        lines = self._verdict() if self._judged and type(event) in _AFTER_VERDICT else []
        return [*lines, *self._separate_block(block, teller(event))]

    def _separate_block(self, block: str, lines: list[str]) -> list[str]:
        """Return the lines of a block, with an empty line before it if another kind came before."""
        if not lines or block == self._block:
            return lines
        gap = [""] if self._block else []
        self._block = block
        return gap + lines

    def left_out(self, events: int) -> str:
        more = f"{self.style.marks.more} {plural(events, 'more thing')} that nobody could have read: see the log"
        return self.style.paint("dim", more)

    def skipped(self, lines: int) -> str:
        return self.style.paint("dim", f"{self.style.marks.more} {plural(lines, 'line')} skipped: the reader is slow")

    def _run_started(self, event: e.RunStarted) -> list[str]:
        paint = self.style.paint
        dot = f" {self.style.marks.dot} "
        self._judged = None
        self._has_fail_actions = self.verbose or event.preset == "guardrails"
        self.talk.root = event.worktree or event.workspace
        command = COMMANDS.get(event.preset, "ralph run")
        facts = [
            "resumed" if event.resumed else "",
            short(agent_name(event.agent), 60),
            " ".join(short(right, 20) for right in event.rights),
            short(event.preset, 40) if command == "ralph run" else "",
            short(from_home(event.workspace, os.environ.get("HOME", "")), 200),
        ]
        title = self._cut(dot.join(fact for fact in facts if fact), len(command) + len(dot))
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
        verbose = self._debug(f"Iteration {event.iteration}{of} starting") if self.verbose else []
        return [self.style.paint("title", line), *verbose]

    def _agent_started(self, event: e.AgentStarted) -> list[str]:
        self.talk.begin()
        lines = []
        if event.purpose == "message":
            lines = [self.style.paint("dim", f"{self.style.marks.check} {short(event.agent, 80)}: commit message")]
        if self.verbose and event.argv:
            lines += self._debug("Agent command: " + short(shlex.join(event.argv), 1000))
        return lines

    def _turn_not_counted(self, event: e.TurnNotCounted) -> list[str]:
        kind = event.turn.ended_by or (event.turn.failure.kind if event.turn.failure else "")
        why = f" ({short(kind, 200)})" if kind else ""
        return self._loud("yellow", self.style.marks.retry, f"this turn does not count as an iteration{why}")

    def _check_started(self, event: e.CheckStarted) -> list[str]:
        name = short(event.name, 200)
        if self.verbose:
            return self._debug(f"Running guardrail: {name}")
        if not self.announces:
            return []
        return [self._bar("dim", self.style.paint("dim", f"{self.style.marks.check} {name}"))]

    def _check_finished(self, event: e.CheckFinished) -> list[str]:
        marks, paint, took = self.style.marks, self.style.paint, duration(event.duration_s)
        verbose: list[str] = []
        if self.verbose:
            code = "no code" if event.exit_code is None else f"code {event.exit_code}"
            verbose = self._debug(f"Guardrail exited with {code} ({took})")
        if event.passed:
            name = self._cut(short(event.name, 200), 8 + len(took))
            return [self._bar("green", f"{paint('green', marks.passed)} {name}  {paint('dim', took)}"), *verbose]
        if event.void:
            how = "does not count"
        elif event.timeout is not None:
            how = f"timed out after {duration(event.timeout)}"
        else:
            how = f"{exit_words(event.exit_code)}, {took}"
        name = self._cut(short(event.name, 200), 8 + len(how))
        log = path_from_here(os.path.join(self.talk.root, event.log)) if event.log else ""
        then = ", ".join(short(part, 300) for part in (event.action if self._has_fail_actions else "", log) if part)
        rows = ([self._cut(short(event.void, 500), 6)] if event.void else self._last_lines(event.output)) + (
            [f"{marks.to} {self._cut(then, 6)}"] if then else []
        )
        title = f"{paint('alarm', marks.failed)} {paint('bold', name)}  {paint('red', how)}"
        return [self._bar("red", title), *(self._bar("red", f"  {paint('dim', row)}") for row in rows), *verbose]

    def _exam_started(self, event: e.ExamStarted) -> list[str]:
        if not self.announces:
            return []
        return [self._bar("dim", self.style.paint("dim", f"{self.style.marks.check} exam {short(event.name, 200)}"))]

    def _exam_finished(self, event: e.ExamFinished) -> list[str]:
        tone, mark = ("green", self.style.marks.passed) if event.passed else ("red", self.style.marks.failed)
        name = self._cut(short(event.name, 200), 12)
        return [self._bar(tone, f"{self.style.paint('green' if event.passed else 'alarm', mark)} exam {name}")]

    def _baseline(self, event: e.Baseline) -> list[str]:
        if self.fold.history.preset == "tune":  # every check has to pass from the start
            return []
        is_useful = any(not check.passed for check in event.checks)
        rows = self.talk.rows(baseline_sentence(self.fold.history), 2)
        return [self._bar("dim" if is_useful else "yellow", row) for row in rows]

    def _start_measured(self, event: e.StartMeasured) -> list[str]:
        start = event.start
        said = describe_start(start.metric, start.values, start.noise)
        return [self._bar("dim", row) for row in self.talk.rows(said, 2)]

    def _end_measured(self, event: e.EndMeasured) -> list[str]:
        start = self.fold.history.first_numbers
        said = describe_end(event.comparison, start.metric) if start else ""
        return [self._bar("green" if event.comparison.kept else "yellow", row) for row in self.talk.rows(said, 2)]

    def _last_lines(self, output: str) -> list[str]:
        """Return the end of a failing check's output, where tools summarise what went wrong."""
        limit = self.limits.check_lines
        text = self.talk.without_root(clean(tail(output, 200 * limit)).expandtabs(4))
        return [self._cut(line[:500], 4) for line in telling(text.split("\n"))[-limit:]]

    def _bar(self, tone: str, text: str) -> str:
        return f"{self.style.paint(tone, self.style.marks.verdict)} {text}"

    def _iteration_finished(self, event: e.IterationFinished) -> list[str]:
        self._judged = self.fold.history.iterations[-1]
        if not self.verbose:
            return []
        claims = " or ".join(short(claim, 80) for claim in self.fold.history.claims)
        return self._debug(f"Looking for a claim: {claims}")

    def _verdict(self) -> list[str]:
        """Return the result of the last iteration, once no later event can change it."""
        one, self._judged = self._judged, None
        held, self._held = self._held, []
        after = [line for event in held for line in self._notice(event)]
        said = verdict(one, self.fold.history) if one else None
        if one is None or said is None:
            return self._separate_block("notice", after)
        tone, mark = _TONES.get(one.result, ("alarm", "failed"))
        sign = getattr(self.style.marks, mark)
        first, *more = self.talk.rows(said, 3 + width(sign))
        rows = [f"{sign} {first}", *(" " * (width(sign) + 1) + row for row in more)]
        for refusal in one.refused if one.result == "refused" else ():
            if refusal.gate == "checks" and one.checks:  # as they stand above
                continue
            rows += [f"  {row}" for row in self.talk.rows(f"{refusal.gate}: {refusal.reason}", 4)]
        bar = "green" if tone == "good" else "yellow" if tone == "bold" else "red"
        lines = self._separate_block("verdict", [self._bar(bar, self.style.paint(tone, row)) for row in rows])
        return [*lines, *self._separate_block("notice", after)]

    def _review_finished(self, event: e.ReviewFinished) -> list[str]:
        """One line for an approval, all of it for a refusal, and a warning if there was no verdict."""
        by = f" by {short(event.agent, 80)}" if event.agent else ""
        review = f"{short(event.name, 80)} review{by}"
        if event.problem:
            return self._loud("warn", self.style.marks.warning, f"no {review}: {short(event.problem, 500)}")
        if event.passed:
            return self._result(True, f"{review}: approved")
        return self._result(False, f"{review}: changes: {clean(event.changes[:4000])}")

    def _proof_started(self, event: e.ProofStarted) -> list[str]:
        text = "done; now the checks run without parts of the change, to see whether they notice"
        return self._loud("dim", self.style.marks.check, text)

    def _proof_asked(self, event: e.ProofAsked) -> list[str]:
        places = listed([short(part, 120) for part in event.parts], 5)
        return self._loud("cyan", self.style.marks.to, f"asking the agent about untested parts: {places}")

    def _on_converged(self, event: e.Converged) -> list[str]:
        return self._debug(f"Claim accepted: {short(event.signal, 80)}")

    def _claim_rejected(self, event: e.ClaimRejected) -> list[str]:
        """Return the lines of a refused claim. They are part of the verdict."""
        if self._judged:
            return []
        text = f"claim refused: {short(event.claim, 80)}: {short(event.gate, 80)}: {short(event.reason, 500)}"
        return self._loud("alarm", self.style.marks.refused, text)

    def _waiting(self, event: e.Waiting) -> list[str]:
        until = f" until {moment(event.until, event.seconds)}" if event.until else ""
        text = f"waiting {duration(event.seconds)}{until}: {short(event.reason, 300)}"
        return self._loud("yellow", self.style.marks.waiting, text)

    def _on_paused(self, event: e.Paused) -> list[str]:
        how = "" if event.asks else "; resume it with `ralph resume`"
        return self._loud("yellow", self.style.marks.paused, f"paused: {short(event.reason, 300)}{how}")

    def _on_continued(self, event: e.Continued) -> list[str]:
        text = f"resumed after a pause of {duration(event.seconds)}"
        return [self.style.paint("yellow", f"{self.style.marks.to} {text}")]

    def _question_asked(self, event: e.QuestionAsked) -> list[str]:
        then = "; the run waits for the answer" if event.waits else ""
        text = f"the agent asks: {clean(event.text[:4000])}\nanswer with `ralph tell`{then}"
        return self._loud("warn", self.style.marks.question, text)

    def _person_told(self, event: e.PersonTold) -> list[str]:
        return [
            line
            for note in event.notes
            for line in self._loud("cyan", self.style.marks.person, f"you: {clean(note.text[:4000])}")
        ]

    def _scm_finished(self, event: e.ScmFinished) -> list[str]:
        detail = f": {short(event.detail, 300)}" if event.detail else ""
        return self._result(event.ok, f"{short(event.task, 80)}{'' if event.ok else ' failed'}{detail}")

    def _handed_over(self, event: e.HandedOver) -> list[str]:
        return self._loud("warn", self.style.marks.warning, hand_over_words(event.hand_over))

    def _notice(self, event: e.Notice) -> list[str]:
        if event.level == "debug":
            return self._debug(event.text) if self.verbose else []
        if event.level == "info":
            return self._loud("dim", self.style.marks.info, clean(event.text[:4000]))
        return self._loud("warn", self.style.marks.warning, clean(event.text[:4000]))

    def _permission_denied(self, event: e.PermissionDenied) -> list[str]:
        """Return the denied tool; the advice comes only once, because the agent will try again."""
        said = f"the agent was not allowed to use {short(event.tool, 80)}"
        if self._has_been_denied:
            return self._loud("dim", self.style.marks.info, said)
        self._has_been_denied = True
        own = f" ({short(event.allow_list, 100)})" if event.allow_list else ""
        return self._loud("warn", self.style.marks.warning, f"{said}. To let it: {WAYS_OUT}{own}")

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
        return [self.style.paint("dim", f"[ralph] {line}") for line in clean(text[:20_000]).split("\n")]


MOST = 4_000  # lines a second
_ROW = 100  # characters: a line that is longer takes several rows of a screen


class Flow:
    """Lets a number of lines of talk through, and as many more each second. `left_out` counts the rest."""

    def __init__(self, most: float = MOST) -> None:
        self.left_out = 0
        self._most = self._room = most
        self._at = 0.0

    def pass_time(self, now: float) -> None:
        if now - self._at >= 1 or now < self._at:
            self._room, self._at = self._most, now

    def is_full(self, now: float) -> bool:
        """Return whether talk is dropped at the moment."""
        return self._room <= 0 and 0 <= now - self._at < 1

    def takes(self, event: Event) -> bool:
        is_taken = self._room > 0 or type(event) not in TALK
        self.left_out += not is_taken
        return is_taken

    def carry(self, lines: list[str]) -> None:
        self._room -= len(lines) + sum(map(len, lines)) // _ROW
