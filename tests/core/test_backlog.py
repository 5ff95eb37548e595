"""The decisions about a backlog: which tasks start, are merged, wait and are parked, judged by the board alone."""

import heapq
import itertools
import random
import time
from typing import Any

import pytest
from msgspec.structs import replace

from ralph.core import backlog_events
from ralph.core.backlog import (
    EVERYTHING,
    BacklogTask,
    Board,
    Conflict,
    FailedCheck,
    GateVerdict,
    Job,
    cycle,
    displayed_states,
    fits,
    forecast,
    is_over,
    next_batch,
    next_starts,
    outcome,
    overlap,
)


def job(key: str, state: Any = "queued", **known: Any) -> Job:
    about = {name: known.pop(name) for name in ("after", "touches", "priority", "done") if name in known}
    return Job(task=BacklogTask(key=key, title=key, **about), state=state, **known)


def board(*jobs: Job, **known: Any) -> Board:
    return Board(jobs={one.task.key: one for one in jobs}, **known)


def test_as_many_tasks_start_as_there_are_slots_in_backlog_order() -> None:
    assert next_starts(board(job("a"), job("b"), job("c"), slots=2)) == ("a", "b")


def test_nothing_starts_if_all_slots_are_taken() -> None:
    assert next_starts(board(job("a", "working"), job("b"), slots=1)) == ()


def test_a_smaller_priority_comes_first() -> None:
    assert next_starts(board(job("a", priority=2), job("b", priority=1), slots=1)) == ("b",)


def test_a_refused_task_starts_before_new_ones() -> None:
    assert next_starts(board(job("a"), job("b", returns=1), slots=1)) == ("b",)


@pytest.mark.parametrize("state", ["queued", "working", "ready", "parked"])
def test_a_task_waits_until_its_dependencies_are_merged(state: Any) -> None:
    assert "b" not in next_starts(board(job("a", state), job("b", after=("a",))))


@pytest.mark.parametrize("first", [job("a", "merged"), job("a", "withdrawn", done=True)])
def test_a_merged_or_ticked_task_lets_those_after_it_start(first: Job) -> None:
    assert next_starts(board(first, job("b", after=("a",)))) == ("b",)


def test_two_tasks_that_touch_the_same_files_do_not_run_at_once() -> None:
    a, b, c = job("a", touches=("src/a/**",)), job("b", touches=("src/a/x.py",)), job("c", touches=("src/b/**",))
    assert next_starts(board(a, b, c)) == ("a", "c")
    assert next_starts(board(replace(a, state="working"), b, c)) == ("c",)


@pytest.mark.parametrize(
    ("one", "other", "met"),
    [
        ("src/**", "src/a.py", True),
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "src/ab.py", False),
        ("src", "src/a.py", True),
        ("src/", "src/a.py", True),
        ("src/*.py", "src/*.js", False),
        ("**/*.py", "docs/a.md", False),
        ("**/*.py", "docs/a.py", True),
        ("src/**", "docs/**", False),
        ("*", "docs/**", True),
    ],
)
def test_patterns_overlap_if_they_may_match_the_same_file(one: str, other: str, met: bool) -> None:
    assert overlap((one,), (other,)) is met
    assert overlap((other,), (one,)) is met


def test_no_loop_starts_while_enough_tasks_are_ready() -> None:
    ready = [job(f"r{number}", "ready") for number in range(2)]
    assert next_starts(board(*ready, job("a"), slots=4)) == ()
    assert next_starts(board(ready[0], job("a"), slots=4)) == ("a",)


def test_tasks_start_while_the_gate_can_merge_all_ready_ones_at_once() -> None:
    ready = [job(f"r{number}", "ready") for number in range(4)]
    assert next_starts(board(*ready[:3], job("a"), slots=4, window=8)) == ("a",)
    assert next_starts(board(*ready, job("a"), slots=4, window=8)) == ()
    assert next_starts(board(*ready[:3], job("a"), slots=4, window=3)) == ()
    back = job("b", "working", returns=1)
    assert next_starts(board(*ready[:3], back, job("a"), slots=4, window=8)) == (), "where tasks conflict"


