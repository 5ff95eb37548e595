"""The ACP client: `python -m ralph.acp [OPTIONS] -- COMMAND…` takes one turn; the prompt comes on stdin."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from ralph.acp.connection import Connection, TurnFailed, report, take_turn


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    folders = [os.getcwd(), *options.add_dir]
    agent = Connection(options.command, options.policy, folders)

    def end(number: int, _: object) -> NoReturn:
        agent.kill()
        os._exit(128 + number)

    for deadly in (signal.SIGINT, signal.SIGTERM):
        signal.signal(deadly, end)
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        agent.start()
        take_turn(agent, prompt, policy=options.policy, model=options.model, session=options.session)
    except TurnFailed as failed:
        report(failed.error)
        return 1
    finally:
        agent.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m ralph.acp", description="Take one turn with an ACP agent.")
    parser.add_argument("--policy", default="default", choices=["default", "yolo", "read-only"])
    parser.add_argument("--model", default="", help="the model to choose")
    parser.add_argument("--session", default="", help="the session to resume")
    parser.add_argument("--add-dir", default=[], action="append", help="another folder that may be changed")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the agent, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
