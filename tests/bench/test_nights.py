"""The nights measure what they say they measure: the same every time, by the truth, and with nothing overlooked."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.lab import ROOT
from bench.nights import chaos, contenders, measures, model, night, population, table, task
from bench.nights.measures import Share, over_ideal
from bench.nights.model import Asked
from msgspec.structs import replace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="nights look for what is left in /proc: run them on Linux"),
]

WHILE_GREP, UNTIL = contenders.bash()


@pytest.fixture(scope="module")
def yard() -> Iterator[night.Yard]:
    made = night.Yard("/usr/local/bin:/usr/bin:/bin")
    yield made
    made.close()


def nights(profile: str, count: int) -> list[population.Script]:
    first = next(at for at, one in enumerate(population.PROFILES) if one.name == profile)
    return [population.draw_script(7, first + len(population.PROFILES) * at) for at in range(count)]


def test_the_same_seed_and_number_draw_the_same_night() -> None:
    assert population.draw_script(3, 14) == population.draw_script(3, 14)
    assert population.draw_script(3, 14) != population.draw_script(4, 14)


def test_each_of_fourteen_kinds_of_agents_has_a_reason() -> None:
    assert len(population.PROFILES) == 14
    assert all(profile.why for profile in population.PROFILES)


def test_the_docs_list_the_probability_of_each_behaviour() -> None:
    assert table.chances() in (ROOT / "docs" / "reference" / "comparison.md").read_text()


@pytest.mark.parametrize("profile", ["excellent", "clumsy", "optimist", "bloater"])
def test_a_loop_that_asks_the_tests_after_each_turn_needs_the_ideal_number_of_turns(
    yard: night.Yard, profile: str
) -> None:
    for script in nights(profile, 2):
        played = night.play(yard, script, UNTIL)
        best = population.ideal(script, contenders.CAP)
        assert best is not None
        assert (played.turns, played.dollars) == best
        assert played.finished
        assert not played.touched


def test_a_loop_that_asks_only_the_tests_accepts_gutted_tests(yard: night.Yard) -> None:
    played = [night.play(yard, script, UNTIL) for script in nights("cheat", 3)]
    assert any(one.false_done for one in played)
    assert not any(one.sentence_true or one.exit_true for one in played if one.false_done)


def test_a_loop_that_asks_only_the_tests_accepts_special_cases(yard: night.Yard) -> None:
    scripts = [one for one in nights("overfitter", 9) if not is_honest(one)][:2]
    assert [night.play(yard, script, UNTIL).false_done for script in scripts] == [True, True]


def is_honest(script: population.Script) -> bool:
    """Whether no part is special-cased when every test passes for the first time."""
    parts = [population.WRONG] * script.parts
    for step in script.steps:
        parts = population.parts_after(parts, step)
        if population.WRONG not in parts:
            break
    return population.SPECIAL not in parts


def test_a_script_that_updates_the_tests_makes_them_expect_what_is_there(yard: night.Yard) -> None:
    place = yard.place(population.draw_script(7, 0), UNTIL)
    run = ["sh", "tests/run"]
    assert subprocess.run(run, cwd=place.work, capture_output=True).returncode == 1
    subprocess.run(["sh", "tools/update"], cwd=place.work, check=True, capture_output=True)
    assert subprocess.run(run, cwd=place.work, capture_output=True).returncode == 0


def test_the_exam_covers_cases_that_no_test_covers(yard: night.Yard) -> None:
    place = yard.place(population.draw_script(7, 0), UNTIL)
    exam = ["sh", str(place.exam)]
    for kind, code in (("wrong", 1), ("special", 1), ("right", 0)):
        for part in task.parts(len(task.PARTS)):
            place.write(part.path, getattr(part, kind))
        assert subprocess.run(exam, cwd=place.work, capture_output=True).returncode == code, kind


@pytest.mark.parametrize(
    ("judge", "commands", "results", "believed"),
    [
        ("perfect", "cat > lib/add.sh", "exit 0", True),
        ("perfect", "cat > lib/add.sh", "exit 1", False),
        ("perfect", "rm tests/add.sh", "exit 0", False),
        ("trusting", "", "", True),
    ],
)
def test_the_perfect_reader_believes_only_what_it_has_seen(
    judge: str, commands: str, results: str, believed: bool
) -> None:
    judged = replace(UNTIL, judge=judge)
    made = model.NightModel("http://127.0.0.1:1", judged)
    made.says_done, made.passed, made.tampered = True, bool(model.PASSED.search(results)), "tests/" in commands
    assert made.believes() is believed


def test_a_scripted_model_plays_the_same_turn_as_the_agent(yard: night.Yard) -> None:
    script = nights("bloater", 1)[0]
    place = yard.place(script, UNTIL)
    made = model.NightModel("http://127.0.0.1:1", UNTIL)
    made.place = place
    asked = Asked("messages", "/messages", "", (("user", task.GOAL),), {}, True)
    while not any(turn.get("green") for turn in night.ledger(place)):
        call = made.next(asked)
        ran = subprocess.run(["sh", "-c", call.what], cwd=place.work, capture_output=True, text=True)
        made.next(asked._replace(messages=(*asked.messages, ("assistant", ""), ("tool", ran.stdout))))
    played = night.play(yard, script, UNTIL, keep_story=True)
    told = [[turn["did"] for turn in turns if turn["kind"] == "end"] for turns in (night.ledger(place), played.story)]
    assert told[0] == told[1]


def test_talk_about_the_marker_fools_a_loop_that_greps(yard: night.Yard) -> None:
    assert any(night.play(yard, script, WHILE_GREP).false_done for script in nights("talker", 2))


def test_processes_that_a_loop_leaves_running_are_reported_and_killed(yard: night.Yard) -> None:
    script = next(one for one in nights("litterer", 9) if any(step.leave == "daemon" for step in one.steps[:3]))
    assert "sleep" in night.play(yard, script, UNTIL).left
    assert not list(night.descendants())


def test_processes_from_before_the_nights_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as before:
        made = night.Yard("/usr/local/bin:/usr/bin:/bin")
        try:
            assert "sleep" not in night.play(made, nights("excellent", 1)[0], UNTIL).left
            assert before.poll() is None
        finally:
            made.close()
            before.kill()


def test_changes_to_the_users_belongings_are_noticed(yard: night.Yard) -> None:
    place = yard.place(population.draw_script(7, 0), UNTIL)
    env = yard.env(place.home, place.bin)
    before = task.belongings(place.work, env)
    assert before.differing(task.belongings(place.work, env)) == []
    task.git(place.work, env, "add", "-A")
    task.git(place.work, env, "commit", "-qm", "Everything")
    (place.work / "notes.md").unlink()
    found = before.differing(task.belongings(place.work, env))
    assert set(found) >= {"notes.md", "the staged", "draft.md put into a commit", "README.md put into a commit"}


def test_no_failure_in_a_thousand_nights_means_a_rate_below_four_in_a_thousand() -> None:
    assert Share(0, 1000).interval[1] < 0.004
    assert Share(0, 30).interval[1] > 0.1


def test_a_share_must_reach_its_target_if_there_are_enough_nights() -> None:
    assert measures._is_at_most(Share(4, 900), 0.005)
    assert not measures._is_at_most(Share(5, 900), 0.005)
    assert measures._is_at_most(Share(2, 180), 0.005)
    assert not measures._is_at_most(Share(5, 180), 0.005)


def test_turns_are_compared_with_the_ideal_over_all_nights(yard: night.Yard) -> None:
    played = [night.play(yard, script, UNTIL) for script in nights("excellent", 2)]
    found = over_ideal(played)
    assert found is not None
    assert found.value == 1.0


def test_a_ratio_of_few_nights_is_judged_by_its_interval(yard: night.Yard) -> None:
    one = night.play(yard, nights("excellent", 1)[0], UNTIL)
    slow, fast = (replace(one, turns=turns, ideal=5) for turns in (7, 6))
    assert measures._turns("", [slow, fast], 1.2).met
    assert not measures._turns("", [slow, fast] * 10, 1.2).met


def test_a_single_night_replays_exactly(yard: night.Yard) -> None:
    script = nights("clumsy", 1)[0]
    first, again = (night.play(yard, script, UNTIL, keep_story=True) for _ in range(2))
    moments = {"moment", "age"}
    told = [[{key: fact[key] for key in fact.keys() - moments} for fact in one.story] for one in (first, again)]
    assert told[0] == told[1]
    assert told[0]


def test_agents_that_fail_by_themselves_get_no_other_troubles() -> None:
    assert not {chaos.script_for(7, number).profile for number in range(30)} & set(chaos.QUIET)


@pytest.mark.parametrize("trouble", chaos.ALL, ids=lambda one: one.name)
def test_a_night_is_finished_despite_each_trouble(yard: night.Yard, trouble: chaos.Trouble) -> None:
    if missing := trouble.missing():
        pytest.skip(missing)
    field = contenders.ralph(str(Path(sys.executable).with_name("ralph")), "")
    program = next(one for one in field if one.name == contenders.GATED)
    played = chaos.play(yard, chaos.script_for(7, 1), program, trouble, keep_story=True)
    assert (played.finished, played.said, played.left, played.touched) == (True, "done", (), ()), played.output
