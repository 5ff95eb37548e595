"""How soon does the built-in agent ask its model? From its start as a process to the first request on the wire."""

import socket
import subprocess
import sys
import time

from bench.lab import MILLI, Lab
from bench.samples import Row, Sample, Wanted

ROUNDS = 5


def measure(lab: Lab) -> list[Row]:
    taken = tuple(_until_asked(lab, wire) for _ in range(ROUNDS) for wire in ("chat", "messages"))
    return [Row("the built-in agent's first request after", Sample(taken), "ms", {}, Wanted(2500))]


def _until_asked(lab: Lab, wire: str) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        words = [sys.executable, "-P", "-m", "ralph.agent", "--model", "lab", "--url", url, "--wire", wire]
        began = time.perf_counter()
        process = subprocess.Popen(
            words,
            cwd=lab.workspace(),
            env=lab.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(b"Do it.")
        process.stdin.close()
        server.settimeout(60)
        asked, _ = server.accept()
        with asked:
            asked.recv(1)
            seconds = time.perf_counter() - began
        process.kill()
        process.wait()
    return seconds * MILLI
