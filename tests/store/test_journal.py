"""A journal is read back as it was written, whatever happens to its last line."""

import json
import os
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check, Failure, Fingerprint, HandOver, Iteration, Outcome, Run, Stop, Turn, Usage
from ralph.core.proof import Proof
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.loop import Parts, judge, run_loop
from ralph.run.policy import make_policy
from ralph.settings import Settings
from ralph.store.journal import Journal, JournalReader, load_run, read_entries
from ralph.store.writer import Writer
from ralph.testing import FakeWorkspace, ScriptedAgent

KEY = "sk-ant-api03-" + "aB3dE6gH" * 6
STARTED = events.RunStarted(
    goal="goal",
    preset="guardrails",
    agent="fake",
    workspace="/work",
    max_iterations=9,
    base_tree=Fingerprint.parse("head:tree"),
)

texts = st.text(max_size=40)
turns = st.builds(
    Turn,
    text=texts,
    exit_code=st.none() | st.integers(-15, 255),
    tool_calls=st.none() | st.integers(0, 99),
    usage=st.builds(
        Usage, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9), cost_usd=st.none() | st.floats(0, 9)
    ),
    failure=st.none()
    | st.builds(Failure, st.sampled_from(["ordinary", "limit"]), texts, st.none() | st.floats(0, 9e9)),
    session=st.none() | texts,
    ended_at=st.floats(0, 9e9),
    agent=st.sampled_from(["claude", "codex"]),
)
checks = st.builds(Check, name=texts, passed=st.booleans(), head=texts, tail=texts, cut=st.booleans(), hint=texts)
told = st.one_of(
    st.builds(events.AgentText, texts),
    st.builds(events.Waiting, st.floats(0, 9e5), texts, st.floats(0, 9e9)),
    st.builds(events.TurnNotCounted, turns),
    st.builds(
        lambda turn, checks: Iteration(number=0, turn=turn, checks=tuple(checks)), turns, st.lists(checks, max_size=2)
    ),
    st.builds(events.Notice, texts),
)


def written(path: Path, history: list[object], seq: int = 0) -> Run:
    """Write the history of a run to a journal; return the run as it is in memory."""
    run = Run(id=path.parent.name, goal=STARTED.goal, base_tree=STARTED.base_tree)
    journal = Journal(path).open()
    writer = Writer(run.id, [journal], seq=seq)
    writer(STARTED)
    for one in history:
        if isinstance(one, Iteration):
            iteration = Iteration(number=run.number, turn=one.turn, checks=one.checks)
            writer(events.IterationFinished(run.number, iteration))
            run = run.plus(iteration)
        else:
            writer(one)  # type: ignore[arg-type]
            run = run.retrying(one.turn) if isinstance(one, events.TurnNotCounted) else run
    journal.close()
    return run


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> object:
    def make() -> Path:
        return tmp_path_factory.mktemp("run") / "journal.ndjson"

    return make


