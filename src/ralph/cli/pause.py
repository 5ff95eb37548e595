"""`ralph pause`: how is a run held without ending it? No turn begins until `ralph resume`."""

from ralph.cli.named_run import one_run
from ralph.cli.table import DIRECTORY, CliCommand, Values


def pause(values: Values, words: list[str]) -> int:
    from ralph.steering import control

    run = one_run(values, words, control.not_at_work)
    control.pause(run)
    print(f"run {run.id} pauses before its next turn; go on with `ralph resume {run.id}`")
    return 0


COMMAND = CliCommand(
    "pause",
    "Hold a run: the turn that is under way is finished, and no other begins until `ralph resume`. "
    "The time of a pause does not count against --max-time.",
    pause,
    (DIRECTORY,),
    examples=("ralph pause", "ralph pause k3fa"),
    words="[RUN]",
)
