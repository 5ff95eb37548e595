"""Play every cheat of the table through `ralph loop --check`: which are refused, or said, without any option?

Run `make cheats`. Those of jest and mocha need NODE_MODULES, a folder with both installed.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.cheats.play import Ending, missing_tool, play
from bench.cheats.projects import PROJECTS
from bench.cheats.table import CHEATS, Cheat


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cheats", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", help="kind, runner or name (repeatable)")
    parser.add_argument("--output", action="store_true", help="print all that ralph printed")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    chosen = [cheat for cheat in CHEATS if not args.only or is_chosen(cheat, args.only)]
    endings: list[tuple[Cheat, Ending]] = []
    with tempfile.TemporaryDirectory(prefix="ralph-cheats-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        for cheat, ending in zip(chosen, pool.map(partial(play_cheat, Path(folder)), chosen), strict=True):
            runner = PROJECTS[cheat.project].runner
            print(f"{ending.finding:15} {cheat.kind}: {cheat.name} ({runner}): {ending.last_line}", flush=True)
            if args.output:
                print(ending.output)
            endings.append((cheat, ending))
    played = [ending for _, ending in endings if not ending.finding.startswith("not played")]
    counts = Counter(ending.finding for _, ending in endings)
    print(f"\n{sum(ending.is_caught for ending in played)} of {len(played)} found:", dict(counts))
    return 0


def is_chosen(cheat: Cheat, words: Sequence[str]) -> bool:
    return any(word in (cheat.kind, cheat.name, cheat.project, PROJECTS[cheat.project].runner) for word in words)


def play_cheat(folder: Path, cheat: Cheat) -> Ending:
    if tool := missing_tool(cheat):
        return Ending("not played", f"{tool} is missing", "")
    return play(cheat, Path(tempfile.mkdtemp(dir=folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
