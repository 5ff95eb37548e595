"""Counts that do not depend on the machine: modules, processes, files and writes of a run and of one more iteration."""

import json
import subprocess
import sys

from bench.lab import ROOT, Lab
from bench.samples import Row, Sample

# Runs the command in its own process and prints what it did. An audit hook sees every file opened and process started.
COUNTING = """
import json, os, sys
counts = {"opened": 0, "started": 0}
def hook(event, args):
    counts["opened"] += event == "open" and isinstance(args[0], (str, bytes))
    counts["started"] += event in ("os.posix_spawn", "os.fork", "subprocess.Popen")
sys.addaudithook(hook)
before = set(sys.modules)
from ralph.__main__ import main
main()
io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
counts.update(modules=len(set(sys.modules) - before), writes=int(io["syscw"]))
counts["left_open"] = len(os.listdir("/proc/self/fd"))
print(json.dumps(counts), flush=True)
"""
FEW, MANY = 2, 6  # iterations


def measure(lab: Lab) -> list[Row]:
    few, many = (_count(lab, iterations) for iterations in (FEW, MANY))
    each = {name: (many[name] - few[name]) / (MANY - FEW) for name in few}
    return [
        Row("modules imported by a run", Sample((few["modules"],)), ""),
        Row("one more iteration: files opened by ralph", Sample((each["opened"],)), ""),
        Row("one more iteration: write calls of ralph", Sample((each["writes"],)), ""),
        Row("one more iteration: processes started by ralph itself", Sample((each["started"],)), ""),
        Row("one more iteration: descriptors left open", Sample((each["left_open"],)), ""),
    ]


def _count(lab: Lab, iterations: int) -> dict[str, float]:
    words = ["run", "goal", "--agent", "true", "-m", str(iterations)]
    env = {**lab.env, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, *words],
        cwd=lab.workspace(),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    counts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return counts
