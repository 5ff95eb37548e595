"""What does an agent's output cost? Streams of any size, logged and shown: how fast, and in how much memory."""

import subprocess
import sys

from msgspec.structs import replace

from bench.lab import ROOT, Lab
from bench.samples import Row, Sample, Wanted, taking_turns
from bench.speech import LONG_LINE, MEGABYTE, SPEECHES

TEE = "tee"


def measure(lab: Lab) -> list[Row]:
    rows = [row for size, rounds in ((200, 5), (1000, 3)) for row in _stream(lab, size, rounds)]
    for speech in tuple(SPEECHES)[1:]:
        speed, _ = _stream(lab, 200, 3, speech)
        rows.append(replace(speed, measure=f"… of {speech} alone", wanted=None))
    return rows


def _stream(lab: Lab, size: int, rounds: int, speech: str = "many") -> list[Row]:
    """One of the lines is 20 MB long."""
    agent = _agent(lab, size, speech)
    ralph = " ".join(lab.running(agent, 1))
    peaks: dict[str, list[float]] = {"ralph": [], TEE: []}

    def speed(name: str, command: str) -> float:
        seconds, peak = lab.spent(("/bin/sh", "-c", command), lab.workspace())
        peaks[name].append(peak)
        return size / seconds

    commands = {"ralph": f"{ralph} 2>&1 | cat >/dev/null", TEE: f"{agent} | tee log >/dev/null"}
    runs = {name: lambda name=name, command=command: speed(name, command) for name, command in commands.items()}
    samples = taking_turns(runs, rounds)
    name = f"{size} MB stream" if size < 1000 else f"{size // 1000} GB stream"
    return [
        Row(f"{name}, logged and shown", samples.pop("ralph"), "MB/s", samples, Wanted(400, least=True)),
        Row(f"{name}, peak memory", Sample(tuple(peaks["ralph"])), "MB", {}, Wanted(40)),
    ]


def _agent(lab: Lab, size: int, speech: str) -> str:
    folder = lab.folder("stream")
    subprocess.run([sys.executable, "-m", "bench.speech", folder], cwd=ROOT, check=True)
    piece = folder / f"{speech}.ndjson"
    times = (size * MEGABYTE - LONG_LINE) // piece.stat().st_size
    some = f"i=0; while [ $i -lt {times // 2} ]; do cat '{piece}'; i=$((i + 1)); done"
    return lab.script("claude", f"{some}; cat {folder}/long.ndjson; {some}; cat {folder}/result.ndjson")
