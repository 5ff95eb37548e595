"""Writers are killed with -9 while they write: no reader fails, and no acknowledged message is lost."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.supervise.bus import BusReader, Message, MessageBus

pytestmark = pytest.mark.slow

# It writes in small steps, as a kernel may: so that most are killed within a message.
WRITER = """
import os, sys
from ralph.supervise.bus import MessageBus
path, name = sys.argv[1:]
write = os.write
os.write = lambda fd, data: write(fd, data[:50])
for number, size in enumerate(sys.stdin):
    body = f"{name} {number} {size}" + "x" * int(size)
    print(MessageBus(path).post("INFO", body), flush=True)
"""


def is_whole(message: Message) -> bool:
    first, _, rest = message.body.partition("\n")
    size = first.split()[2]
    return rest == "x" * int(size)


def writer(path: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_writers_lose_no_message_that_was_acknowledged(tmp_path: Path) -> None:
    path, dice = tmp_path / "bus.md", random.Random(20261115)
    reader, acknowledged = BusReader(path), set[str]()
    for round_number in range(10):
        writers = [writer(path, f"{round_number}.{n}") for n in range(3)]
        for process in writers:
            assert process.stdin is not None
            process.stdin.write("".join(f"{dice.choice((0, 100, 10_000, 50_000))}\n" for _ in range(100)))
            process.stdin.flush()
        for process in writers:
            assert process.stdout is not None
            for _ in range(dice.randrange(1, 6)):
                acknowledged.add(process.stdout.readline().strip())
            os.kill(process.pid, signal.SIGKILL)
            assert all(is_whole(message) for message in reader.messages())
        for process in writers:
            acknowledged.update(process.communicate()[0].split())
        acknowledged.add(MessageBus(path).post("INFO", "0 0 0\n"))
    messages = list(MessageBus(path).read())
    assert acknowledged <= {message.msg_id for message in messages}
    assert all(is_whole(message) for message in messages)
