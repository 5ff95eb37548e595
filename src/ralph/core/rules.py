"""Rules: each reads the run and yields opinions. Their order in `run/policy.py` is their precedence.

A rule that yields only notes and waits can be a gate as well: a claim is believed if no gate yields anything.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ralph.core.claims import Claim, FoundMarker, Reading, find_blocked, find_claims
from ralph.core.judgement import describe_tests
from ralph.core.limits import reached_budget
from ralph.core.model import (
    Check,
    Iteration,
    Note,
    Opinions,
    Outcome,
    Refusal,
    Rule,
    Run,
    Stop,
    Wait,
    configured,
    tree_files,
)
from ralph.core.prompts import LOOK_AGAIN, MAX_CHECKS, NO_WORK, WROTE, check_note, more_checks_failed
from ralph.core.referees import describe_reviews
from ralph.core.text import listed, money, one_line, plural

# With one of these the agent of a supervised task asks not to be restarted.
WAIT_EXIT_CODE = 42
WAIT_FILE = "WAIT_WITHOUT_RESTART"


def interrupted(run: Run) -> Opinions:
    if run.seen.interrupted:
        yield interruption(run.seen.interrupted)


def interruption(by: str) -> Stop:
    return Stop(Outcome.INTERRUPTED, f"received {by}", interrupted_by=by)


def fatal_trouble(run: Run) -> Opinions:
    """End the run after a failure that another turn cannot fix."""
    if run.seen.trouble:
        yield Stop(Outcome.FATAL, run.seen.trouble)
    failure = run.retries[-1].failure if run.retries else None
    if failure and failure.kind == "fatal":
        yield Stop(Outcome.FATAL, failure.reason)


def wait_requested(run: Run) -> Opinions:
    if run.seen.wait_requested:
        yield Stop(Outcome.STOPPED, f"asked to wait: {run.seen.wait_requested}")


def wait_exit_code(run: Run) -> Opinions:
    """End the run if the agent exited with the code that asks for no restart."""
    latest = run.retries[-1] if run.retries else run.last and run.last.turn
    if latest and latest.exit_code == WAIT_EXIT_CODE:
        yield Stop(Outcome.STOPPED, f"the agent asked to wait (exit code {WAIT_EXIT_CODE})")


@configured
def completed(
    run: Run, claims: Sequence[Claim], gates: Sequence[Rule], reading: Reading = Reading(), doubts: Sequence[Rule] = ()
) -> Opinions:
    """End the run as done after a claim that every gate accepts.

    The notes of gates go into the next prompt, and a gate may yield a wait. Notes of `doubts` only add a warning to the
    outcome.
    """
    if run.hand_over:  # the previous agent's claim was refused
        return
    markers = find_claims(claims, run, reading)
    claim = next((claim for claim, marker in markers if not marker.doubt), None)
    if claim is None:
        # Say why the marker did not count, or an honest agent would be told that it didn't claim.
        for claim, marker in markers[:1]:
            yield from _refuse_wording(claim.marker, marker, "When the work is done")
        return
    objections = [opinion for gate in gates for opinion in gate(run)]
    for opinion in objections:
        yield opinion
        if isinstance(opinion, Note):
            is_note = opinion.about == "person"
            reason = "the agent has not read your note yet" if is_note else one_line(opinion.text.partition("\n")[0])
            yield Refusal(claim.marker, opinion.about, reason)
    if not objections:
        warnings = "".join(
            f"; warning: {note.text}" for doubt in doubts for note in doubt(run) if isinstance(note, Note)
        )
        yield Stop(
            Outcome.DONE,
            _why_done(claim, run) + describe_tests(run) + describe_reviews(run) + warnings,
            claim=claim.text or claim.kind,
        )


@configured
def claim_reminder(run: Run, claims: Sequence[Claim], reading: Reading = Reading()) -> Opinions:
    """Tell the agent that every check passes, and how to claim.

    This happens after the first iteration that passes without a claim; after each one if green checks can count as a
    claim.
    """
    missing = next((claim for claim in claims if claim.text), None)
    if not missing or run.retries or not run.last or not run.last.passes_checks or run.last.is_refused:
        return
    has_passed_before = any(iteration.passes_checks for iteration in run.iterations[:-1])
    if Claim("green") not in claims and (has_passed_before or find_claims(claims, run, reading)):
        return
    text = f"Every check passes now. If all of the work is done, {missing.request}; if it is not, continue with it."
    yield Note(text, about="claim")


def _refuse_wording(marker: str, misplaced: FoundMarker, when: str) -> Opinions:
    doubt = f'{WROTE} "{misplaced.words}", which does not count: {misplaced.doubt}.'
    advice = f"{when}, put {marker} alone on the last line, after an empty line, and don't lead up to it with a colon."
    yield Note(f"{doubt} {advice}", about="wording")
    yield Refusal(marker, "wording", f'the agent wrote "{misplaced.words}": {misplaced.doubt}')


UNSTARTABLE = (126, 127)  # exit codes of a shell: the command is not executable, or was not found


def startup_problem(checks: Sequence[Check]) -> tuple[str, str] | None:
    """Return the message and the hint for the first check of the baseline that could not start."""
    for check in checks:
        if check.exit_code in UNSTARTABLE and not check.timeout:
            return _cannot_start(check), "fix --check, or add --no-baseline if the agent will create the command"
    return None


def never_started(run: Run) -> Opinions:
    """End a run without a baseline if a check that has never started in it exits with 127 twice in a row."""
    for check in run.recent[-1].checks if len(run.recent) > 1 and not run.retries else ():
        codes = [result.exit_code for past in run.iterations for result in past.checks if result.name == check.name]
        before = [result.exit_code for result in run.recent[-2].checks if result.name == check.name]
        if before and set(codes) == {127}:
            yield Stop(Outcome.FATAL, f"{_cannot_start(check)} twice in a row (fix --check)")


def _cannot_start(check: Check) -> str:
    why = "not executable" if check.exit_code == 126 else "command not found"
    return f'the check "{one_line(check.name)}" cannot start: {why} (exit code {check.exit_code})'


@configured
def blocked(run: Run, word: str, reading: Reading = Reading()) -> Opinions:
    """End the run if the agent reports that it cannot continue. After a resume it has to report that again."""
    report = find_blocked(word, run.recent[-1].turn, reading) if run.recent and not run.retries else None
    if report is None:
        return
    marker, why = report
    if not marker.doubt:
        yield Stop(Outcome.BLOCKED, why or "the agent said that it cannot continue, but not why")
        return
    yield from _refuse_wording(f"<response>{word}: why</response>", marker, "If you cannot continue")


def _why_done(claim: Claim, run: Run) -> str:
    if claim.kind == "green":
        return "the checks pass and the agent had nothing to add"
    if claim.kind == "checks":
        return f"every check passes{_red_before(run)}"
    reasons = {
        "file": f"the file {claim.text} is there",
        "turn": "the agent finished its turn",
        "person": "a person accepted the test files as they are",
    }
    reason = reasons.get(claim.kind, f"the agent said {claim.marker}")
    count = len(run.last.checks) if run.last else 0
    return f"{plural(count, 'check')} pass{'es' * (count == 1)}{_red_before(run)} and {reason}" if count else reason


def _red_before(run: Run) -> str:
    """Return how many checks were red in the baseline, for the outcome: one that was green before proves nothing."""
    if not run.baseline:
        return ""
    red = sum(not check.passed for check in run.baseline)
    return f" ({red or 'no check'} {'were' if red > 1 else 'was'} red before)"


@configured
def failing_checks(run: Run, truncate: int = 5000) -> Opinions:
    """Tell the agent about every red check, as of the files that are in the workspace now."""
    if run.present:
        yield from _red_checks(run.present, truncate)


def _red_checks(last: Iteration, truncate: int) -> Opinions:
    failed = [check for check in last.checks if not check.passed]
    for check in failed[:MAX_CHECKS]:
        yield check_note(check, truncate)
    if more := [check.name for check in failed[MAX_CHECKS:]]:
        yield Note(more_checks_failed(more), about="checks")
    if not last.checked:
        yield Note("The checks were not run after the last turn.", about="checks")


@configured
def green_checks(run: Run, truncate: int = 5000) -> Opinions:
    """Gate: every check passes, and no turn was taken since the checks ran."""
    if run.last is None or run.retries:
        yield Note("The checks have not been run yet.", about="checks")
    if run.last:
        yield from _red_checks(run.last, truncate)


@configured
def claimed_in_a_row(
    run: Run, times: int, claims: Sequence[Claim], reading: Reading, gates: Sequence[Rule]
) -> Opinions:
    """Gate: the latest `times` turns claim, and all but the first of them changed nothing.

    It doesn't object while another of the `gates` does: the agent has something to change then.
    """
    if any(opinion for gate in gates for opinion in gate(run)):
        return
    count = 0
    for last in reversed(run.iterations):
        then = replace(run, iterations=run.iterations[: last.number])
        if all(marker.doubt for _, marker in find_claims(claims, then, reading)):
            break
        count += 1
        if count == times or tree_files(last.tree) != tree_files(run.tree_before(last.number)):
            break
    if count < times:
        yield Note(LOOK_AGAIN.format(said=count, times=times), about="claims")


def refused_commit(run: Run) -> Opinions:
    """Gate: no hook refused the commit of the last iteration."""
    if run.seen.hook_output:
        text = "Your work was not committed: a commit hook of this repository refused it."
        yield Note(text, about="commit", output=run.seen.hook_output)


def open_tasks(run: Run) -> Opinions:
    """Gate: every task of the tasks file is done. Names the next one."""
    tasks = run.seen.tasks or ()
    open_ones = [task for task in tasks if not task.done]
    if open_ones:
        upcoming = next((task for task in open_ones if not task.failed), open_ones[0])
        count = f"{len(open_ones)} of {len(tasks)} tasks are not done."
        stuck = (
            f" Failed or blocked: {sum(task.failed for task in open_ones)}." if any(t.failed for t in open_ones) else ""
        )
        yield Note(f"{count}{stuck} The next one: {upcoming.text}", about="tasks")


@configured
def no_work(run: Run, at_least: int) -> Opinions:
    """Gate: the agent made at least that many tool calls or, if it doesn't report them, changed the workspace."""
    counts = [turn.tool_calls for iteration in run.iterations for turn in iteration.turns]
    if any(count is not None for count in counts):
        has_worked = sum(count or 0 for count in counts) >= at_least
    else:
        has_worked = run.last is not None and run.last.tree not in (None, run.base_tree)
    if not has_worked:
        yield Note(NO_WORK, about="work")


