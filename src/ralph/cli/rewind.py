"""How do the files become again what they were after an earlier iteration?"""

import click

from ralph.cli.commands import simple
from ralph.errors import UserError
from ralph.steering.which_run import run_and_number

HELP = """Make the files what they were after iteration N of a run (0: before the first).

The present state is saved first, and what cannot be saved is not overwritten: rewinding can itself be undone. Branch,
commits and the staged changes stay as they are; files that git ignores are left alone. RUN is the last one here unless
it is named."""


def command() -> click.Command:
    return simple(
        "rewind",
        rewind,
        click.Argument(["words"], nargs=-1, metavar="[RUN] N"),
        click.Option(["-C", "--directory"], default=".", metavar="DIR", help="The workspace."),
        help=HELP,
    )


def rewind(words: tuple[str, ...], directory: str) -> int:
    from ralph.show.words import plural
    from ralph.steering import control

    run, number = run_and_number(directory, words)
    if number is None:
        raise UserError("rewind to which iteration?", "give its number, 0 for the state before the first")
    done = control.rewind(run, number)
    state = f"after iteration {number}" if number else "before the first iteration"
    click.echo(f"{plural(done.files, 'file')} changed: this is the state {state} of run {run.id}.", err=True)
    click.echo(f"What was there before is kept as {done.kept_as}.", err=True)
    return 0
