"""What is ralph for? Shows it: a small repository with a failing test, and an agent that first gets it wrong."""

import os
import sys
import tempfile
from pathlib import Path

from ralph.cli.table import CliCommand, Values, no_words

CART = '''"""Totals of a shopping cart."""


def total(price: float, coupon: float = 0) -> float:
    """The price, less a coupon of so many percent."""
    return price - coupon
'''

TEST = """import unittest

from cart import total


class TestTotal(unittest.TestCase):
    def test_a_coupon_is_a_percentage(self):
        self.assertEqual(total(80, coupon=25), 60)

    def test_without_a_coupon_the_price_stays(self):
        self.assertEqual(total(80), 80)
"""

WIDEST = 80  # columns of text
INTRODUCTION = """\
This is a demonstration. The agent is a script, not a model: nothing is sent anywhere, and nothing is spent.
It works on a small repository with a failing test, in {folder}
Watch what happens when it claims to be done in iteration 2.
"""

NEXT = """\
In iteration 2 the agent said it was done. ralph ran the check itself, and did not believe it. Look around:

    cd {folder}
    {ralph} show     # iteration by iteration
    {ralph} diff     # what it changed

Then, in a repository of your own, with an agent that you have installed (claude, codex, amp, …):

    {ralph} loop "Make the tests pass" --check "YOUR TEST COMMAND"
"""


def demo(values: Values, words: list[str]) -> int:
    no_words(words, "`ralph demo` takes none")
    from shutil import which

    from ralph.cli.run import run_command

    folder = Path(tempfile.mkdtemp(prefix="ralph-demo-"))
    _make_repository(folder)
    ralph = "ralph" if which("ralph") else os.path.join(os.path.dirname(sys.executable), "ralph")
    _say(INTRODUCTION.format(folder=folder))
    os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    os.environ.setdefault("RALPH_DEMO_PAUSE", "0.4" if sys.stderr.isatty() else "0")
    given = {
        "agent": f"{_quoted(sys.executable)} -m ralph.agents.demo",
        "check": ["python3 -m unittest -q"],
        "directory": str(folder),
        "maximum_iterations": 5,
        "max_cost": 1.0,
    }
    code = run_command("loop", given, ["Make the tests pass."])
    _say("\n" + NEXT.format(folder=folder, ralph=ralph))
    return code


def _say(text: str) -> None:
    """In lines that fit the terminal; what is to be copied stays in one."""
    import textwrap

    try:
        columns = min(os.get_terminal_size(sys.stderr.fileno()).columns, WIDEST)
    except (OSError, ValueError, AttributeError):  # no terminal, no stderr
        columns = WIDEST
    for line in text.splitlines():
        is_whole = line.startswith(" ") or not line
        rows = [line] if is_whole else textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False)
        print("\n".join(rows), file=sys.stderr)
    print(file=sys.stderr, flush=True)


def _make_repository(folder: Path) -> None:
    import shutil
    import subprocess

    (folder / "cart.py").write_text(CART)
    (folder / "test_cart.py").write_text(TEST)
    (folder / ".gitignore").write_text("__pycache__/\n")
    if shutil.which("git"):
        git = ("git", "-C", str(folder), "-c", "user.name=ralph", "-c", "user.email=ralph@localhost")
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "--no-gpg-sign", "-m", "A cart with a bug")):
            subprocess.run((*git, *words), check=True)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


DEMO = CliCommand("demo", "Watch a run on a small example, with a scripted agent. Takes a few seconds.", demo)
