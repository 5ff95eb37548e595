"""A real agent is asked once about what no check notices, and the run ends as it would have."""

import pytest
from script import Say, shell, write

BEFORE = "def add(a, b):\n    return a - b\n\n\n# one\n# two\n# three\n# four\ndef mul(a, b):\n    return a + b\n"
AFTER = BEFORE[:-6].replace("a - b", "a + b") + "a * b\n"
TEST = "from sums import add\nassert add(1, 2) == 3\n"
MORE = "from sums import mul\nassert mul(2, 3) == 6\n"
CHECK = "for test in test_*.py; do python3 -B $test || exit; done"
DONE = "Both are fixed.\n\n<response>DONE</response>"

pytestmark = pytest.mark.parametrize("agent", ["claude", "codex"], indirect=True)


@pytest.mark.parametrize(
    ("test", "verdicts", "files"),
    [(MORE, ["untested", "tested"], ["sums.py", "test_more.py"]), ("assert False\n", ["untested"], ["sums.py"])],
)
def test_an_agent_gets_one_turn_about_what_is_untested(room, agent, test, verdicts, files):
    with room() as place:
        folder = place.workspace
        for name, text in {"sums.py": BEFORE, "fixed.txt": AFTER, "test_sums.py": TEST}.items():
            (folder / name).write_text(text)
        place.git("add", "-A")
        place.git("commit", "--quiet", "--message=sums")
        answer = (write(folder / "test_more.py", test), Say("I added a test."))
        place.play(shell("cat fixed.txt > sums.py"), Say(DONE), *answer)
        ran = place.ralph("--check", CHECK, "--prove=ask", "fix add and mul")
        assert (ran.code, ran.outcome, ran.of("run_finished")[0]["iterations"]) == (0, "done", 1), str(ran)
        assert "- sums.py:10 in mul: return a * b" in place.stage.asked[-1].prompt
        assert (place.stage.steps, place.stage.surplus) == ([], 0)
        assert [told["proof"]["verdict"] for told in ran.of("proof_finished")] == verdicts, str(ran)
        changed = [line[3:] for line in place.git("status", "--porcelain").splitlines()]
        assert [name for name in changed if not name.startswith(".")] == files