def test_a_refused_task_starts_even_if_enough_tasks_are_ready() -> None:
    ready = [job(f"r{number}", "ready", files=("f",)) for number in range(2)]
    assert next_starts(board(*ready, job("b", returns=1, refused=("f",)), slots=4)) == ("b",)


def test_a_batch_contains_the_ready_tasks_up_to_the_window() -> None:
    ready = [job(f"r{number}", "ready") for number in range(4)]
    assert next_batch(board(*ready, window=3)) == ("r0", "r1", "r2")


def test_the_gate_merges_one_batch_at_a_time_and_none_while_it_is_stuck() -> None:
    assert next_batch(board(job("a", "ready"), trying=("b",))) == ()
    assert next_batch(board(job("a", "ready"), stuck="the target is red")) == ()


def test_nothing_is_merged_into_the_files_of_a_refused_task_until_it_is_ready() -> None:
    refused = job("a", "working", returns=1, refused=("hot",))
    same, other = job("b", "ready", files=("hot", "x")), job("c", "ready", files=("cold",))
    assert next_batch(board(refused, same, other)) == ("c",)
    assert displayed_states(board(refused, same, other))["b"] == "held"
    back = replace(refused, state="ready", files=("hot",))
    assert next_batch(board(same, back, other, window=1)) == ("a",)
    assert next_batch(board(replace(refused, state="parked"), same, window=1)) == ("b",)


def test_the_second_of_two_refused_tasks_on_one_file_waits_for_the_first() -> None:
    first, second = (job(key, returns=1, refused=("hot",)) for key in "ab")
    assert next_starts(board(first, second)) == ("a",)
    assert displayed_states(board(first, second)) == {"a": "queued", "b": "held"}
    assert next_starts(board(first, replace(second, returns=2))) == ("b",), "who came back more often goes first"


def test_a_change_of_too_many_files_overlaps_with_every_other() -> None:
    refused = job("a", "working", returns=1, refused=(EVERYTHING,))
    assert next_batch(board(refused, job("b", "ready", files=("x",)))) == ()


def test_no_task_waits_for_a_refused_one_that_the_budget_is_too_small_for() -> None:
    refused, ready = job("a", returns=1, refused=("hot",)), job("b", "ready", files=("hot",))
    assert next_batch(board(refused, ready, max_cost=1.0, spent=2.0)) == ("b",)


def after_verdict(board: Board, verdict: GateVerdict) -> list[backlog_events.BacklogEvent]:
    first, *others = backlog_events.after_merge(board, verdict, 0.0)
    assert first == backlog_events.GateFinished(verdict)
    return others


def test_a_conflict_returns_the_task_with_gits_message() -> None:
    seen = GateVerdict(conflicts={"a": Conflict(("x.py",), "CONFLICT (content)")})
    (refused,) = after_verdict(board(job("a", "ready")), seen)
    assert isinstance(refused, backlog_events.TaskReturned)
    assert (refused.files, refused.reason) == (("x.py",), "conflict in x.py")
    assert "CONFLICT (content)" in refused.note


def test_a_red_batch_of_one_task_returns_it_with_the_output_of_the_check() -> None:
    seen = GateVerdict(tried=("a",), red=FailedCheck("make test", "exit code 2", "boom"))
    (refused,) = after_verdict(board(job("a", "ready", files=("x",))), seen)
    assert isinstance(refused, backlog_events.TaskReturned)
    assert refused.files == ("x",)
    assert {"`make", "boom"} <= {*refused.note.split()}


def test_a_red_batch_refuses_no_task_and_is_halved() -> None:
    ready = [job(key, "ready") for key in "abc"]
    seen = GateVerdict(tried=("a", "b", "c"), red=FailedCheck("make test"))
    now = board(*ready, trying=("a", "b", "c"), window=8)
    assert after_verdict(now, seen) == []
    now = backlog_events.apply_event(now, backlog_events.GateFinished(seen), 0.0)
    assert (now.window, next_batch(now)) == (4, ("a", "b"))
    now = backlog_events.apply_event(
        backlog_events.apply_event(now, backlog_events.GateStarted(("a", "b")), 0),
        backlog_events.GateFinished(GateVerdict(tried=("a", "b"))),
        0,
    )
    assert next_batch(now) == ("c",)


