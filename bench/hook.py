"""What does one stop cost? The hook as it is installed, with short and long transcripts, beside a stand-in in bash.

Interleaved, by the clock and by processor time: on a busy machine only the second says something about the code.

python bench/hook.py [ROUNDS]
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from ralph.hooks import starting
from ralph.hooks.hosts import HOSTS
from ralph.hooks.install import command_line

STAND_IN = Path(__file__).with_name("stand_in_hook.sh")
DONE = "All is done.\n<promise>DONE</promise>"
SIZES = {"20 KB": 20_000, "50 MB": 50_000_000}


class Bench:
    """A workspace with a loop in it, and transcripts of several sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workspace = folder, folder / "workspace"
        self.workspace.mkdir()
        self.transcripts = {name: self._transcript(name, size) for name, size in SIZES.items()}
        task = "Make every test pass. " * 20
        loop = starting.start(self.workspace, "s1", task, {"maximumIterations": 10**6}, env={})
        self.state, self.kept = Path(loop.path), folder / "kept.json"
        shutil.copy(self.state, self.kept)
        self.journal, self.begun = Path(loop.journal), Path(loop.journal).read_bytes()
        self.stand_in = folder / "stand-in"
        self._stand_in_state = f"iteration: 1\nmax_iterations: 1000000\ncompletion_promise: DONE\n---\n{task}\n"

    def _transcript(self, name: str, size: int) -> Path:
        path = self.folder / f"{name.replace(' ', '')}.jsonl"
        with path.open("w") as file:
            number = 0
            while file.tell() < size:
                number += 1
                file.writelines(self._line(*row) for row in self._turn(number))
        return path

    def _turn(self, number: int) -> list[tuple[str, dict[str, object]]]:
        output = "a line of output that a tool has printed\n" * 40
        return [
            ("assistant", {"type": "text", "text": f"Step {number}: I look at the next file and change it."}),
            ("assistant", {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": "make"}}),
            ("user", {"type": "tool_result", "tool_use_id": f"t{number}", "content": output}),
        ]

    def _line(self, role: str, block: dict[str, object]) -> str:
        message = {"role": role, "content": [block]}
        row = {"type": role, "isSidechain": False, "message": message}
        return json.dumps(row, separators=(",", ":")) + "\n"

    def reset(self) -> None:
        shutil.copy(self.kept, self.state)
        self.journal.write_bytes(self.begun)
        self.stand_in.write_text(self._stand_in_state)

    def event(self, size: str, text: str, session: str = "s1") -> bytes:
        event = {"session_id": session, "transcript_path": str(self.transcripts[size]), "cwd": str(self.workspace)}
        return json.dumps({**event, "hook_event_name": "Stop", "last_assistant_message": text}).encode()


def cases(bench: Bench) -> dict[str, tuple[list[str], bytes, Path]]:
    line = ["sh", "-c", command_line(HOSTS["claude"], "stop")]
    found: dict[str, tuple[list[str], bytes, Path]] = {
        "a shell that does nothing": (["sh", "-c", ":"], b"", bench.folder),
        "a Python that does nothing": ([sys.executable, "-I", "-S", "-c", "pass"], b"", bench.folder),
        "no loop active": (line, bench.event("20 KB", "hm"), bench.folder),
        "another session's loop": (line, bench.event("20 KB", "hm", "s2"), bench.workspace),
    }
    for size in SIZES:
        found[f"blocked, {size}"] = line, bench.event(size, "Not yet."), bench.workspace
        found[f"promise accepted, {size}"] = line, bench.event(size, DONE), bench.workspace
        by_hand = ["bash", str(STAND_IN), str(bench.stand_in)]
        found[f"bash stand-in, {size}"] = by_hand, bench.event(size, "Not yet."), bench.folder
    return found


def timed(argv: list[str], stdin: bytes, cwd: Path) -> tuple[float, float]:
    """Milliseconds by the clock, and of processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, input=stdin, cwd=cwd, capture_output=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000


def peak(bench: Bench, size: str) -> float:
    """Megabytes of memory at most, by the kernel's own account of the process."""
    bench.reset()
    code = command_line(HOSTS["claude"], "prompt").replace('"prompt"', '"stop"')
    code = code.replace("sys.exit(main(", 'status = lambda code: print(open("/proc/self/status").read()); status(main(')
    event = bench.event(size, DONE)
    told = subprocess.run(["sh", "-c", code], input=event, cwd=bench.workspace, capture_output=True, check=True).stdout
    return next(int(row.split()[1]) / 1024 for row in told.decode().splitlines() if row.startswith("VmHWM"))


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        measured: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for name, case in cases(bench).items():
                bench.reset()
                measured.setdefault(name, []).append(timed(*case))
        print(f"{'milliseconds, median (least)':34}{'clock':>18}{'processor':>18}")
        for name, figures in measured.items():
            walls, cpus = zip(*figures, strict=True)
            print(f"{name:34}{median(walls):10.1f} ({min(walls):5.1f}){median(cpus):10.1f} ({min(cpus):5.1f})")
        if os.path.exists("/proc/self/status"):
            for size in SIZES:
                print(f"memory at most, {size}: {peak(bench, size):.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 20))