@configured
def tell_protected(run: Run, rule: str) -> Opinions:
    """Tell the agent in its first prompt what is protected."""
    if not run.iterations:
        yield Note(rule, about="protect")


def protected_files(run: Run) -> Opinions:
    """Gate: the last iteration changed no protected files (ralph restored them before the checks)."""
    if run.last and run.last.touched:
        names = listed(run.last.touched)
        yield Note(f"Protected files must not be changed; these were restored or removed: {names}", about="protect")


@configured
def wait_for_children(run: Run, timeout: float) -> Opinions:
    """Wait for the runs that the agent started."""
    seconds = timeout - run.seen.done_for
    children = run.seen.children
    if children and seconds > 0:
        yield Wait(seconds, f"children are running: {', '.join(children)}", children=children)


def running_children(run: Run) -> Opinions:
    """Doubt: the claim gets a warning while runs that the agent started are still running."""
    if run.seen.children:
        yield Note(f"these children have not ended: {', '.join(run.seen.children)}", about="children")


@configured
def unless_waiting(run: Run, first: Rule, *limits: Rule) -> Opinions:
    """Apply the rule `first`, and then `limits` unless it yields a wait, so that no limit ends a run that is nearly
    done."""
    is_waiting = False
    for opinion in first(run):
        is_waiting = is_waiting or isinstance(opinion, Wait)
        yield opinion
    if not is_waiting:
        for limit in limits:
            yield from limit(run)


