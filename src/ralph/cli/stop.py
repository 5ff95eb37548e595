"""`ralph stop`: how is a run ended from another terminal? As Ctrl-C would: after the current turn, or at once."""

import time

from ralph.cli.named_run import one_run
from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.run.options import Option

_GLANCE = 0.05


def stop(values: Values, words: list[str]) -> int:
    from ralph.records.register import listed
    from ralph.steering import control

    run = one_run(values, words, control.not_at_work)
    gently = "ends once what it does at this moment is finished; `ralph stop` again ends it now"
    print(f"run {run.id} {'ends now' if control.stop(run, bool(values.get('now'))) else gently}")
    while values.get("wait") and (seen := listed(run.place)) and seen.is_alive:
        time.sleep(_GLANCE)
    return 0


COMMAND = CliCommand(
    "stop",
    "End a run as Ctrl-C would: what it does at this moment may be finished, within the run's --grace. "
    "A run that is stopped can go on later, with `ralph resume`.",
    stop,
    (
        Option(("--now",), "End the turn too, with everything that it started.", "Options", kind="flag"),
        Option(("--wait",), "Return when the run has ended.", "Options", kind="flag"),
        DIRECTORY,
    ),
    examples=("ralph stop", "ralph stop --now k3fa"),
    words="[RUN]",
)
