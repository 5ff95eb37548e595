"""`ralph demo`: a run on a small example, with a scripted agent that lies, cheats, and then does it."""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from shutil import which

from ralph.cli.run import run_command
from ralph.cli.table import Values, command
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import DEMO, DEMO_EXAM
from ralph.git.client import GitPolicy, is_installed
from ralph.options.option import Option
from ralph.process.own_process import OwnProcess
from ralph.process.program import Command

CART = '''"""Totals of a shopping cart."""


def total(price: float, coupon: float = 0) -> float:
    """The price minus a coupon in percent."""
    return price - coupon


def shipping(total: float) -> float:
    """Free from 50 on."""
    return 0 if total > 50 else 5
'''

TEST = """import unittest

from cart import total


class TestTotal(unittest.TestCase):
    def test_a_coupon_is_a_percentage(self):
        self.assertEqual(total(80, coupon=25), 60)

    def test_without_a_coupon_the_price_stays(self):
        self.assertEqual(total(80), 80)
"""

EXAM = """import sys

sys.path.insert(0, "")
from cart import total

assert total(200, coupon=10) == 180
assert total(40, coupon=100) == 0
"""

GOAL = "A coupon is a percentage. Make the tests pass."
INTRODUCTION = """\
This is a demonstration. The agent is a script, not a model: nothing is sent
anywhere, and nothing is spent.
It works on a small repository with a failing test, in {folder}
Watch what happens when it claims to be done: it lies, then it cheats, then it
does it.
"""

NEXT = """
Three times the agent said that it was done. First the test failed: a check
refused the claim. Then the test passed because the code knew its numbers: an
exam, which asks for other numbers and which the agent never sees, refused it.
The third claim counts. And one line that it changed could be undone without any
test failing. Look around:

    cd {folder}
    {ralph} show     # iteration by iteration
    {ralph} diff     # what it changed
    {ralph} prove    # what no test notices

Then, in your own repository, with an agent that you have installed (claude,
codex, amp, …):

    {ralph} loop "Make the tests pass" --check "YOUR TEST COMMAND" --prove
"""

SLOW = """\
def unique(words):
    seen = []
    for word in words:
        if word not in seen:
            seen.append(word)
    return seen
"""
BENCH = """\
import time

from unique import unique

words = [f"word {number % 700}" for number in range(2800)]
began = time.process_time()
unique(words)
print(1000 * (time.process_time() - began))
"""
TUNE_TEST = """\
import unittest

from unique import unique


class TestUnique(unittest.TestCase):
    def test_words_stay_in_their_order(self):
        words = [str(number) for number in range(50)]
        self.assertEqual(unique(words + words), words)
"""
TUNE_INTRODUCTION = """\
This is a demonstration. The agent is a script, not a model: nothing is sent
anywhere, and nothing is spent.
It makes a small program faster, in {folder}
Watch what ralph keeps: of three attempts one is slower, one breaks a test, and
one is better.
"""
TUNE_NEXT = """
ralph measured each attempt itself, side by side with the best version so far.
Look around:

    cd {folder}
    {ralph} show     # attempt by attempt
    {ralph} report   # with the staircase
    {ralph} accept   # merge what was kept

Then, in your own repository, with an agent that you have installed (claude,
codex, amp, …):

    {ralph} tune "Make it faster" --minimize cpu:"YOUR BENCHMARK" --check "YOUR TEST COMMAND"
"""


@command(Option("--tune", "Watch `ralph tune` optimise a number instead."))
def demo(values: Values, words: list[str]) -> int:
    """Watch a run on a small example, with a scripted agent. Takes about ten seconds."""
    if not is_installed():
        raise UserError("the demo needs git", "install git, then try again")
    folder = Path(tempfile.mkdtemp(prefix=DEMO))
    ralph = "ralph" if which("ralph") else os.path.join(os.path.dirname(sys.executable), "ralph")
    os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    os.environ.setdefault("RALPH_DEMO_PAUSE", "0.25" if sys.stderr.isatty() else "0")
    agent = f"{shlex.quote(sys.executable)} -m ralph.agents.demo"
    options = {"directory": str(folder), "check": ["python3 -m unittest -q"], "max_cost": 1.0}
    if values.get("tune"):
        command, goal, introduction, outlook = "tune", "Make unique() faster.", TUNE_INTRODUCTION, TUNE_NEXT
        files = {"unique.py": SLOW, "bench.py": BENCH, "test_unique.py": TUNE_TEST}
        options |= {"agent": f"{agent} tune", "minimize": "python3 bench.py", "maximum_iterations": 3}
    else:
        command, goal, introduction, outlook = "loop", GOAL, INTRODUCTION, NEXT
        files = {"cart.py": CART, "test_cart.py": TEST}
        exam = Path(f"{folder}{DEMO_EXAM}") / "coupons.py"
        exam.parent.mkdir(mode=0o700)
        exam.write_text(EXAM)
        exams = [f"python3 {shlex.quote(str(exam))}"]
        options |= {"agent": agent, "exam": exams, "prove": "", "maximum_iterations": 5}
    _make_repository(folder, files)
    print(introduction.format(folder=folder), file=sys.stderr, flush=True)
    code = run_command(command, options, [goal])
    print(outlook.format(folder=folder, ralph=ralph), file=sys.stderr)
    return code


def _make_repository(folder: Path, files: dict[str, str]) -> None:
    for name, text in {**files, ".gitignore": "__pycache__/\n"}.items():
        (folder / name).write_text(text)
    git = ("git", "-C", str(folder), "-c", "user.name=ralph", "-c", "user.email=ralph@localhost")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "--no-gpg-sign", "-m", "A small program")):
        with OwnProcess(Command(argv=(*git, *arguments), env=os.environ)) as process:
            process.output(GitPolicy.OWN.value)
        if process.code:
            raise UserError(
                f"git {arguments[0]} failed: {one_line(process.error, 300)}", "check your git settings, then try again"
            )