@configured
def at_most(
    run: Run,
    *,
    iterations: int | None = None,
    cost: float | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
    claims: Sequence[Claim] = (),
    reading: Reading = Reading(),
) -> Opinions:
    """End the run at a limit, in the order budget, time, iterations.

    The reason also says if only one of `claims` was missing, or if the last turn failed.
    """
    usage = run.spent if cost is None and tokens is None else run.usage  # which adds up all turns, so it is slow
    reached = reached_budget(usage, cost, tokens)
    if reached == "max-cost":
        yield Stop(Outcome.BUDGET, f"{money(usage.cost_usd or 0.0)} of {money(cost or 0.0)} spent")
    if reached == "max-tokens":
        yield Stop(Outcome.BUDGET, f"{usage.tokens} of {tokens} tokens used")
    if seconds is not None and run.seen.elapsed >= seconds:
        yield Stop(Outcome.TIMEOUT, f"the time limit of {seconds:g} seconds is over")
    if iterations is not None and len(run.iterations) >= iterations:
        summary = f"{plural(iterations, 'iteration')} without an accepted claim"
        yield Stop(Outcome.EXHAUSTED, summary + _what_was_missing(claims, reading, run))


def _what_was_missing(claims: Sequence[Claim], reading: Reading, run: Run) -> str:
    missing = next((claim.deed for claim in claims if claim.text), "")
    last = run.last
    if last is not None and last.turn.failure:
        return f": the last turn failed: {last.turn.failure.reason}"
    markers = [marker for _, marker in find_claims(claims, run, reading)]
    if not missing or last is None or not last.is_green or any(not marker.doubt for marker in markers):
        return ""
    lacking = (
        f'what the agent wrote ("{markers[0].words}") does not count: {markers[0].doubt}'
        if markers
        else f"the agent did not {missing}"
    )
    return f": {'the checks pass, but ' if last.checks else ''}{lacking}"


