"""The built-in agent's entry point: `python -m ralph.builtin_agent --model PROVIDER:NAME`, with the prompt on stdin.

It is a separate program that works with any model. ralph starts it like every other agent.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import get_args

from ralph.agents.builtin import PROVIDERS, Wire, endpoint, with_key
from ralph.errors import UserError

_CONTEXT, _LOCAL_CONTEXT = 128_000, 32_000  # tokens, if the context of a model is unknown


def main(argv: Sequence[str] | None = None) -> int:
    options, commands = _options().parse_args(argv), set[int]()

    def end(number: int, _: object) -> None:
        """Kill the running commands, which a keeper finds only on Linux, and exit at once: a library might swallow an
        exception."""
        for group in commands:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        os._exit(128 + number)

    for deadly in (signal.SIGINT, signal.SIGTERM):
        signal.signal(deadly, end)
    try:
        return asyncio.run(_turn(options, commands))
    except UserError as error:
        print(f"ralph.builtin_agent: {error.advice}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python complains at exit
        return 1


async def _turn(options: argparse.Namespace, commands: set[int]) -> int:
    """Take one turn and return the exit code. `commands` collects the process groups of running commands."""
    model, key = with_key(
        endpoint(options.model, options.url, options.wire, options.key_env, env=os.environ), os.environ
    )
    for variable in (model.key_env, *(key for provider in PROVIDERS.values() for key in provider.keys)):
        os.environ.pop(variable, None)  # commands that the model runs must not see keys
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not prompt.strip():
        raise UserError("the prompt is empty", "write it to stdin")
    # The library takes a second to import, so it is imported only after everything was validated.
    from ralph.builtin_agent.toolbox import Toolbox
    from ralph.builtin_agent.wires import ModelAsker
    from ralph.builtin_agent.working import BuiltinWorker, Report, resume_conversation, start_conversation

    report = Report(f"{model.provider}:{model.model}")
    asker = ModelAsker(model, key, options.max_output, report.keep_alive, report.retry)
    context = options.context or asker.model.context_window or (_LOCAL_CONTEXT if model.is_local else _CONTEXT)
    home = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "ralph-agent")
    conversation = (
        resume_conversation(home, options.resume, context) if options.resume else start_conversation(home, context)
    )
    conversation.add_prompt(prompt)
    worker = BuiltinWorker(
        asker=asker,
        conversation=conversation,
        toolbox=Toolbox(
            Path.cwd(), os.environ, min(max(context // 2, 1000), 30_000), tuple(map(Path, options.add_dir))
        ),
        report=report,
        in_text=options.tools == "text",
        max_turns=options.max_turns,
    )
    worker.toolbox.commands = commands
    report.start(conversation.session, str(worker.toolbox.root))
    async with aclosing(asker.client):
        return await worker.take_turn()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m ralph.builtin_agent", description="Works on the prompt on its stdin.")
    parser.add_argument("--model", required=True, help="PROVIDER:NAME, or a bare name with --url")
    parser.add_argument("--url", default="", help="the address of the server (default: the provider's)")
    parser.add_argument("--wire", default="", choices=["", *get_args(Wire)], help="the protocol of the server")
    parser.add_argument("--key-env", default="", help="the variable that holds the key")
    parser.add_argument("--context", type=_count, help="how many tokens the model reads")
    parser.add_argument("--max-output", type=_count, help="how many tokens a reply may have")
    parser.add_argument("--max-turns", type=_count, help="how many replies the turn may have")
    parser.add_argument("--tools", default="native", choices=["native", "text"], help="how the model calls tools")
    parser.add_argument("--add-dir", default=[], action="append", help="another folder where it may write")
    parser.add_argument("--resume", default="", metavar="SESSION", help="continue this session")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
