"""The nights measure what they say they measure: the same every time, by the truth, and with nothing overlooked."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.lab import ROOT
from bench.nights import chaos, contenders, measures, night, population, table, task
from bench.nights.measures import Share, over_ideal

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="nights look for what is left in /proc: run them on Linux"
)

WHILE_GREP, UNTIL = contenders.bash()


@pytest.fixture(scope="module")
def yard() -> Iterator[night.Yard]:
    made = night.Yard("/usr/local/bin:/usr/bin:/bin")
    yield made
    made.close()


def nights(profile: str, count: int) -> list[population.Script]:
    first = next(at for at, one in enumerate(population.PROFILES) if one.name == profile)
    return [population.drawn(7, first + len(population.PROFILES) * at) for at in range(count)]


def test_a_night_is_the_same_whenever_it_is_drawn() -> None:
    assert population.drawn(3, 14) == population.drawn(3, 14)
    assert population.drawn(3, 14) != population.drawn(4, 14)


def test_there_are_ten_kinds_of_agents_and_each_says_why_it_is_there() -> None:
    assert len(population.PROFILES) == 10
    assert all(profile.why for profile in population.PROFILES)


def test_the_page_says_how_likely_each_of_them_does_what() -> None:
    assert table.chances() in (ROOT / "docs" / "reference" / "comparison.md").read_text()


@pytest.mark.parametrize("profile", ["excellent", "clumsy", "optimist"])
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


def test_gutted_tests_make_a_loop_happy_but_not_the_truth(yard: night.Yard) -> None:
    played = [night.play(yard, script, UNTIL) for script in nights("cheat", 3)]
    assert any(one.false_done for one in played)
    assert not any(one.sentence_true for one in played if one.false_done)


def test_talk_about_the_marker_fools_a_loop_that_greps(yard: night.Yard) -> None:
    assert any(night.play(yard, script, WHILE_GREP).false_done for script in nights("talker", 2))


def test_what_a_loop_leaves_running_is_seen_and_then_ended(yard: night.Yard) -> None:
    script = next(one for one in nights("litterer", 9) if any(step.leave == "daemon" for step in one.steps[:3]))
    assert "sleep" in night.play(yard, script, UNTIL).left
    assert not list(night.descendants())


def test_what_was_there_before_the_nights_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as before:
        made = night.Yard("/usr/local/bin:/usr/bin:/bin")
        try:
            assert "sleep" not in night.play(made, nights("excellent", 1)[0], UNTIL).left
            assert before.poll() is None
        finally:
            made.close()
            before.kill()


def test_the_belongings_of_the_user_differ_when_a_loop_commits_everything(yard: night.Yard) -> None:
    place = yard.place(population.drawn(7, 0), UNTIL)
    env = yard.env(place.home, place.bin)
    before = task.belongings(place.work, env)
    assert before.differing(task.belongings(place.work, env)) == []
    task.git(place.work, env, "add", "-A")
    task.git(place.work, env, "commit", "-qm", "Everything")
    (place.work / "notes.md").unlink()
    found = before.differing(task.belongings(place.work, env))
    assert set(found) >= {"notes.md", "the staged", "draft.md put into a commit", "README.md put into a commit"}


def test_nothing_in_a_thousand_nights_is_less_than_four_in_a_thousand() -> None:
    assert Share(0, 1000).interval[1] < 0.004
    assert Share(0, 30).interval[1] > 0.1


def test_a_share_is_held_to_its_number_where_there_are_enough_nights_to_tell() -> None:
    assert measures._is_at_most(Share(4, 900), 0.005)
    assert not measures._is_at_most(Share(5, 900), 0.005)
    assert measures._is_at_most(Share(2, 180), 0.005)
    assert not measures._is_at_most(Share(5, 180), 0.005)


def test_turns_are_weighed_against_the_ideal_over_all_nights_together(yard: night.Yard) -> None:
    played = [night.play(yard, script, UNTIL) for script in nights("excellent", 2)]
    found = over_ideal(played)
    assert found is not None
    assert found.value == 1.0


def test_a_single_night_replays_exactly(yard: night.Yard) -> None:
    script = nights("clumsy", 1)[0]
    first, again = (night.play(yard, script, UNTIL, keep_story=True) for _ in range(2))
    moments = {"moment", "age"}
    told = [[{key: fact[key] for key in fact.keys() - moments} for fact in one.story] for one in (first, again)]
    assert told[0] == told[1]
    assert told[0]


@pytest.mark.parametrize("trouble", chaos.ALL, ids=lambda one: one.name)
def test_a_night_in_which_something_gets_in_the_way_is_finished(yard: night.Yard, trouble: chaos.Trouble) -> None:
    if missing := trouble.missing():
        pytest.skip(missing)
    program = contenders.ralph(str(Path(sys.executable).with_name("ralph")), "")[0]
    played = chaos.play(yard, chaos.script_for(7, 1), program, trouble, keep_story=True)
    assert (played.finished, played.said, played.left, played.touched) == (True, "done", (), ()), played.output
