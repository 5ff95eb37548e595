"""How is a run started from the command line? Fork the keeper first, then learn what is asked for, then play it."""

import os
import sys
from typing import Any


def run_command(command: str, values: dict[str, Any], words: list[str]) -> int:
    """`ralph run` and its kin: the exit code is the outcome's."""
    from ralph.world.keeper import Keeper

    with Keeper.start() as keeper:
        from ralph.cli.request import understood

        request = understood(command, values, words)
        from ralph.settings import load

        loaded = load(request.workspace, request.overrides, env=os.environ, config=request.config)
        if request.dry_run:
            from ralph.cli.dry import explain

            return explain(request, loaded)
        return _play(request, loaded, keeper)


def _play(request: Any, loaded: Any, keeper: Any) -> int:
    from ralph.session import Session
    from ralph.show.screen import make_screen
    from ralph.world.interrupt import Interrupt

    settings = loaded.settings
    request.goal()  # a goal that cannot be read is said before anything is made
    screen = make_screen(
        sys.stderr,
        quiet=request.quiet,
        verbose=request.verbose,
        agent_output=settings.stream_agent_output,
        color=None if settings.color else False,
        emoji=None if settings.emoji else False,
    )
    sinks = []
    if request.json:
        from ralph.show.ndjson import Ndjson

        sinks.append(Ndjson())
    try:
        with Interrupt() as interrupt:
            session = Session(
                settings,
                request.workspace,
                request.goal,
                agent_args=request.agent_args,
                listeners=[screen],
                sinks=sinks,
                tick=screen.tick if screen.is_live else None,
                keeper=keeper,
                interrupt=interrupt,
                one_shot=request.one_shot,
                unlimited=request.unlimited,
                notices=_verbose_notices(request, loaded) if request.verbose else (),
            )
            _, stop = session.play()
    finally:
        screen.close()
    return stop.outcome.exit_code


def _verbose_notices(request: Any, loaded: Any) -> list[str]:
    import msgspec

    from ralph.core.secrets import redact_text

    merged = redact_text(msgspec.json.encode(loaded.settings, enc_hook=str).decode())
    return [*(f"Loading settings from {path}" for path in loaded.sources), f"Merged configuration: {merged}"]
