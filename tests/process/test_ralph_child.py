"""Another ralph that this program has started ends with it."""

import os
import signal
import subprocess
import sys

LONELY = "from ralph.process.ralph_child import hang_up_with_parent as hang_up; print(hang_up(), flush=True)"


def test_a_child_whose_parent_died_before_it_began_ends_at_once() -> None:
    reader, writer = os.pipe()
    os.close(writer)  # as the kernel does when the parent dies
    script = f"import os; os.dup2({reader}, 3); {LONELY}"
    child = subprocess.run([sys.executable, "-c", script], pass_fds=[reader], stdout=subprocess.PIPE, check=False)
    os.close(reader)
    assert (child.returncode, child.stdout) == (-signal.SIGHUP, b"")


def test_a_program_that_no_ralph_started_has_no_parent_to_follow() -> None:
    child = subprocess.run([sys.executable, "-c", LONELY], stdout=subprocess.PIPE, check=True)
    assert child.stdout == b"False\n"
