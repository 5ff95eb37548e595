"""`ralph pause`: how is a run held without ending it? No turn begins until `ralph resume`."""

from typing import TYPE_CHECKING

from ralph.cli.plain import DIRECTORY, Plain, Values, click_command, one_run

if TYPE_CHECKING:
    import click


def pause(values: Values, words: list[str]) -> int:
    from ralph.steering import control

    run = one_run(values, words, control.not_at_work)
    control.pause(run)
    print(f"run {run.id} pauses before its next turn; go on with `ralph resume {run.id}`")
    return 0


PLAIN = Plain(
    name="pause",
    help="Hold a run: the turn that is under way is finished, and no other begins until `ralph resume`. "
    "The time of a pause does not count against --max-time.",
    answer=pause,
    options=(DIRECTORY,),
    examples=("ralph pause", "ralph pause k3fa"),
)


def command() -> "click.Command":
    return click_command(PLAIN)