@configured
def pause_between_turns(run: Run, seconds: float) -> Opinions:
    """Wait between turns."""
    if run.last and seconds > 0:
        over = run.seen.at - run.last.turn.ended_at
        if 0 <= over < seconds:  # else the clock was set back
            yield Wait(seconds - over, "pause between turns")


def person_notes(run: Run) -> Opinions:
    """Tell the agent what a person said to the run."""
    for note in run.seen.told:
        if note.answers:
            yield Note(f"You asked: {note.answers.text}\n{PERSON} answers:\n{note.text}", about="person")
        else:
            yield Note(f"A note from {PERSON.lower()}:\n{note.text}", about="person")


def unread_notes(run: Run) -> Opinions:
    """Gate: the agent has read every answer to its questions, and every note that came with a resume."""
    unread = tuple(note for note in run.seen.told if note.answers or not run.recent)
    yield from person_notes(replace(run, seen=replace(run.seen, told=unread)))


PERSON = "The person who started this run"


def wait_while_paused(run: Run) -> Opinions:
    if run.seen.paused:
        yield Wait(float("inf"), "a person asked for it", until="resume")


def wait_for_answer(run: Run) -> Opinions:
    """Wait until the agent's question is answered."""
    if run.seen.questions:
        asked = one_line(run.seen.questions[0].text)
        yield Wait(float("inf"), f"waiting for an answer: {asked}", until="answer")


def may_ask(run: Run) -> Opinions:
    """Tell the agent how to ask."""
    yield Note(MAY_ASK, about="question")


MAY_ASK = (
    "If you need a decision that only the person who started this run can make, ask for it with "
    '`ralph ask "your question"`, or write it to the file .ralph/QUESTION.md; then end your turn. '
    "The next turn begins with the answer."
)
