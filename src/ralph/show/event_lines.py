"""Which lines does an event become? Depends on events alone, so that a live run and its journal read the same."""

from collections.abc import Callable
from typing import Any

from ralph.core import events as e
from ralph.core.events import TALK, Event, Unheard
from ralph.core.model import WAYS_OUT
from ralph.core.text import clean, short, tail
from ralph.show.outlet import Style
from ralph.show.turn_lines import VERBOSE, LineLimits, TurnLines
from ralph.show.words import duration, exit_words, moment, plural

Teller = Callable[[Any], list[str]]
_WIDE = "⛔⏳❓💬"  # marks of two columns
WORDLESS = {"turn": "one turn is over", "checks": "the checks pass"}
"""Claims that need no word of the agent's."""


class EventLines:
    """Renders events one after the other.

    `agent_output` False hides what the agent says and does; `announces` tells of checks when they start, which a
    live status line makes needless; `columns` is the room on a line (0: no limit), and may change at any time.
    """

    def __init__(
        self,
        style: Style,
        *,
        verbose: bool = False,
        agent_output: bool = True,
        announces: bool = True,
        columns: int = 0,
    ) -> None:
        self.style, self.verbose, self.announces = style, verbose, announces
        self.limits = VERBOSE if verbose else LineLimits()
        self.talk = TurnLines(style, self.limits, columns)
        self._block = ""
        self._claims: tuple[str, ...] = ()
        self._has_been_denied = False
        talk = self.talk
        self._tellers: dict[type, tuple[str, Teller]] = {
            e.RunStarted: ("run", self._run_started),
            e.IterationStarted: ("iteration", self._iteration_started),
            e.AgentStarted: ("agent", self._agent_started),
            e.AgentFinished: ("turn", talk.finished),
            e.TurnNotCounted: ("turn", self._turn_not_counted),
            e.CheckStarted: ("check", self._check_started),
            e.CheckFinished: ("check", self._check_finished),
            e.ReviewStarted: ("review", self._review_started),
            e.ReviewFinished: ("review", self._review_finished),
            e.ClaimRejected: ("claim", self._claim_rejected),
            e.Waiting: ("waiting", self._waiting),
            e.Paused: ("waiting", self._paused),
            e.Continued: ("waiting", self._continued),
            e.QuestionAsked: ("person", self._question_asked),
            e.PersonTold: ("person", self._person_told),
            e.ScmFinished: ("scm", self._scm_finished),
            e.Notice: ("notice", self._notice),
            e.PermissionDenied: ("denied", self._permission_denied),
            e.AgentResult: ("", talk.result),
        }
        if verbose:
            self._tellers |= {e.IterationFinished: ("claim", self._seeking), e.Converged: ("claim", self._found)}
        if agent_output:
            self._tellers |= {
                e.AgentText: ("text", talk.text),
                e.ToolStarted: ("tool", talk.tool_started),
                e.ToolFinished: ("tool", talk.tool_finished),
                e.TodoUpdated: ("todo", talk.todo),
                e.AgentProgress: ("text", talk.progress),
            }

    @property
    def columns(self) -> int:
        return self.talk.columns

    @columns.setter
    def columns(self, columns: int) -> None:
        self.talk.columns = columns

    def __call__(self, event: e.Event) -> list[str]:
        """The lines for `event`, without newlines; an empty one in front where another kind of thing begins."""
        found = self._tellers.get(type(event))
        if found is None:
            return [] if type(event) in e.NAMES or isinstance(event, e.Unheard) else self._of_a_work(event)
        block, teller = found
        lines = teller(event)
        if lines and block != self._block:
            if self._block:
                lines.insert(0, "")
            self._block = block
        return lines

    def _of_a_work(self, event: object) -> list[str]:
        """What happened to an item of a backlog, or at its gate."""
        from ralph.show.works import sentence

        text, tone = sentence(event)
        return [self.style.paint(tone, text)] if text else []

    def left_out(self, events: int) -> str:
        more = f"{self.style.marks.more} {plural(events, 'more thing')} that nobody could have read: see the log"
        return self.style.paint("dim", more)

    def skipped(self, lines: int) -> str:
        return self.style.paint("dim", f"{self.style.marks.more} {plural(lines, 'line')} skipped: the reader is slow")

    def _run_started(self, event: e.RunStarted) -> list[str]:
        paint = self.style.paint
        dot = f" {self.style.marks.dot} "
        self._claims = event.claims
        facts = [
            "resumed" if event.resumed else "",
            short(event.agent, 60),
            short(event.preset, 40),
            short(event.workspace, 200),
        ]
        title = self._cut(dot.join(fact for fact in facts if fact), 5 + len(dot))
        lines = [f"{paint('title', 'ralph')}{dot}{title}"]
        gates = [short(gate, 80) for gate in event.gates if gate != "checks"]
        unguarded = event.claims and not event.gates and not event.checks and event.claims != ("turn",)
        rows = {
            "task": short(event.task, 200),
            "goal": short(event.goal, 200),
            "until": " or ".join(WORDLESS.get(claim) or short(claim, 80) for claim in event.claims),
            "checks": dot.join(short(check, 80) for check in event.checks),
            "gates": dot.join(gates) or ("none: the agent's word alone ends this run" if unguarded else ""),
            "branch": short(event.branch, 200),
        }
        return lines + [f"  {paint('dim', f'{name:<7}')} {self._cut(text, 10)}" for name, text in rows.items() if text]

    def _iteration_started(self, event: e.IterationStarted) -> list[str]:
        of = f"/{event.max_iterations}" if event.max_iterations is not None else ""
        rule = self.style.marks.rule
        title = f"{rule * 2} iteration {event.iteration}{of} "
        line = title + rule * max(min(self.columns or 80, 100) - len(title), 2)
        verbose = self._debug(f"Iteration {event.iteration}{of} starting") if self.verbose else []
        return [self.style.paint("title", line), *verbose]

    def _agent_started(self, event: e.AgentStarted) -> list[str]:
        self.talk.begin()
        lines = []
        if event.purpose == "message":
            lines = [self.style.paint("dim", f"{self.style.marks.check} {short(event.agent, 80)}: commit message")]
        if self.verbose and event.argv:
            import shlex

            lines += self._debug("Agent command: " + short(shlex.join(event.argv), 1000))
        return lines

    def _turn_not_counted(self, event: e.TurnNotCounted) -> list[str]:
        kind = event.turn.ended_by or (event.turn.failure.kind if event.turn.failure else "")
        why = f" ({short(kind, 200)})" if kind else ""
        return [self.style.paint("yellow", f"{self.style.marks.retry} this turn does not count as an iteration{why}")]

    def _check_started(self, event: e.CheckStarted) -> list[str]:
        name = short(event.name, 200)
        if self.verbose:
            return self._debug(f"Running guardrail: {name}")
        return [self.style.paint("dim", f"{self.style.marks.check} {name}")] if self.announces else []

    def _check_finished(self, event: e.CheckFinished) -> list[str]:
        marks, paint = self.style.marks, self.style.paint
        name, took = self._cut(short(event.name, 200), 40), duration(event.duration_s)
        verbose: list[str] = []
        if self.verbose:
            code = "no code" if event.exit_code is None else f"code {event.exit_code}"
            verbose = self._debug(f"Guardrail exited with {code} ({took})")
        if event.passed:
            return [f"{paint('green', marks.passed)} {name} {paint('dim', took)}", *verbose]
        if event.timeout is not None:
            how = f"timed out after {duration(event.timeout)}"
        else:
            how = f"{exit_words(event.exit_code)}, {took}"
        then = ", ".join(short(part, 300) for part in (event.action, event.log) if part)
        then = paint("dim", f" {marks.to} {then}") if then else ""
        title = f"{paint('alarm', marks.failed)} {paint('bold', name)} {paint('red', how)}{then}"
        return [title, *self._last_lines(event.output), *verbose]

    def _last_lines(self, output: str) -> list[str]:
        """The end of a failing check's output: there, tools sum up what went wrong."""
        limit = self.limits.check_lines
        lines = [line.rstrip() for line in clean(tail(output, 200 * limit)).expandtabs(4).split("\n")]
        lines = [line for line in lines if line][-limit:]
        quote = self.style.paint("red", self.style.marks.quote)
        return [f"  {quote} {self._cut(line[:500], 4)}" for line in lines]

    def _review_started(self, event: e.ReviewStarted) -> list[str]:
        return [f"{self.style.marks.review} review: {short(event.name, 200)}"]

    def _review_finished(self, event: e.ReviewFinished) -> list[str]:
        result = "the checks pass" if event.passed else "the checks do not pass"
        return [self._result(event.passed, f"review {short(event.name, 200)}: {result}")]

    def _seeking(self, event: e.IterationFinished) -> list[str]:
        return self._debug("Looking for a claim: " + " or ".join(short(claim, 80) for claim in self._claims))

    def _found(self, event: e.Converged) -> list[str]:
        return self._debug(f"Claim accepted: {short(event.signal, 80)}")

    def _claim_rejected(self, event: e.ClaimRejected) -> list[str]:
        origin = f"gate: {short(event.gate, 80)}, claim: {short(event.claim, 80)}"
        text = f"claim refused: {short(event.reason, 500)} ({origin})"
        return self._loud("alarm", self.style.marks.refused, text)

    def _waiting(self, event: e.Waiting) -> list[str]:
        until = f" until {moment(event.until, event.seconds)}" if event.until else ""
        text = f"waiting {duration(event.seconds)}{until}: {short(event.reason, 300)}"
        return self._loud("yellow", self.style.marks.waiting, text)

    def _paused(self, event: e.Paused) -> list[str]:
        how = "" if event.asks else "; go on with `ralph resume`"
        return self._loud("yellow", self.style.marks.paused, f"paused: {short(event.reason, 300)}{how}")

    def _continued(self, event: e.Continued) -> list[str]:
        text = f"going on after a pause of {duration(event.seconds)}"
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
        return [self._result(event.ok, f"{short(event.task, 80)}{'' if event.ok else ' failed'}{detail}")]

    def _notice(self, event: e.Notice) -> list[str]:
        if event.level == "debug":
            return self._debug(event.text) if self.verbose else []
        if event.level == "info":
            return self._loud("dim", self.style.marks.info, clean(event.text[:4000]))
        return self._loud("warn", self.style.marks.warning, clean(event.text[:4000]))

    def _permission_denied(self, event: e.PermissionDenied) -> list[str]:
        """The ways out are said once: nobody is there to ask, and the agent will try again."""
        said = f"the agent was not allowed to use {short(event.tool, 80)}"
        if self._has_been_denied:
            return self._loud("dim", self.style.marks.info, said)
        self._has_been_denied = True
        own = f" ({short(event.allow_list, 100)})" if event.allow_list else ""
        return self._loud("warn", self.style.marks.warning, f"{said}. To let it: {WAYS_OUT}{own}")

    def _result(self, ok: bool, text: str) -> str:
        marks, paint = self.style.marks, self.style.paint
        return f"{paint('green', marks.ok)} {text}" if ok else f"{paint('red', marks.error)} {paint('red', text)}"

    def _loud(self, color: str, mark: str, text: str) -> list[str]:
        """Text that must be read whole: broken into rows, never cut."""
        rows = [row for line in text.strip().expandtabs(4).split("\n") for row in self.talk.rows(line, len(mark) + 2)]
        margin = " " * (len(mark) + (mark in _WIDE) + 1)
        return [self.style.paint(color, f"{margin if at else mark + ' '}{row}") for at, row in enumerate(rows)]

    def _debug(self, text: str) -> list[str]:
        return [self.style.paint("dim", f"[ralph] {line}") for line in clean(text[:20_000]).split("\n")]

    def _cut(self, text: str, used: int) -> str:
        return self.talk.cut(text, used)


MOST = 10_000  # lines a second
_ROW = 100  # characters: a line that is longer takes several rows of a screen


class Flow:
    """Lets so many lines of talk through, and as many more each second. `left_out` counts what came beyond that."""

    def __init__(self, most: float = MOST) -> None:
        self.left_out = 0
        self._most = self._room = most
        self._at = 0.0

    def pass_time(self, now: float) -> None:
        if now - self._at >= 1 or now < self._at:
            self._room, self._at = self._most, now

    def is_full(self, now: float) -> bool:
        """Whether no more talk gets through at the moment."""
        return self._room <= 0 and 0 <= now - self._at < 1

    def takes(self, event: Event) -> bool:
        if isinstance(event, Unheard):
            self.left_out += event.number
            return False
        is_taken = self._room > 0 or type(event) not in TALK
        self.left_out += not is_taken
        return is_taken

    def carry(self, lines: list[str]) -> None:
        self._room -= len(lines) + sum(map(len, lines)) // _ROW
