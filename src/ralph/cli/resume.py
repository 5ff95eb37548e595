"""How does a run go on that was killed, interrupted, exhausted or left waiting? From its journal, under the same id."""

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from ralph.cli.commands import simple
from ralph.cli.run import Shown, play
from ralph.core.events import Notice
from ralph.core.model import Run
from ralph.core.secrets import MARK
from ralph.errors import UserError
from ralph.processes.keeper import Keeper
from ralph.records.journal import Story, recall, unreadable
from ralph.records.register import Listed
from ralph.run import order as orders
from ralph.run.order import Order
from ralph.settings import amended
from ralph.steering import control
from ralph.steering.mailbox import Mailbox
from ralph.steering.which_run import which_run, workspace_around

HELP = """Go on with a run: one that is paused, the last unfinished one here, or RUN.

Numbers go on where they were, nothing that was recorded as done is done again, and a usage limit that was being waited
out is waited out further."""


def command() -> click.Command:
    at_least_one = click.IntRange(min=1)
    return simple(
        "resume",
        resume,
        click.Argument(["run"], required=False, default=""),
        click.Option(["-m", "--max-iterations", "more"], type=at_least_one, metavar="N", help="N iterations more."),
        click.Option(["--max-cost"], type=click.FLOAT, metavar="USD", help="A new limit for all of the run."),
        click.Option(["--max-tokens"], type=at_least_one, metavar="N", help="A new limit for all of the run."),
        click.Option(["--max-time"], metavar="TIME", help="A new limit for all of the run."),
        click.Option(
            ["--until"],
            multiple=True,
            metavar="KIND:TEXT",
            help="One more thing that counts as a claim, be it `checks`.",
        ),
        click.Option(["-C", "--directory"], default=".", metavar="DIR", help="The workspace."),
        click.Option(["--json"], is_flag=True, help="Events as NDJSON on stdout."),
        click.Option(["--quiet"], is_flag=True, help="The final result only."),
        click.Option(["-V", "--verbose"], is_flag=True, help="Say more about what happens."),
        help=HELP,
    )


def resume(
    run: str,
    more: int | None,
    max_cost: float | None,
    max_tokens: int | None,
    max_time: str | None,
    until: tuple[str, ...],
    directory: str,
    json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    place = Path(directory).resolve()
    found = which_run(run, workspace_around(place) if directory == "." else place, control.cannot_go_on)
    if found.is_alive:
        return let_go_on(found, given=bool(more or max_cost or max_tokens or max_time or until))
    folder = found.folder
    Mailbox(found.place).unpause()
    if found.facts.kind == "work":
        from ralph.cli.work import resume as go_on_with_work

        return go_on_with_work(found, Shown(json, quiet, verbose))
    story, order = remembered(found), orders.read(folder.path / "run.json")
    notices = refuse_what_was_struck_out(order)
    order = where_it_is_now(order, folder.path)
    if order.task:
        from ralph.supervise.supervision import TaskPlace

        # A task begins anew: its marks are taken off, and its attempts are counted from one.
        order = with_limits(order, Story(run=Run(id="")), more, max_cost, max_tokens, max_time, until)
        with Keeper.start() as keeper:
            task = TaskPlace(order, reopens=True)
            _, stop = play(order, keeper, Shown(json, quiet, verbose), place=task, notices=notices)
            return stop.outcome.exit_code
    refuse_what_cannot_go_on(story)
    order = with_limits(order, story, more, max_cost, max_tokens, max_time, until)
    with Keeper.start() as keeper:
        _, stop = play(order, keeper, Shown(json, quiet, verbose), story=story, notices=notices)
        return stop.outcome.exit_code


def remembered(run: Listed) -> Story:
    try:
        return recall(run.folder.journal)
    except OSError as error:
        raise unreadable(run.folder.journal, error) from None


def let_go_on(run: Listed, given: bool) -> int:
    """The end of a pause: the process that plays the run goes on with it."""
    if given:
        raise UserError(f"run {run.id} is at work: its limits are fixed", "stop it first: ralph stop")
    print(f"run {run.id} goes on" + (" without an answer" if control.go_on(run) else ""))
    return 0


def where_it_is_now(order: Order, folder: Path) -> Order:
    """The order of a run whose workspace, or task, was moved or copied: it goes on where its record was found."""
    known, found = Path(order.task or order.workspace), folder.parents[2]
    kept = known / ".ralph" / "runs" / folder.name
    if folder.parents[1].name != ".ralph" or (kept.exists() and kept.samefile(folder)):
        return order
    goal = Path(order.goal_file)
    if order.goal_file and goal.is_relative_to(known):
        order = replace(order, goal_file=str(found / goal.relative_to(known)))
    return replace(order, task=str(found)) if order.task else replace(order, workspace=str(found))


def refuse_what_cannot_go_on(story: Story) -> None:
    if story.is_done:
        raise UserError(f"run {story.run.id} is done", "start a new one with `ralph run`")
    if story.missing:
        raise UserError(
            f"the journal of run {story.run.id} is damaged: iteration {story.missing} cannot be read",
            "start a new run: the work is in the workspace, and in refs/ralph/ of its repository",
        )


def refuse_what_was_struck_out(order: Order) -> tuple[Notice, ...]:
    """A key is never written down: where one stood among the settings, nobody knows them any more."""
    mark = MARK.decode()
    if mark in orders.encode(replace(order, goal_text="")).decode():
        raise UserError(
            "this run was started with a key among its settings, which was not written down",
            "start a new one, and keep keys in the environment",
        )
    if mark in order.goal_text:
        return (Notice(f"the goal held a key, which was not written down: the agent now reads {mark}"),)
    return ()


def with_limits(
    order: Order,
    story: Story,
    more: int | None = None,
    max_cost: float | None = None,
    max_tokens: int | None = None,
    max_time: str | None = None,
    until: tuple[str, ...] = (),
) -> Order:
    """The order with new limits and claims; refused where the run could not take another turn, nor be done without."""
    given = {"maxCost": max_cost, "maxTokens": max_tokens, "maxTime": max_time}
    said: dict[str, Any] = {name: limit for name, limit in given.items() if limit is not None}
    if more is not None:
        said["maximumIterations"] = len(story.run.iterations) + more - (order.settings.preset == "promise")
    if until:
        said["until"] = [*order.settings.until, *until]
    settings = amended(order.settings, said) if said else order.settings
    if not until:  # by which what is there may be done already
        refuse_what_is_spent(story, exhausted=more, budget=max_cost or max_tokens, timeout=max_time)
    return replace(order, settings=settings)


SPENT = {
    "exhausted": ("all its iterations", "-m N"),
    "budget": ("its budget", "--max-cost USD or --max-tokens N"),
    "timeout": ("its time", "--max-time TIME"),
}


def refuse_what_is_spent(story: Story, **given: object) -> None:
    """A limit ended the run: without a new one, by outcome, it could not take another turn."""
    outcome = story.finished.outcome if story.finished else ""
    if outcome in SPENT and given[outcome] is None:
        what, option = SPENT[outcome]
        raise UserError(f"run {story.run.id} has used {what}", f"give it more: ralph resume {option}")
