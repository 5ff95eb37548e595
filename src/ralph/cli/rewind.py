"""How do the files become again what they were after an earlier iteration?"""

import sys

from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.errors import UserError
from ralph.steering.which_run import run_and_number

HELP = """Make the files what they were after iteration N of a run (0: before the first).

The present state is saved first, and what cannot be saved is not overwritten: rewinding can itself be undone. Branch,
commits and the staged changes stay as they are; files that git ignores are left alone. Files are written by git's
settings and filters as they were when the run started; what could not be made as it was is said. RUN is the last one
here unless it is named."""


def rewind(values: Values, words: list[str]) -> int:
    from ralph.show.words import plural
    from ralph.steering import control

    run, number = run_and_number(values.get("directory", "."), words)
    if number is None:
        raise UserError("rewind to which iteration?", "give its number, 0 for the state before the first")
    done = control.rewind(run, number)
    state = f"after iteration {number}" if number else "before the first iteration"
    print(f"{plural(done.files, 'file')} changed: this is the state {state} of run {run.id}.", file=sys.stderr)
    for missed in done.missed:
        print(f"Not as it was: {missed}.", file=sys.stderr)
    print(f"What was there before is kept as {done.kept_as}.", file=sys.stderr)
    return 0


COMMAND = CliCommand("rewind", HELP, rewind, (DIRECTORY,), words="[RUN] N")