def test_the_third_refusal_parks_a_task() -> None:
    seen = GateVerdict(conflicts={"a": Conflict(("x",))})
    parked = backlog_events.TaskParked("a", "refused 3 times: conflict in x")
    assert after_verdict(board(job("a", "ready", returns=2)), seen) == [parked]


def test_a_target_that_is_red_itself_refuses_no_task() -> None:
    seen = GateVerdict(tried=("a",), stuck="make test is red on main itself")
    now = board(job("a", "ready"), trying=("a",))
    assert after_verdict(now, seen) == []
    now = backlog_events.apply_event(now, backlog_events.GateFinished(seen), 0.0)
    assert (next_batch(now), is_over(now), outcome(now)) == ((), True, ("stuck", 1))


def test_the_window_grows_up_to_sixteen_while_batches_are_green() -> None:
    now = board(window=2)
    for _ in range(20):
        now = backlog_events.apply_event(
            now, backlog_events.GateFinished(GateVerdict(tried=("a", "b"), merged=("a", "b"))), 0.0
        )
    assert now.window == 16


def test_a_parked_task_blocks_all_that_depend_on_it_even_indirectly() -> None:
    chain = [job(f"t{n}", after=(f"t{n - 1}",) if n else ()) for n in range(101)]
    now = board(replace(chain[0], state="parked"), *chain[1:], job("free"))
    states = displayed_states(now)
    assert list(states.values()).count("blocked") == 100
    assert next_starts(now) == ("free",)
    assert not is_over(now)


def test_a_task_after_a_withdrawn_one_is_blocked_unless_that_was_ticked() -> None:
    now = board(job("a", "withdrawn"), job("b", after=("a",)), job("c", "withdrawn", done=True), job("d", after=("c",)))
    assert displayed_states(now) == {"a": "withdrawn", "b": "blocked", "c": "withdrawn", "d": "queued"}
    assert next_starts(now) == ("d",)


def test_a_cycle_of_dependencies_is_named() -> None:
    tasks = [
        BacklogTask(key=key, title=key, after=after) for key, after in (("a", ("c",)), ("b", ("a",)), ("c", ("b",)))
    ]
    assert cycle(tasks) in {("a", "c", "b", "a"), ("c", "b", "a", "c"), ("b", "a", "c", "b")}
    assert cycle(tasks[:2]) == ()
    assert cycle([BacklogTask(key="a", title="a", after=("a",))]) == ("a", "a")


def test_a_long_chain_of_dependencies_is_not_a_cycle() -> None:
    tasks = [BacklogTask(key=str(n), title="", after=(str(n + 1),)) for n in range(5000)]
    assert cycle(tasks) == ()


def test_a_task_starts_only_if_the_budget_covers_it_and_all_running_tasks() -> None:
    merged = [job(f"l{n}", "merged", cost_usd=cost) for n, cost in enumerate((1.0, 2.0, 9.0))]
    now = board(*merged, job("a"), job("b"), max_cost=16.0, spent=12.0)
    assert next_starts(now) == ("a", "b")
    assert (fits(now, 1), fits(now, 2)) == (True, False)
    assert outcome(replace(now, spent=15.0)) == ("budget", 1)


def test_the_forecast_is_the_median_with_the_quartiles() -> None:
    merged = [job(f"l{n}", "merged", cost_usd=float(n)) for n in range(1, 6)]
    seen = forecast(board(*merged, job("a"), job("b", "working"), job("c", "parked", cost_usd=None)))
    assert seen is not None
    assert (seen.more, seen.low, seen.high) == (6.0, 4.0, 8.0)
    assert forecast(board(job("a"))) is None


def test_a_backlog_is_done_if_every_task_is_merged_or_withdrawn() -> None:
    now = board(job("a", "merged"), job("b", "withdrawn"))
    assert (is_over(now), outcome(now)) == (True, ("done", 0))
    assert outcome(board(job("a", "merged"), job("b", "parked"))) == ("parked", 1)


