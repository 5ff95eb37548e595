"""Run ralph without starting a new Python for each call. A server process imports everything that a run needs, and
forks for each call: the fork gets its own arguments, folder, environment and streams. Calls that depend on the start of
Python (imports, encodings, LD_PRELOAD) get a new Python."""

import faulthandler
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LANG = "C.UTF-8"
# These take effect only at the start of a process.
FROM_THE_START = ("LANGUAGE", "LC_", "LD_", "PYTHON", "TZ", "FAKE", "COVERAGE")
ROOM = 50_000  # bytes that always fit into a pipe or packet
LESSONS = (
    ("run", "x", "--agent", "true", "-m", "1"),
    ("run", "x", "--agent", "true", "-m", "1", "--json"),
    ("show",),
    ("hook", "start", "x"),
    ("work", "status"),
    ("task", "x", "--root", "x", "--project", "x", "--task", "x", "--agent", "true", "--max-restarts", "1"),
)


class Warm:
    """The tests' side of the server process."""

    spent = 0.0  # CPU seconds of all calls

    def __init__(self, *modules: str) -> None:
        self._modules = modules  # so that it is imported as well
        self._start()

    def _start(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), *self._modules],
                env={"LANG": LANG, "PATH": os.defpath, "ROOM": "." * 4000},  # see `show_environment`
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    @staticmethod
    def _can_play(words: tuple[str, ...], env: Mapping[str, str], stdin: str | None) -> bool:
        """Return whether a fork behaves like a new process for this call."""
        plain = env.get("LANG") == LANG and not any(name.startswith(FROM_THE_START) for name in env)
        return sys.platform == "linux" and plain and len(repr((words, env))) < ROOM and len(repr(stdin)) < ROOM

    def run(
        self,
        words: tuple[str, ...],
        cwd: Path,
        env: Mapping[str, str],
        stdin: str | None = None,
        timeout: float = 120,
    ) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end, in a new Python if a fork would behave differently."""
        if self._can_play(words, env, stdin):
            return self._play(words, cwd, env, stdin, timeout)
        return subprocess.run(
            [sys.executable, "-m", "ralph", *words],
            cwd=cwd,
            env=env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def _play(
        self, words: tuple[str, ...], cwd: Path, env: Mapping[str, str], stdin: str | None, timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        reading, ends = zip(os.pipe(), os.pipe(), strict=True)  # its stdout and stderr
        given = os.open(os.devnull, os.O_RDONLY)
        if stdin is not None:
            os.close(given)
            given, to = os.pipe()
            os.write(to, stdin.encode())
            os.close(to)
        ended = self._ask(words, cwd, env, [given, *ends])
        out, err, end = _read((*reading, ended), time.monotonic() + timeout)
        pid, *how = end.split()
        if not how:
            os.kill(int(pid), signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout, out, err)
        Warm.spent += float(how[1])
        told = (text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in (out, err))
        return subprocess.CompletedProcess(words, int(how[0]), *told)

    def start(self, words: tuple[str, ...], cwd: Path, env: Mapping[str, str], log: int) -> "Started":
        """Start a call in a new session, with its output in `log`, and don't wait for it."""
        assert self._can_play(words, env, None)
        streams = [os.open(os.devnull, os.O_RDONLY), os.dup(log), os.dup(log)]
        return Started(self._ask(words, cwd, env, streams, goes_on=True))

    def _ask(
        self, words: tuple[str, ...], cwd: Path, env: Mapping[str, str], streams: list[int], goes_on: bool = False
    ) -> int:
        """The connection on which the pid and later the exit status arrive."""
        if self._process.poll() is not None:  # a test may kill all its descendants
            self.close()
            self._start()
        os.umask(mask := os.umask(0o077))
        asked = {"words": words, "cwd": str(cwd), "env": env, "umask": mask, "goes_on": goes_on}
        ended, end = os.pipe()
        socket.send_fds(self._line, [json.dumps(asked).encode()], [*streams, end])
        for fd in (*streams, end):
            os.close(fd)
        return ended

    def close(self) -> None:
        self._line.close()
        self._process.communicate()


