"""`ralph show`: what did a run do, iteration by iteration, and what came of it?"""

import os
import sys
from typing import TYPE_CHECKING

from ralph.cli.plain import DIRECTORY, JSON, Plain, Values, click_command, read_run

if TYPE_CHECKING:
    import click


def show(values: Values, words: list[str]) -> int:
    from ralph.history.account import account_now

    run = read_run(values, words)
    account = account_now(run)
    if values.get("json"):
        from msgspec.json import encode

        sys.stdout.buffer.write(encode(account) + b"\n")
        return 0
    from ralph.show.outlet import choose
    from ralph.show.summary import chapters

    for line in chapters(account, choose(sys.stdout, os.environ, sys.stdout.isatty(), None, None)):
        print(line)
    return 0


PLAIN = Plain(
    "show",
    "What a run did, iteration by iteration: checks, cost, changed files, refused claims, and what needs you.",
    show,
    (JSON, DIRECTORY),
    examples=("ralph show", "ralph show k3fa --json"),
)


def command() -> "click.Command":
    return click_command(PLAIN)
