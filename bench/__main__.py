"""Benchmarks: `make bench` measures everything, `python -m bench NAME…` a part."""

import sys
from collections.abc import Callable

from bench import backlog, copies, counts, crowd, ending, hooks, iterations, pages, start, streams, tuning
from bench.lab import Lab
from bench.samples import Row
from bench.table import remarks, report, shown

MEASURES: dict[str, Callable[[Lab], list[Row]]] = {
    "start": start.measure,
    "iteration": iterations.plain,
    "checks": iterations.checked,
    "git": iterations.in_git,
    "new-files": iterations.beside_new_files,
    "tune": tuning.measure,
    "copies": copies.measure,
    "counts": counts.measure,
    "streams": streams.measure,
    "hook": hooks.measure,
    "crowd": crowd.measure,
    "pages": pages.measure,
    "backlog": backlog.measure,
    "ending": ending.second_signal,
    "orphans": ending.orphans,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        print(f"bench: unknown measure: {unknown[0]}\nhint: choose from {', '.join(MEASURES)}", file=sys.stderr)
        return 2
    lab = Lab()
    rows: list[Row] = []
    try:
        for name in names or MEASURES:
            print(f"measuring {name} …", file=sys.stderr)
            rows += MEASURES[name](lab)
    finally:
        lab.close()
    print(shown(rows), *remarks(), sep="\n")
    if not names:
        report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
