"""Cost of an agent's output: speed and memory for a stream of 200 MB that is logged and shown."""

import subprocess
import sys

from bench.lab import ROOT, Lab
from bench.samples import Row, Sample, Wanted, taking_turns
from bench.speech import LONG_LINE, MEGABYTE

TEE = "tee"
SIZE = 200  # MB; one of the lines is 20 MB long
ROUNDS = 5


def measure(lab: Lab) -> list[Row]:
    agent = _agent(lab)
    ralph = " ".join(lab.running(agent, 1))
    peaks: dict[str, list[float]] = {"ralph": [], TEE: []}

    def speed(name: str, command: str) -> float:
        seconds, peak = lab.spent(("/bin/sh", "-c", command), lab.workspace())
        peaks[name].append(peak)
        return SIZE / seconds

    commands = {"ralph": f"{ralph} 2>&1 | cat >/dev/null", TEE: f"{agent} | tee log >/dev/null"}
    runs = {name: lambda name=name, command=command: speed(name, command) for name, command in commands.items()}
    samples = taking_turns(runs, ROUNDS)
    return [
        Row(f"{SIZE} MB stream, logged and shown", samples.pop("ralph"), "MB/s", samples, Wanted(250, least=True)),
        Row(f"{SIZE} MB stream, peak memory", Sample(tuple(peaks["ralph"])), "MB", {}, Wanted(60)),
    ]


def _agent(lab: Lab) -> str:
    folder = lab.folder("stream")
    subprocess.run([sys.executable, "-m", "bench.speech", folder], cwd=ROOT, check=True)
    piece = folder / "many.ndjson"
    times = (SIZE * MEGABYTE - LONG_LINE) // piece.stat().st_size
    some = f"i=0; while [ $i -lt {times // 2} ]; do cat '{piece}'; i=$((i + 1)); done"
    return lab.script("claude", f"{some}; cat {folder}/long.ndjson; {some}; cat {folder}/result.ndjson")
