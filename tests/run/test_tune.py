"""`ralph tune`: real git, a real benchmark, a scripted agent."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Result

LONG = "def double(number):\n    result = number + number\n    return result\n"
SHORT = "def double(number):\n    return 2 * number\n"
SIZE = "print(len(open('code.py').read()))\n"
CHECK = "python3 -c 'import code_under_test' && python3 -c 'from code_under_test import double; assert double(2) == 4'"


@pytest.fixture
def project(repository: Path, git: Callable[..., str]) -> Path:
    (repository / "code_under_test.py").write_text(LONG)
    (repository / "size.py").write_text(SIZE.replace("code.py", "code_under_test.py"))
    (repository / ".gitignore").write_text("__pycache__/\n")
    git("add", "-A")
    git("commit", "-qm", "project")
    return repository


@pytest.fixture
def tune(ralph: Callable[..., Result], project: Path) -> Callable[..., Result]:
    def run(agent: str, *words: str, size: str = "python3 size.py", check: str = CHECK) -> Result:
        return ralph("tune", "Make it smaller", "--minimize", size, "--check", check, "--agent", agent, *words)

    return run


def branch_of(git: Callable[..., str]) -> str:
    return git("for-each-ref", "--format=%(refname)", "refs/heads/ralph/").strip()


def subjects(git: Callable[..., str]) -> list[str]:
    return git("log", "--format=%s", f"main..{branch_of(git)}").splitlines()


def test_only_what_measures_better_is_kept_and_everything_else_is_undone(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str], project: Path
) -> None:
    script = f"""
    case $N in
    1) echo '# longer' >> code_under_test.py; touch left-over; echo 'IDEA: a comment';;
    2) printf '{SHORT.encode("unicode_escape").decode()}' > code_under_test.py; echo 'IDEA: no variable';;
    3) echo 'broken(' > code_under_test.py; echo 'IDEA: break it';;
    4) echo 'print(0)' > size.py; echo 'IDEA: cheat';;
    5) sed -i s/number/n/g code_under_test.py; git add -A; git commit -qm own; echo 'IDEA: short names';;
    6) git checkout -q -b elsewhere; git reset -q --hard main; echo 'IDEA: get lost';;
    esac
    """
    ended = tune(agent(script), "-m", "7")

    assert ended.code == 0, ended.err
    assert "tuned: 67 → 32 (−52.2 %; 2 of 7 attempts kept): ralph accept" in ended.last_line
    assert subjects(git) == [
        "tune: 42 → 32 (−23.8 %): short names",
        "tune: 67 → 42 (−37.3 %): no variable",
    ]
    assert git("show", f"{branch_of(git)}:code_under_test.py") == SHORT.replace("number", "n")
    assert git("ls-tree", "--name-only", branch_of(git)).split() == git("ls-tree", "--name-only", "main").split()
    assert (project / "code_under_test.py").read_text() == LONG


def test_the_prompt_lists_earlier_attempts_and_their_results(
    tune: Callable[..., Result], agent: Callable[..., str], prompts: Callable[..., list[str]]
) -> None:
    tune(agent("echo '# longer' >> code_under_test.py; echo 'I tried.'; echo 'IDEA: add a comment'"), "-m", "2")

    first, second = prompts()
    assert "best so far: 67" in first
    assert "size.py" in first.partition("must not change: ")[2].partition("\n")[0]
    assert "| 1 | add a comment | dropped: +13.4 % (67 → 76) |" in second


def test_a_run_without_a_gain_ends_after_the_attempts_of_stuck_with_exit_code_1(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str]
) -> None:
    ended = tune(agent("echo '# longer' >> code_under_test.py"), "--stuck", "2")

    assert ended.code == 1
    assert "none of 2 attempts was kept: 2 attempts in a row brought no gain" in ended.last_line
    assert subjects(git) == []


def test_a_run_ends_when_the_target_is_reached(tune: Callable[..., Result], agent: Callable[..., str]) -> None:
    ended = tune(agent("sed -i s/result/r/g code_under_test.py"), "--target", "60")

    assert ended.code == 0
    assert "1 of 1 attempt kept" in ended.last_line


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo fast", "its last line isn't a number: fast"),
        ("true", "it printed nothing"),
        ("echo 3; echo broken >&2; exit 7", "exit code 7: broken"),
        ("sleep 60", "timed out after 0.5s"),
    ],
)
def test_a_command_that_gives_no_number_ends_the_run_before_the_first_turn(
    tune: Callable[..., Result],
    agent: Callable[..., str],
    prompts: Callable[..., list[str]],
    command: str,
    problem: str,
) -> None:
    limit = ("--check-timeout", "0.5s") if "timed out" in problem else ()
    ended = tune(agent("true"), *limit, size=command, check="true")

    assert ended.code == 2
    assert f"cannot measure {command}: {problem}" in ended.err
    assert prompts() == []


def test_a_check_that_fails_before_the_first_turn_ends_the_run(
    tune: Callable[..., Result], agent: Callable[..., str], prompts: Callable[..., list[str]]
) -> None:
    ended = tune(agent("true"), check="false")

    assert ended.code == 2
    assert "false fails before the first turn, and every attempt has to pass it" in ended.err
    assert prompts() == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--target", "67"), "target already reached: 67"),
        (("--metric", "size"), "cannot measure python3 size.py: it printed no line size=NUMBER"),
    ],
)
def test_a_reached_target_and_a_missing_name_end_the_run_before_the_first_turn(
    tune: Callable[..., Result],
    agent: Callable[..., str],
    prompts: Callable[..., list[str]],
    words: tuple[str, ...],
    problem: str,
) -> None:
    ended = tune(agent("true"), *words)

    assert ended.code == 2
    assert problem in ended.err
    assert prompts() == []


@pytest.mark.parametrize(
    ("number", "words", "problem"),
    [
        ("cpu:", (), "cpu:: no command to measure"),
        ("wall:true", ("--metric", "size"), "--metric has no effect: ralph measures the wall time itself"),
    ],
)
def test_a_timer_needs_a_command_and_takes_no_name(
    tune: Callable[..., Result], agent: Callable[..., str], number: str, words: tuple[str, ...], problem: str
) -> None:
    ended = tune(agent("true"), *words, size=number)

    assert ended.code == 2
    assert problem in ended.err


def test_an_attempt_that_breaks_the_measurement_is_dropped_and_not_a_zero(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str], project: Path
) -> None:
    (project / "number.sh").write_text("cat number; exit $(cat code)\n")
    (project / "number").write_text("9\n")
    (project / "code").write_text("0\n")
    git("add", "-A")
    git("commit", "-qm", "number")
    script = """
    case $N in
    1) echo 3 > code; echo 1 > number;;
    2) : > number;;
    3) echo nan > number;;
    esac
    """
    ended = tune(agent(script), "-m", "3", "--json", size="sh number.sh", check="true")

    assert ended.code == 1
    problems = [one["record"]["measured"]["problem"] for one in ended.all("iteration_finished")]
    assert problems == ["exit code 3", "it printed nothing", "its last line isn't a number: nan"]
    assert subjects(git) == []


def test_an_attempt_that_takes_too_long_is_dropped(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str], project: Path
) -> None:
    (project / "number.sh").write_text(". ./how; echo 9\n")
    (project / "how").write_text("true\n")
    git("add", "-A")
    git("commit", "-qm", "number")
    slow = agent("echo 'sleep 100' > how")
    ended = tune(slow, "-m", "1", "--check-timeout", "1s", "--json", size="sh number.sh", check="true")

    assert ended.code == 1
    (attempt,) = ended.all("iteration_finished")
    assert attempt["record"]["measured"]["problem"] == "timed out after 1s"


def test_an_exam_decides_about_attempts_that_would_be_kept_and_three_refusals_block_the_run(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str], environment: dict[str, str]
) -> None:
    exam = Path(environment["HOME"]) / "triple.py"
    exam.write_text("from code_under_test import double\nassert double(3) == 6\n")
    script = """
    case $N in
    1) sed -i s/result/r/g code_under_test.py;;
    2) echo >> code_under_test.py;;
    *) printf "def double(number):\\n    return %s\\n" $N > code_under_test.py;;
    esac
    """
    command = f"PYTHONPATH=. python3 {exam}"
    ended = tune(agent(script), "--exam", command, "-m", "9", check="true", size="python3 size.py")

    assert ended.code == 0, ended.err
    assert "1 of 5 attempts kept" in ended.last_line
    assert len(subjects(git)) == 1


def test_the_largest_number_is_kept_with_maximize(
    ralph: Callable[..., Result], project: Path, agent: Callable[..., str], git: Callable[..., str]
) -> None:
    longer = agent("[ $N = 1 ] && sed -i s/result/r/g code_under_test.py || echo '# more' >> code_under_test.py")
    ended = ralph("tune", "Make it longer", "--maximize", "python3 size.py", "--agent", longer, "-m", "2")

    assert ended.code == 0, ended.err
    assert subjects(git) == ["tune: 67 → 74 (+10.4 %)"]


def test_a_number_that_varies_for_one_version_is_noisy_from_then_on(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str], project: Path, tmp_path: Path
) -> None:
    (project / "size.py").write_text(LATER_NOISY.format(counter=str(tmp_path / "counter")))
    git("commit", "-qam", "noise")
    ended = tune(agent("[ $N = 1 ] && sed -i s/result/r/g code_under_test.py; true"), "-m", "1", "--json")

    assert ended.code == 0, ended.err
    (start,) = ended.all("start_measured")
    assert len(set(start["start"]["values"])) == 1
    (attempt,) = ended.all("iteration_finished")
    assert attempt["record"]["measured"]["is_noisy"]
    assert attempt["record"]["measured"]["pairs"] == 7


def test_an_attempt_is_kept_without_its_huge_files(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str]
) -> None:
    ended = tune(agent("sed -i s/result/r/g code_under_test.py; truncate -s 60M huge; git init -q nested"), "-m", "1")

    assert ended.code == 0, ended.err
    assert subjects(git) == ["tune: 67 → 57 (−14.9 %)"]
    assert "huge" not in git("ls-tree", "--name-only", branch_of(git))


@pytest.mark.parametrize("squash", [True, False])
def test_accept_squashes_the_kept_attempts_unless_told_otherwise(
    tune: Callable[..., Result],
    ralph: Callable[..., Result],
    agent: Callable[..., str],
    git: Callable[..., str],
    squash: bool,
) -> None:
    tune(
        agent("[ $N = 1 ] && sed -i s/result/r/g code_under_test.py || sed -i s/number/n/g code_under_test.py"),
        "-m",
        "2",
    )
    accepted = ralph("accept", *(() if squash else ("--no-squash",)))

    assert accepted.code == 0, accepted.err
    log = git("log", "--format=%s", "-3").splitlines()
    assert log[0] == ("Make it smaller" if squash else "tune: 57 → 42 (−26.3 %)")
    assert log[1] == ("project" if squash else "tune: 67 → 57 (−14.9 %)")


def test_the_demo_finds_a_gain_within_seconds(ralph: Callable[..., Result]) -> None:
    ended = ralph("demo", "--tune")

    assert ended.code == 0, ended.err
    assert "tuned: " in ended.err


def test_two_numbers_none_and_a_folder_without_git_are_refused(
    ralph: Callable[..., Result], workspace: Path, agent: Callable[..., str]
) -> None:
    fake = agent("true")
    one, both = ("--minimize", "echo 1"), ("--minimize", "echo 1", "--maximize", "echo 2")

    for words, problem in (((), "no number to optimise"), (both, "only one number"), (one, "git")):
        ended = ralph("tune", "Faster", *words, "--agent", fake)
        assert ended.code == 2
        assert problem in ended.err


NOISY = """
import pathlib
count = pathlib.Path({counter!r})
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
size = len(open("code_under_test.py").read())
print(size * (1 + 0.02 * (number * 7 % 5)))
"""

LATER_NOISY = """
import pathlib
count = pathlib.Path({counter!r})
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
size = len(open("code_under_test.py").read())
print(size if number < 4 else size * (1 + 0.01 * (number % 3)))
"""


def test_a_noisy_number_is_decided_by_pairs(
    tune: Callable[..., Result], agent: Callable[..., str], git: Callable[..., str], project: Path, tmp_path: Path
) -> None:
    (project / "size.py").write_text(NOISY.format(counter=str(tmp_path / "counter")))
    git("commit", "-qam", "noise")
    script = "[ $N = 1 ] && echo >> code_under_test.py; [ $N = 2 ] && sed -i s/result/r/g code_under_test.py; true"
    ended = tune(agent(script), "-m", "2", "--json")

    (start,) = ended.all("start_measured")
    assert len(start["start"]["values"]) == 3
    worse, better = (one["record"]["measured"] for one in ended.all("iteration_finished"))
    assert not worse.get("kept")
    assert better["kept"]
    assert (better["better"], better["pairs"]) == (7, 7)
    (end,) = ended.all("end_measured")
    assert end["comparison"]["pairs"] == 21


@pytest.mark.parametrize("words", [(), ("--sandbox",)], ids=["plain", "sandbox"])
def test_ralph_measures_the_time_of_a_command_itself(
    tune: Callable[..., Result], agent: Callable[..., str], request: pytest.FixtureRequest, words: tuple[str, ...]
) -> None:
    if words:
        request.getfixturevalue("bubblewrap")
    ended = tune(agent("echo >> code_under_test.py"), "-m", "1", "--json", *words, size="cpu:sh -c 'echo 5'")

    (start,) = ended.all("start_measured")
    assert all(0 < value < 1 for value in start["start"]["values"])


def test_a_sandboxed_run_measures_in_the_sandbox(
    tune: Callable[..., Result],
    agent: Callable[..., str],
    git: Callable[..., str],
    environment: dict[str, str],
    bubblewrap: str,
) -> None:
    outside = Path(environment["HOME"]) / "measured-outside"
    short = SHORT.encode("unicode_escape").decode()
    shorten = agent(f"printf '{short}' > code_under_test.py; echo 'IDEA: no variable'")
    measure = f"touch {outside} 2> /dev/null; python3 size.py"
    ended = tune(shorten, "--sandbox", "-m", "1", size=measure)

    assert ended.code == 0, ended.err
    assert subjects(git) == ["tune: 67 → 42 (−37.3 %): no variable"]
    assert not outside.exists()
