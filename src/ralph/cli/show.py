"""`ralph show`: what did a run do, iteration by iteration, and what came of it?"""

import os
import sys

from ralph.cli.named_run import read_run
from ralph.cli.table import DIRECTORY, JSON, CliCommand, Values


def show(values: Values, words: list[str]) -> int:
    from ralph.history.feed import history_now

    run = read_run(values, words)
    if run.facts.kind == "work":
        from ralph.cli.work import show_work

        return show_work(run, bool(values.get("json")))
    history = history_now(run)
    if values.get("json"):
        from ralph.show.report import written

        sys.stdout.buffer.write(written([history], "json"))
        return 0
    from ralph.cli.pager import paged
    from ralph.show.outlet import choose
    from ralph.show.summary import told

    style = choose(sys.stdout, os.environ, sys.stdout.isatty(), None, None)
    with paged() as out:
        for line in told(history, style):
            print(line, file=out)
    return 0


COMMAND = CliCommand(
    "show",
    "What a run did, iteration by iteration: checks, cost, changed files, refused claims, and what needs you.",
    show,
    (JSON, DIRECTORY),
    examples=("ralph show", "ralph show k3fa --json"),
    words="[RUN]",
)