def test_a_retry_by_a_person_forgets_earlier_refusals() -> None:
    now = board(job("a", "parked", returns=3, refused=("x",), reason="refused 3 times"))
    now = backlog_events.apply_event(now, backlog_events.TaskQueued("a", "asked for by a person", forgiven=True), 1.0)
    again = now.jobs["a"]
    assert (again.state, again.returns, again.refused) == ("queued", 0, ())


def test_tasks_that_were_running_when_ralph_was_killed_are_queued_on_resume() -> None:
    now = board(job("a", "working", attempts=1), job("b", "ready"), trying=("b",))
    begun = backlog_events.BacklogStarted(name="x", backlog="T.md", workspace="/", target="t", resumed=True)
    now = backlog_events.apply_event(now, begun, 1.0)
    assert (now.jobs["a"].state, now.trying, next_batch(now)) == ("queued", (), ("b",))


class Night:
    """Play tasks whose loops take a while and whose changes conflict in pairs, without a repository."""

    def __init__(
        self, tasks: list[BacklogTask], clashes: set[frozenset[str]], *, slots: int, seed: int, check: float
    ) -> None:
        self.random, self.clashes, self.check = random.Random(seed), clashes, check
        self.board = Board(slots=slots, max_returns=99)
        self.at, self.order = 0.0, itertools.count()
        self.coming: list[tuple[float, int, str, Any]] = []
        self.seen: dict[str, set[str]] = {}
        self.merged: list[str] = []
        self.loops: dict[str, int] = {}
        self.peak = 0
        for task in tasks:
            self.tell(backlog_events.TaskListed(task))

    def tell(self, event: object) -> None:
        self.board = backlog_events.apply_event(self.board, event, self.at)

    def clash(self, key: str, others: set[str] | list[str]) -> list[str]:
        return [o for o in others if frozenset((key, o)) in self.clashes and o not in self.seen.get(key, ())]

    def play(self) -> None:
        while not is_over(self.board):
            for key in next_starts(self.board):
                self.seen[key] = {*self.merged}
                self.loops[key] = self.loops.get(key, 0) + 1
                self.tell(backlog_events.TaskStarted(key, self.loops[key]))
                self.later(self.random.lognormvariate(3, 0.6), "looped", key)
            if batch := next_batch(self.board):
                self.tell(backlog_events.GateStarted(batch))
                self.later(self.check, "checked", batch)
            self.peak = max(self.peak, len(self.board.of("ready")))
            self.at, _, what, about = heapq.heappop(self.coming)
            getattr(self, what)(about)

    def later(self, seconds: float, what: str, about: Any) -> None:
        heapq.heappush(self.coming, (self.at + seconds, next(self.order), what, about))

    def looped(self, key: str) -> None:
        self.tell(backlog_events.TaskReady(key=key, tip=key, files=tuple(self.files(key))))

    def files(self, key: str) -> list[str]:
        return ["-".join(sorted(pair)) for pair in self.clashes if key in pair] + [key]

    def checked(self, batch: tuple[str, ...]) -> None:
        tried: list[str] = []
        conflicts = {}
        for key in batch:
            if against := self.clash(key, self.merged):
                conflicts[key] = Conflict(tuple("-".join(sorted((key, o))) for o in against))
            elif not self.clash(key, tried):
                tried.append(key)
        seen = GateVerdict(tried=tuple(tried), merged=tuple(tried), conflicts=conflicts)
        for event in backlog_events.after_merge(self.board, seen, 0.0):
            assert not isinstance(event, backlog_events.TaskParked)
            self.tell(event)
        self.merged += tried


def items(number: int) -> list[BacklogTask]:
    return [BacklogTask(key=f"T{n}", title=f"T{n}") for n in range(number)]


class HotLine(Night):
    def files(self, key: str) -> list[str]:
        return ["hot"]

    def checked(self, batch: tuple[str, ...]) -> None:
        super().checked(batch)
        for one in self.board.jobs.values():
            if one.refused and one.refused != ("hot",):
                self.board = replace(self.board, jobs={**self.board.jobs, one.task.key: replace(one, refused=("hot",))})