@given(history=st.lists(told, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_run_is_read_back_as_it_was(fresh, history: list[object]) -> None:
    path = fresh()
    run = written(path, history)
    assert load_run(path).run == run


@given(history=st.lists(told, max_size=6), where=st.floats(0, 1), rubbish=st.binary(max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_kill_at_any_byte_loses_at_most_the_line_being_written(
    fresh, history: list[object], where: float, rubbish: bytes
) -> None:
    path = fresh()
    run = written(path, history)
    whole = path.read_bytes()
    left = whole[: int(len(whole) * where)] + rubbish
    path.write_bytes(left)
    kept = sum(line.startswith(b'{"type":"iteration_finished"') and _is_whole(line) for line in left.split(b"\n"))
    story = load_run(path)
    assert story.run.iterations[:kept] == run.iterations[:kept]
    assert len(story.run.iterations) == kept


def _is_whole(line: bytes) -> bool:
    try:
        return bool(json.loads(line))
    except ValueError:
        return False


@given(history=st.lists(told, max_size=5), where=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_lines_after_a_torn_line_are_whole(fresh, history: list[object], where: float) -> None:
    path = fresh()
    written(path, history)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * where)])
    before = load_run(path)
    journal = Journal(path).open()
    writer = Writer("run", [journal], seq=before.seq)
    writer(STARTED)
    writer(events.IterationFinished(before.run.number, Iteration(number=before.run.number, turn=Turn(text="after"))))
    journal.close()
    after = load_run(path)
    assert [one.turn.text for one in after.run.iterations[len(before.run.iterations) :]] == ["after"]
    assert after.seq == before.seq + 2


@given(
    history=st.lists(told, max_size=5),
    foreign=st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=60)), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_unreadable_lines_are_skipped(fresh, history: list[object], foreign: list[tuple[int, bytes]]) -> None:
    path = fresh()
    run = written(path, history)
    lines = path.read_bytes().splitlines(keepends=True)
    for place, rubbish in foreign:
        lines.insert(min(place, len(lines)), rubbish.replace(b"\n", b"") + b"\n")
    path.write_bytes(b"".join(lines))
    assert load_run(path).run == run


@given(values=st.lists(st.sampled_from(["a", "b", "STOP", ""]), max_size=6), cut=st.integers(0, 6))
@settings(max_examples=80, deadline=None)
def test_a_resumed_run_is_judged_like_one_that_was_never_interrupted(fresh, values: list[str], cut: int) -> None:
    """With the same answers, a run that is killed and resumed has the same end and the same iterations."""
    rules = make_policy(Settings(until=("word:STOP",), maximum_iterations=5)).rules

    def play(agent: ScriptedAgent, run: Run, tell: events.Tell) -> tuple[Run, Stop]:
        return run_loop(
            Parts(agent=agent, workspace=FakeWorkspace(), rules=rules, compose=lambda run, notes: "p", tell=tell), run
        )

    answers = [*values, *["end"] * 9]
    whole, end = play(ScriptedAgent(*answers), Run(id="r", goal="g"), lambda event: None)
    path = fresh()
    journal = Journal(path).open()
    writer = Writer("r", [journal])
    writer(STARTED)

    class Killed(Exception):
        pass

    class Mortal(ScriptedAgent):
        def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
            if len(run.iterations) == cut:
                raise Killed
            return super().take_turn(prompt, run, purpose)

    with suppress(Killed):
        play(Mortal(*answers), Run(id="r", goal="g"), lambda event: writer(event) and None)
    journal.close()
    story = load_run(path)
    again, verdict = play(ScriptedAgent(*answers[len(story.run.iterations) :]), story.resumed(), lambda event: None)
    assert verdict == end
    assert [one.turn.text for one in again.iterations] == [one.turn.text for one in whole.iterations]
    assert judge(again, rules) == judge(whole, rules)


@given(before=texts, after=texts, where=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_no_key_is_ever_written_and_every_line_can_be_read(fresh, before: str, after: str, where: int) -> None:
    path = fresh()
    journal = Journal(path).open()
    said = f"{before} {KEY} {after}"
    given_texts = [said if place == where else before for place in range(4)]
    turn = Turn(text=given_texts[0], failure=Failure("ordinary", given_texts[1]))
    check = Check(name=given_texts[2], passed=False, head=given_texts[3])
    event = events.IterationFinished(1, Iteration(number=1, turn=turn, checks=(check,)))
    (shown,) = Writer("r", [journal])(event)
    journal.close()
    assert KEY.encode() not in path.read_bytes()
    (entry,) = read_entries(path)
    assert entry.event() == shown
    assert isinstance(shown, events.IterationFinished)
    assert shown.record.number == 1


def test_secrets_in_variables_are_redacted(fresh) -> None:
    path = fresh()
    journal = Journal(path).open()
    shown = Writer("r", [journal], redact=Redactor([b"correct-horse"]))(events.AgentText("it is correct-horse."))
    journal.close()
    assert shown == [events.AgentText("it is [redacted].")]
    assert b"correct-horse" not in path.read_bytes()


def test_a_private_key_printed_line_by_line_is_redacted(fresh) -> None:
    lines = [
        "before",
        "x -----BEGIN EC PRIVATE KEY-----",
        "MHcCAQEE",
        "AwEHoUQD",
        "-----END EC PRIVATE KEY----- y",
        "after",
    ]
    journal = Journal(path := fresh()).open()
    writer = Writer("r", [journal])
    shown = [event for line in lines for event in writer(events.AgentText(line))]
    assert shown == [events.AgentText(text) for text in ("before", "x [redacted]", "", "", " y", "after")]
    writer(events.AgentText("-----BEGIN PRIVATE KEY-----"))
    writer(events.AgentFinished(exit_code=0, duration_s=1.0))
    assert writer(events.AgentText("the next turn")) == [events.AgentText("the next turn")]
    journal.close()
    assert b"MHcCAQEE" not in path.read_bytes()


def test_a_lone_surrogate_is_written_as_a_question_mark(fresh) -> None:
    path = fresh()
    journal = Journal(path).open()
    shown = Writer("r", [journal])(events.AgentText("caf\udce9 \ud83d"))
    journal.close()
    assert shown == [events.AgentText("caf? ?")]
    assert [entry.event() for entry in read_entries(path)] == shown


def test_the_journal_keeps_a_limited_amount_of_talk(fresh) -> None:
    path = fresh()
    journal = Journal(path).open()
    writer = Writer("r", [journal], most=1000)
    for _ in range(2):
        for _ in range(100):
            assert writer(events.AgentText("x" * 50)) == [events.AgentText("x" * 50)], "it is still shown"
        writer(events.AgentFinished(exit_code=0, duration_s=1.0))
    journal.close()
    kinds = [entry.type for entry in read_entries(path)]
    assert kinds.count("agent_text") < 20
    assert kinds.count("notice") == kinds.count("agent_finished") == 2
    assert [entry.seq for entry in read_entries(path)] == list(range(1, len(kinds) + 1))


@pytest.mark.parametrize(
    ("jump", "expected"),
    [(0.0, 12.0), (86400.0, 12.0), (-86400.0, 12.0)],
    ids=["steady", "set forward", "set back"],
)
def test_elapsed_time_does_not_depend_on_the_clock(
    fresh, monkeypatch: pytest.MonkeyPatch, jump: float, expected: float
) -> None:
    """Ten seconds of a turn and two of a check; the clock is set, or the machine sleeps, in between."""
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    journal = Journal(path := fresh()).open()
    writer = Writer("r", [journal])
    writer(STARTED)
    writer(events.AgentStarted("fake"))
    now += 10 + jump
    writer(events.AgentFinished(exit_code=0, duration_s=10.0), events.CheckStarted("c"))
    now += 2
    writer(events.CheckFinished(name="c", passed=True, duration_s=2.0))
    journal.close()
    assert load_run(path).elapsed == pytest.approx(expected)


def test_an_interrupted_turn_and_a_wait_count_as_far_as_known(fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    journal = Journal(path := fresh()).open()
    writer = Writer("r", [journal])
    writer(STARTED)
    writer(events.AgentStarted("fake"))
    now += 7
    writer(events.AgentText("seven seconds later"))
    now += 50_000  # killed, and resumed the next day
    writer(STARTED)
    writer(events.Waiting(30.0, "limit"))
    now += 8 * 3600  # the machine slept
    writer(events.AgentStarted("fake"))
    journal.close()
    assert load_run(path).elapsed == pytest.approx(7 + 30)
    journal = Journal(path).open()
    Writer("r", [journal])(
        events.RunFinished(
            outcome=Outcome.EXHAUSTED, reason="", iterations=0, cost_usd=None, duration_s=41.5, exit_code=1
        )
    )
    journal.close()
    assert load_run(path).elapsed == 41.5, "the run's own word counts"


def test_a_sleep_of_the_machine_during_a_check_does_not_count(fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    journal = Journal(path := fresh()).open()
    writer = Writer("r", [journal])
    writer(STARTED, events.CheckStarted("a"))
    now += 500
    writer(events.CheckFinished(name="a", passed=True, duration_s=2.0))
    journal.close()
    assert load_run(path).elapsed == pytest.approx(2)


def finished(number: int) -> events.IterationFinished:
    return events.IterationFinished(number, Iteration(number=number, turn=Turn(text="x")))


END = events.RunFinished(outcome=Outcome.EXHAUSTED, reason="", iterations=1, cost_usd=None, duration_s=1.0, exit_code=1)
INTERRUPTED = events.RunFinished(
    outcome=Outcome.INTERRUPTED, reason="", iterations=1, cost_usd=None, duration_s=1.0, exit_code=130
)


@pytest.mark.parametrize(
    ("history", "is_open"),
    [
        ([], False),
        ([finished(1)], True),
        ([finished(1), events.ScmFinished(1, "commit", True)], True),
        ([finished(1), events.AgentStarted("fake", purpose="message")], True),
        ([finished(1), events.IterationStarted(2, 9, "g")], False),
        ([finished(1), events.ClaimRejected("DONE", "checks", "red")], False),
        ([finished(1), events.Waiting(9.0, "pause")], False),
        ([finished(1), END], False),
        ([finished(1), INTERRUPTED], True),
        ([finished(1), STARTED], True),
        ([finished(1), events.IterationStarted(2, 9, "g"), INTERRUPTED], False),
    ],
)
def test_followups_are_open_until_the_next_event(fresh, history: list[events.Event], is_open: bool) -> None:
    journal = Journal(path := fresh()).open()
    writer = Writer("r", [journal])
    for event in (STARTED, *history):
        writer(event)
    journal.close()
    assert load_run(path).is_open is is_open


def test_an_unreadable_iteration_is_reported_as_missing(fresh) -> None:
    journal = Journal(path := fresh()).open()
    writer = Writer("r", [journal])
    for event in (STARTED, finished(1), finished(3)):
        writer(event)
    journal.close()
    story = load_run(path)
    assert (story.missing, len(story.run.iterations)) == (2, 1)


def test_a_journal_is_recreated_although_its_folder_is_removed_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal.ndjson"
    path.parent.mkdir()
    made: list[int] = []

    def restore() -> None:
        """Another process removes the first two folders as soon as they exist."""
        made.append(1)
        if len(made) > 2:
            path.parent.mkdir()

    journal = Journal(path, restore).open()
    journal(b"one\n")
    path.unlink()
    path.parent.rmdir()
    journal(b"two\n")
    assert path.read_text() == "one\ntwo\n"
    journal.close()


def test_a_removed_journal_is_recreated(fresh) -> None:
    path = fresh()
    made = []

    def restore() -> None:
        path.parent.mkdir()
        made.append(path.parent)

    journal = Journal(path, restore).open()
    writer = Writer("r", [journal])
    writer(STARTED)
    path.unlink()
    path.parent.rmdir()
    writer(finished(1))
    writer(finished(2))
    journal.close()
    assert made == [path.parent]
    assert [entry.type for entry in read_entries(path)] == ["run_started", "iteration_finished", "iteration_finished"]


def test_an_unwritable_journal_is_reported_once(tmp_path: Path) -> None:
    import resource

    journal = Journal(tmp_path / "journal.ndjson").open()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(UserError, match="File too large"):
            journal(b"x" * (2 << 20))
        journal(b"line\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        journal.close()


def test_a_device_is_not_used_as_a_journal() -> None:
    with pytest.raises(UserError, match="it is not a regular file"):
        Journal(Path("/dev/full")).open()
    assert Path("/dev/full").is_char_device()


def test_an_endless_line_takes_little_memory(tmp_path: Path) -> None:
    """The lines before and after it are read."""
    ours = b'{"type":"notice","timestamp":"","run":"1","seq":%d,"data":{"text":"x"}}\n'
    path = tmp_path / "journal.ndjson"
    path.write_bytes(ours % 1)
    os.truncate(path, 400 << 20)
    with path.open("ab") as file:
        file.write(b"\n" + ours % 2)
    tracemalloc.start()
    try:
        assert [entry.seq for entry in read_entries(path)] == [1, 2]
        with JournalReader.open(path) as reader:
            assert [entry.seq for entry in reader.entries()] == [1, 2]
        assert tracemalloc.get_traced_memory()[1] < 120 << 20
    finally:
        tracemalloc.stop()


def test_the_time_to_read_a_journal_is_linear(tmp_path: Path) -> None:
    limit = Turn(text="", agent="codex", failure=Failure("limit", "usage limit", 9e9))

    def seconds(count: int) -> float:
        path = tmp_path / "journal.ndjson"
        path.unlink(missing_ok=True)
        journal = Journal(path).open()
        writer = Writer("run", [journal])
        for number in range(1, count):
            writer(events.TurnNotCounted(limit))
            writer(events.IterationFinished(number, Iteration(number=number, turn=Turn(text="", agent="claude"))))
        for _ in range(count):
            writer(events.TurnNotCounted(limit))
        journal.close()
        began = time.thread_time()
        run = load_run(path).run
        assert (len(run.iterations), len(run.retries)) == (count - 1, count)
        return time.thread_time() - began

    assert min(seconds(6_000) / seconds(600) for _ in range(2)) < 20


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("head:files", Fingerprint("head", "files")),
        ("head:files:rest", Fingerprint("head", "files", "rest")),
        (f"{'0' * 40}:files", Fingerprint("", "files")),
        ("digest", Fingerprint(rest="digest")),
    ],
    ids=["in git", "with big files", "without a commit", "without git"],
)
def test_a_journal_with_fingerprints_as_texts_can_be_read(tmp_path: Path, written: str, read: Fingerprint) -> None:
    path, state = tmp_path / "journal.ndjson", Fingerprint("a", "b")
    hand_over = HandOver(after=1, agent="x", to="y", start=1, tree=state)
    lines: list[bytes] = []
    Writer("r", [lines.append])(
        replace(STARTED, base_tree=state),
        events.IterationFinished(1, Iteration(number=1, turn=Turn(text="hi"), tree=state)),
        events.HandedOver(hand_over),
        events.ProofFinished(1, Proof(verdict="red"), state),
    )
    path.write_bytes(b"".join(lines).replace(msgspec.json.encode(state), msgspec.json.encode(written)))
    run = load_run(path).run
    assert (run.base_tree, run.iterations[0].tree, run.hand_overs[0].tree) == (read, read, read)
