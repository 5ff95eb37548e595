"""Cost of the stop hook, run as `ralph hook install` sets it up, with short and long transcripts."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.lab import MILLI, Lab
from bench.samples import Row, Wanted, compared
from bench.speech import MEGABYTE, lines

BARE, BY_HAND = "python3 -I -S -c pass", "a hook in bash"
SCRIPT = Path(__file__).with_name("stand_in_hook.sh")
STATE = "iteration: 1\nmax_iterations: 1000000\ncompletion_promise: DONE\n---\nMake the tests pass.\n"
ROUNDS = 31


def measure(lab: Lab) -> list[Row]:
    bare = {BARE: lambda: lab.seconds((lab.python, "-I", "-S", "-c", "pass")) * MILLI}
    idle = Session(lab, 20_000, active=False)
    rows = [compared("stop hook, no loop in the session", {"ralph": idle.asked, **bare}, ROUNDS)]
    other = Session(lab, 20_000, asks="another")
    rows.append(compared("stop hook, a loop in another session", {"ralph": other.asked, **bare}, ROUNDS))
    for name, size in (("20 KB", 20_000), ("50 MB", 50 * MEGABYTE)):
        session = Session(lab, size)
        contenders = {"ralph": session.asked, **session.by_hand(), **bare}
        rows.append(compared(f"stop hook, {name} transcript", contenders, ROUNDS, Wanted(1.5, BY_HAND)))
    return rows


class Session:
    """An agent's session with a transcript of `size` bytes, in its own workspace."""

    def __init__(self, lab: Lab, size: int, active: bool = True, asks: str = "bench") -> None:
        self._lab, self._folder = lab, lab.workspace()
        self._ralph("hook", "install", "claude")
        if active:
            self._ralph("hook", "start", "--session", "bench", "-m", "100000", "Make the tests pass.")
        transcript, self._event = self._folder / "transcript.jsonl", self._folder / "event.json"
        _write(transcript, size)
        said = {"session_id": asks, "transcript_path": str(transcript), "cwd": str(self._folder)}
        self._event.write_text(json.dumps({**said, "hook_event_name": "Stop"}))
        settings = json.loads((self._folder / ".claude" / "settings.local.json").read_text())
        self._command = settings["hooks"]["Stop"][0]["hooks"][0]["command"]

    def asked(self) -> float:
        """Return the milliseconds until the hook has answered."""
        return self._lab.seconds(("/bin/sh", "-c", self._command), self._folder, self._event) * MILLI

    def by_hand(self) -> dict[str, Callable[[], float]]:
        """The same with a hook as people write it in bash, if the programs it needs are installed."""
        programs = [shutil.which(name) for name in ("bash", "jq", "perl")]
        state = self._folder / "state"
        state.write_text(STATE)
        argv = (programs[0] or "", str(SCRIPT), str(state))
        return {BY_HAND: lambda: self._lab.seconds(argv, self._folder, self._event) * MILLI} if all(programs) else {}

    def _ralph(self, *words: str) -> None:
        subprocess.run((self._lab.ralph, *words), cwd=self._folder, env=self._lab.env, check=True, capture_output=True)


def _write(path: Path, size: int) -> None:
    batch = lines()
    with open(path, "wb") as file:
        while file.tell() < size:
            for line in batch:
                if file.tell() < size:
                    file.write(line + b"\n")
