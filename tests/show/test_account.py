"""A journal becomes an account: chapters, stretches of time, refusals, questions, and what needs a person."""

from ralph.core import events as e
from ralph.core.model import Check, Iteration, PersonNote, Question, Turn, Usage
from ralph.history.account import Account, Accountant, Changed, with_files
from ralph.history.needs import needs


def told(*events: e.Event, state: str = "", now: float = 0.0) -> Account:
    accountant = Accountant("r1")
    for at, event in enumerate(events):
        accountant.hear(event, 1000.0 + at)
    return accountant.so_far(state, now)


STARTED = e.RunStarted("goal", "checks", "claude", "/ws", 9, ("a",), ("tag:X",), ("checks",), base_tree="h:t0")


def iteration(number: int, passed: bool = False, **more: object) -> e.IterationFinished:
    turn = Turn("answer", tool_calls=2, usage=Usage(100, 10, cost_usd=0.5), duration=3.0)
    record = Iteration(
        number, turn, (Check("a", passed, 0 if passed else 1, duration=1.0),), tree=f"h:t{number}", **more
    )  # type: ignore[arg-type]
    return e.IterationFinished(number, record)


def test_a_whole_run(run: list[e.Event]) -> None:
    account = told(*run)
    assert [(one.number, one.happened) for one in account.chapters] == [
        (1, "claim refused: checks"),
        (2, "failed: the agent exited with 1"),
        (3, "done"),
    ]
    first, second, third = account.chapters
    assert [(check.name, check.passed, check.how) for check in first.checks] == [
        ("make test", False, "exit 1"),
        ("make lint", True, ""),
    ]
    assert [(one.claim, one.gate) for one in first.refused] == [("COMPLETE", "checks")]
    assert (first.tool_errors, second.uncounted) == (1, 1)
    assert third.scm == [("commit", True, "Accept empty input"), ("push", False, "no remote named origin")]
    assert {one.kind for one in account.stretches} == {"turn", "check", "wait"}
    assert account.sentence.startswith("ralph: done after 3 iterations")
    assert account.outcome == account.state == "done"


def test_an_iteration_that_was_cut_off_and_begun_anew_is_one_chapter() -> None:
    started = (e.IterationStarted(1, 9, "goal"), e.AgentStarted("claude"))
    account = told(STARTED, *started, STARTED, *started, e.AgentFinished(0, 1.0), iteration(1, True))
    assert [one.number for one in account.chapters] == [1]
    assert account.chapters[0].is_whole


def test_an_iteration_whose_claim_nobody_looked_for_is_not_said_to_have_none() -> None:
    begun, cut_off = e.IterationStarted(1, 9, "goal"), e.RunFinished("interrupted", "SIGINT", 1, None, 1.0, 130)
    interrupted = (STARTED, begun, iteration(1, True), cut_off)
    again = e.IterationStarted(2, 9, "goal")
    cases: list[tuple[tuple[e.Event, ...], list[str]]] = [
        (interrupted, ["interrupted"]),
        ((*interrupted, STARTED, e.RunFinished("done", "why", 1, None, 1.0, 0)), ["done"]),
        ((*interrupted, STARTED, again, cut_off), ["no claim", "not finished"]),
    ]
    for events, happened in cases:
        assert [chapter.happened for chapter in told(*events).chapters] == happened


def test_the_time_between_a_death_and_a_resumption_is_nobodys() -> None:
    accountant = Accountant("r")
    for at, event in ((0.0, STARTED), (1.0, e.AgentStarted("a")), (2.0, e.AgentText("x")), (5000.0, STARTED)):
        accountant.hear(event, at)
    (turn,) = accountant.so_far("killed").stretches
    assert (turn.began, turn.ended) == (1.0, 2.0)


def test_one_shot_runs_have_a_chapter_too() -> None:
    account = told(STARTED, e.AgentStarted("claude"), e.AgentFinished(0, 1.0), iteration(1))
    assert [one.number for one in account.chapters] == [1]


def test_a_run_without_an_end_is_what_it_is_known_to_be() -> None:
    account = told(STARTED, e.IterationStarted(1, 9, "goal"), e.AgentStarted("claude"), state="killed")
    assert (account.state, account.sentence) == ("killed", "ralph: killed in iteration 1")
    assert account.chapters[0].happened == "not finished"
    assert needs(account)[0].command == "ralph resume r1"


def test_a_run_at_work_lasts_until_now_however_long_ago_it_last_spoke() -> None:
    account = told(STARTED, e.IterationStarted(1, 9, "goal"), e.AgentStarted("claude"), state="running", now=4600.0)
    assert (account.seconds, account.stretches[-1].ended) == (3600.0, 4600.0)


def test_money_and_tokens_add_up_over_all_turns() -> None:
    lost = e.TurnNotCounted(Turn("", usage=Usage(7, cost_usd=0.25)))
    account = told(
        STARTED, e.IterationStarted(1, 9, "g"), lost, iteration(1), e.IterationStarted(2, 9, "g"), iteration(2)
    )
    assert (account.cost_usd, account.usage.tokens) == (1.25, 227)


def test_the_trees_around_each_iteration_and_around_all() -> None:
    account = told(STARTED, e.IterationStarted(1, 9, "g"), iteration(1), e.IterationStarted(2, 9, "g"), iteration(2))
    assert account.pairs() == {1: ("h:t0", "h:t1"), 2: ("h:t1", "h:t2"), 0: ("h:t0", "h:t2")}
    known = with_files(account, {0: [Changed("M", "f", 1, 2)], 2: [Changed("M", "f", 1, 2)]})
    assert (known.chapters[0].files, known.chapters[1].files) == (None, [Changed("M", "f", 1, 2)])


def test_a_question_needs_an_answer_until_it_has_one() -> None:
    asked = e.QuestionAsked("q", "which?")
    assert needs(told(STARTED, asked))[0].text == "The agent asks: which?"
    answer = e.PersonTold(2, (PersonNote("n", "this one", Question("q", "which?")),))
    answered = told(STARTED, asked, answer)
    assert answered.questions[0].answer == "this one"
    assert not needs(answered)


def test_what_ended_unfinished_says_how_to_go_on() -> None:
    for outcome in ("exhausted", "budget", "timeout", "stalled", "failed", "interrupted", "fatal"):
        account = told(
            STARTED, e.IterationStarted(1, 9, "g"), iteration(1), e.RunFinished(outcome, "why", 1, None, 1.0, 1)
        )
        first, second = needs(account)
        assert "ralph resume r1" in first.command
        assert "A check still fails (exit 1): a" in second.text


def test_unverified_work_wants_a_look_and_a_branch_wants_a_merge() -> None:
    finished = e.RunFinished("done", "why", 1, None, 1.0, 0, verified=False, branch="ralph/r1")
    assert [need.command for need in needs(told(STARTED, finished))] == ["ralph diff", "git merge ralph/r1"]
    assert not needs(told(STARTED, e.RunFinished("done", "why", 1, None, 1.0, 0)))


def test_a_branch_without_work_wants_nothing() -> None:
    finished = e.RunFinished("stopped", "why", 1, None, 1.0, 0, branch="ralph/r1", untouched=True)
    assert not needs(told(STARTED, finished))


def test_only_what_matters_is_read() -> None:
    kinds = Accountant("r").kinds
    assert "iteration_finished" in kinds
    assert not kinds & {"agent_text", "tool_started", "tool_finished"}
