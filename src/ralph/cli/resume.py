"""How does a run go on that was killed, interrupted, exhausted or left waiting? From its journal, under the same id."""

from pathlib import Path

import click
from msgspec.structs import replace

from ralph import charter as charters
from ralph.charter import Charter
from ralph.cli.commands import simple
from ralph.cli.run import Shown, play
from ralph.errors import UserError
from ralph.world.journal import Story, recall
from ralph.world.keeper import Keeper
from ralph.world.runs import find_run

HELP = """Go on with a run: the last unfinished one here, or RUN.

Numbers go on where they were, nothing that was recorded as done is done again, and a usage limit that was being waited
out is waited out further."""


def command() -> click.Command:
    return simple(
        "resume",
        resume,
        click.Argument(["run"], required=False, default=""),
        click.Option(["-m", "--max-iterations", "more"], type=click.IntRange(min=1), help="So many iterations more."),
        click.Option(["--max-cost"], type=click.FLOAT, help="A new limit for all of the run, in US dollars."),
        click.Option(["--max-time"], help="A new limit for all of the run."),
        click.Option(["-C", "--directory"], default=".", help="The workspace."),
        click.Option(["--json"], is_flag=True, help="Events as NDJSON on stdout."),
        click.Option(["--quiet"], is_flag=True, help="The final result only."),
        click.Option(["-V", "--verbose"], is_flag=True, help="Say more about what happens."),
        help=HELP,
    )


def resume(
    run: str,
    more: int | None,
    max_cost: float | None,
    max_time: str | None,
    directory: str,
    json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    folder = find_run(Path(directory).resolve() / ".ralph", run, lambda story: not story.is_done)
    story = recall(folder.journal)
    charter = with_limits(charters.read(folder.path / "run.json"), story, more, max_cost, max_time)
    with Keeper.start() as keeper:
        return play(charter, keeper, Shown(json, quiet, verbose), story)


def with_limits(
    charter: Charter, story: Story, more: int | None, max_cost: float | None, max_time: str | None
) -> Charter:
    """The charter with new limits; refused where the run could not take another turn."""
    settings = charter.settings
    done = len(story.run.iterations)
    if story.is_done:
        raise UserError(f"run {story.run.id} is done", "start a new one with `ralph run`")
    if more is not None:
        settings = replace(settings, maximum_iterations=done + more - (settings.preset == "promise"))
    if max_cost is not None:
        settings = replace(settings, max_cost=max_cost)
    if max_time is not None:
        from ralph.settings import parse_duration

        settings = replace(settings, max_time=parse_duration(max_time))
    if story.finished and story.finished.outcome == "exhausted" and more is None:
        raise UserError(f"run {story.run.id} has used its {done} iterations", "give it more: ralph resume -m N")
    return replace(charter, settings=settings)
