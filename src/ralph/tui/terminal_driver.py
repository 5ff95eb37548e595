"""textual's driver, for terminals that may go away while it draws: a closed window, a killed tmux, a lost connection.

With the driver of textual 8.2 such a TUI stayed for ever and ignored SIGTERM (issue 54): its writer thread ended with
EIO, and then the main thread waited for room in the writer's full queue.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from textual.drivers.linux_driver import LinuxDriver


class TerminalOutput:
    """The part of a file that textual's writer thread uses. Text for a terminal that is gone is dropped."""

    def __init__(self, file: IO[str], on_error: Callable[[], None]) -> None:
        self._file, self._on_error = file, on_error

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            self._on_error()

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            self._on_error()

    def fileno(self) -> int:
        return self._file.fileno()


class TerminalDriver(LinuxDriver):
    """Ends the app when its terminal is gone, whether or not a SIGHUP arrives."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file: Any = TerminalOutput(self._file, self._exit_app)

    def _exit_app(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._app.exit, [])

    def _sigcont_application(self, *args: object) -> None:
        # The kernel sends SIGCONT after the SIGHUP of a closed terminal. textual would start a second writer thread.
        if os.isatty(self.fileno):
            super()._sigcont_application(*args)

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:  # EIO
            self._exit_app()