class Started:
    """A running call, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, end: int) -> None:
        self._end, self._told = end, os.read(end, 64)
        self.pid, self.returncode = int(self._told.split()[0]), None  # type: int, int | None

    def poll(self) -> int | None:
        look = select.poll()
        look.register(self._end, select.POLLIN)
        while self.returncode is None and look.poll(0):
            piece = os.read(self._end, 64)
            self._told += piece
            if len(how := self._told.split()) > 1:
                self._is_over(int(how[1]), float(how[2]))
            elif not piece:  # the process that knew the exit status was killed as well
                self._is_over(-signal.SIGKILL, 0.0)
        return self.returncode

    def _is_over(self, code: int, spent: float) -> None:
        self.returncode = code
        Warm.spent += spent
        os.close(self._end)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 3600)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 3600)
            select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _read(pipes: tuple[int, ...], deadline: float) -> list[bytes]:
    """Return everything that the pipes deliver until they are closed, or until the deadline."""
    texts, look = dict.fromkeys(pipes, b""), select.poll()
    for fd in pipes:
        look.register(fd, select.POLLIN)
    open_ones = set(pipes)
    while open_ones and (left := deadline - time.monotonic()) > 0:
        for fd, _ in look.poll(left * 1000):
            if piece := os.read(fd, 1 << 16):
                texts[fd] += piece
            else:
                look.unregister(fd)
                open_ones.remove(fd)
    for fd in pipes:
        os.close(fd)
    return [*texts.values()]


def serve(line: socket.socket) -> None:
    """Fork for each request until the other end is closed."""
    look, running = select.poll(), dict[int, tuple[int, int]]()
    look.register(line, select.POLLIN)
    while True:
        for fd, _ in look.poll():
            if fd == line.fileno():
                text, streams, _, _ = socket.recv_fds(line, 4 * ROOM, 4)
                if not text:
                    return
                pid = os.fork()
                if not pid:
                    play(json.loads(text), streams[:3])
                os.write(streams[3], b"%d " % pid)
                for stream in streams[:3]:
                    os.close(stream)
                ended = os.pidfd_open(pid)
                running[ended] = pid, streams[3]
                look.register(ended, select.POLLIN)
            else:
                pid, answer = running.pop(fd)
                _, status, used = os.wait4(pid, 0)
                with suppress(OSError):  # the caller did not wait for it
                    os.write(answer, b"%d %f" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))
                look.unregister(fd)
                os.close(fd)
                os.close(answer)


def play(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Turn the forked process into the call."""
    from ralph.__main__ import leave, main

    for to, fd in enumerate(streams):
        os.dup2(fd, to)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    os.umask(asked["umask"])
    sys.argv[1:] = asked["words"]
    if asked["goes_on"]:
        os.setsid()
        faulthandler.enable(2)
        show_environment(asked["env"])
    code = 1
    try:
        code = main()
    except BaseException as error:  # noqa: BLE001 (as Python itself would)
        sys.excepthook(type(error), error, error.__traceback__)
    leave(code)


def show_environment(env: Mapping[str, str]) -> None:
    """Copy the current environment to where /proc/PID/environ reads it. It shows the environment at the start of the
    program, and tests find processes by it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, end = int(fields[47]), int(fields[48])
    text = "".join(f"{name}={value}\0" for name, value in env.items()).encode()
    memory = os.open("/proc/self/mem", os.O_WRONLY)
    os.pwrite(memory, text[: end - first].ljust(end - first, b"\0"), first)
    os.close(memory)


def learn() -> None:
    """Import everything that a run imports."""
    for words in LESSONS:
        reader, writer = os.pipe()
        if not os.fork():
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            from ralph.__main__ import main

            sys.argv[1:] = words
            with suppress(SystemExit):
                main()
            os.write(writer, json.dumps([*sys.modules]).encode()[: 1 << 16])
            os._exit(0)
        os.close(writer)
        with open(reader, encoding="utf-8") as names:
            for name in json.load(names):
                with suppress(ImportError):
                    importlib.import_module(name)
        os.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        os.environ["HOME"] = empty
        learn()
        for wanted in sys.argv[2:]:
            importlib.import_module(wanted)
        os.chdir("/")
    tempfile.tempdir = None  # its location depends on the environment
    with socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)