@pytest.mark.parametrize("seed", range(5))
def test_sixteen_tasks_on_one_line_take_at_most_two_rounds_each(seed: int) -> None:
    everybody = items(16)
    pairs = {frozenset((a.key, b.key)) for a, b in itertools.combinations(everybody, 2)}
    night = HotLine(everybody, pairs, slots=8, seed=seed, check=1.0)
    night.play()
    assert len(night.merged) == 16
    assert max(night.loops.values()) == 2
    assert sum(night.loops.values()) <= 31


@pytest.mark.parametrize("seed", range(20))
def test_every_one_of_many_tasks_that_conflict_at_random_is_merged_once(seed: int) -> None:
    everybody, chance = items(40), random.Random(seed)
    pairs = {frozenset((a.key, b.key)) for a, b in itertools.combinations(everybody, 2) if chance.random() < 0.1}
    for number in range(1, 40):
        if chance.random() < 0.2:
            everybody[number] = replace(everybody[number], after=(f"T{chance.randrange(number)}",))
    night = Night(everybody, pairs, slots=4, seed=seed, check=chance.choice((1.0, 5.0, 40.0)))
    night.play()
    assert sorted(night.merged) == sorted(task.key for task in everybody)
    assert outcome(night.board) == ("done", 0)
    for task in everybody:
        assert all(night.merged.index(key) < night.merged.index(task.key) for key in task.after)


def test_no_loop_starts_while_many_tasks_wait_for_the_gate() -> None:
    night = Night(items(60), set(), slots=8, seed=1, check=120.0)
    night.play()
    assert night.peak <= 8 + 8 + 8, "at the gate, before it, and what is at work and may still become ready"


def test_decisions_about_a_thousand_tasks_are_fast() -> None:
    night = Night(items(1000), set(), slots=4, seed=1, check=0.1)
    began = time.process_time()
    night.play()
    assert len(night.merged) == 1000
    assert time.process_time() - began < 10


def test_a_decision_about_thousands_of_tasks_takes_time_linear_in_their_number() -> None:
    """A board on which a hundred tasks were refused, every thirtieth other task waits for one of them, and each of the
    rest waits for the next."""

    def seconds(count: int) -> float:
        back = [job(f"r{at}", returns=1, refused=(f"f{at}",), cost_usd=1.0) for at in range(100)]
        ready = [job(f"d{at}", "ready", files=(f"f{at % 100}",), cost_usd=1.0) for at in range(count)]
        chain = [job(f"c{at}", after=(f"c{at + 1}",)) for at in range(count)]
        began = time.thread_time()
        now = board(*back, *ready, *chain, job(f"c{count}", "parked"), max_cost=1e9)
        states = [*displayed_states(now).values()]
        assert (states.count("held"), states.count("blocked")) == (count, count)
        assert (len(next_starts(now)), next_batch(now)) == (now.slots, ())
        return time.thread_time() - began

    assert min(seconds(3_000) / seconds(300) for _ in range(3)) < 20


def test_changing_a_board_takes_time_linear_in_the_number_of_events() -> None:
    def seconds(count: int) -> float:
        now = Board()
        began = time.thread_time()
        for at in range(count):
            now = backlog_events.apply_event(now, backlog_events.TaskListed(BacklogTask(key=f"i{at}", title="t")), 0.0)
        for at in range(count):
            now = backlog_events.apply_event(now, backlog_events.TaskStarted(f"i{at}", 1, "run"), 0.0)
        assert len(now.jobs) == count
        return time.thread_time() - began

    assert min(seconds(10_000) / seconds(1_000) for _ in range(3)) < 20


def test_events_do_not_change_a_board_that_was_copied_before() -> None:
    before = backlog_events.BacklogState(board=board(job("a")))
    after = backlog_events.next_state(backlog_events.copy_state(before), backlog_events.TaskStarted("a", 1, "run"), 1.0)
    assert (before.board.jobs["a"].state, after.board.jobs["a"].state) == ("queued", "working")
