"""What does the stop hook cost? Run as `ralph hook install` puts it into an agent, with short and long transcripts."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.lab import MILLI, Lab
from bench.samples import Row, Wanted, compared
from bench.speech import MEGABYTE, lines

ISOLATED = "python3 -I -S -c pass"
ROUNDS = 31


def measure(lab: Lab) -> list[Row]:
    """Two bare interpreters are a quarter of what a hook written in bash takes."""
    bare = {ISOLATED: lambda: lab.seconds((lab.python, "-I", "-S", "-c", "pass")) * MILLI}
    sessions = {
        "no loop in this session": _session(lab, 20_000, active=False),
        "20 KB transcript": _session(lab, 20_000),
        "50 MB transcript": _session(lab, 50 * MEGABYTE),
    }
    return [
        compared(f"stop hook, {name}", {"ralph": answer, **bare}, ROUNDS, Wanted(2, ISOLATED))
        for name, answer in sessions.items()
    ]


def _session(lab: Lab, size: int, active: bool = True) -> Callable[[], float]:
    """Asks the hook of a session with a transcript of so many bytes: milliseconds until it has answered."""
    folder = lab.workspace()
    _ralph(lab, folder, "hook", "install", "claude")
    if active:
        _ralph(lab, folder, "hook", "start", "--session", "bench", "-m", "100000", "Make the tests pass.")
    transcript, event = folder / "transcript.jsonl", folder / "event.json"
    _write(transcript, size)
    said = {"session_id": "bench", "transcript_path": str(transcript), "cwd": str(folder), "hook_event_name": "Stop"}
    event.write_text(json.dumps(said))
    settings = json.loads((folder / ".claude" / "settings.json").read_text())
    command = settings["hooks"]["Stop"][0]["hooks"][0]["command"]
    return lambda: lab.seconds(("/bin/sh", "-c", command), folder, event) * MILLI


def _ralph(lab: Lab, folder: Path, *words: str) -> None:
    subprocess.run((lab.ralph, *words), cwd=folder, env=lab.env, check=True, capture_output=True)


def _write(path: Path, size: int) -> None:
    batch = lines()
    with open(path, "wb") as file:
        while file.tell() < size:
            for line in batch:
                if file.tell() < size:
                    file.write(line + b"\n")
