"""Blocking functions (disk, git, rendering) called from the web server's event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a daemon thread, which does not keep the server alive after Ctrl-C."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            finish = partial(future.set_result, function())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            finish = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(lambda: future.cancelled() or finish())

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return await future
