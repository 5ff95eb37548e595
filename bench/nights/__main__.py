"""Can a loop be fooled, does it lose anything, does it leave anything behind? `make nights`, or python -m bench.nights.

Every night is drawn from a seed, and every contender plays every night with the same agent in a fresh repository.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata

from bench.lab import installed
from bench.nights import contenders, table
from bench.nights.contenders import Contender
from bench.nights.measures import numbers
from bench.nights.night import Played, Yard, play
from bench.nights.population import drawn

GATED, BARE = "ralph", "ralph, no gate"
YARD: list[Yard] = []
FIELD: dict[str, Contender] = {}


def main(argv: Sequence[str]) -> int:
    args = parsed(argv)
    _, program = installed()
    field = contenders.ralph(program, metadata.version("ralph")) + (() if args.alone else contenders.bash())
    FIELD.update({one.name: one for one in field if chosen(one.name, args.only or ())})
    if not FIELD:
        print(f"nights: no such contender\nhint: choose from {'; '.join(one.name for one in field)}", file=sys.stderr)
        return 2
    YARD.append(Yard(os.environ.get("PATH", os.defpath)))
    try:
        if args.night is not None:
            for one in FIELD.values():
                print(table.story(play(YARD[0], drawn(args.seed, args.night), one, keep_story=True)))
            return 0
        played = all_played(args.nights, args.seed, args.jobs)
    finally:
        YARD[0].close()
    return told(played, args)


def chosen(name: str, only: Sequence[str]) -> bool:
    """By its whole name, or by a part of it that ends with `*`."""
    return not only or any(name == word or (word.endswith("*") and name.startswith(word[:-1])) for word in only)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.nights", description=__doc__.split("\n")[0])
    parser.add_argument("-n", "--nights", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="the series (default: 1)")
    parser.add_argument("--night", type=int, help="play this one alone, and tell it line by line")
    parser.add_argument("--only", action="append", help="only this contender (`bash*`: all that begin so); repeatable")
    parser.add_argument("--alone", action="store_true", help="ralph alone")
    parser.add_argument("--hold", action="store_true", help="exit 1 unless ralph keeps its numbers")
    parser.add_argument("-j", "--jobs", type=int, default=2 * (os.cpu_count() or 1), help="nights at a time")
    return parser.parse_args(argv)


def all_played(nights: int, seed: int, jobs: int) -> dict[str, list[Played]]:
    """Contender by contender; they take turns, so that a busy moment hits all alike."""
    todo = [(seed, number, name) for number in range(nights) for name in FIELD]
    found: dict[str, list[Played]] = {name: [] for name in FIELD}
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for done, one in enumerate(pool.imap_unordered(_play, todo), 1):
            found[one.contender].append(one)
            if done % 50 == 0 or done == len(todo):
                print(f"{done} of {len(todo)} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    return {name: sorted(some, key=lambda night: night.number) for name, some in found.items()}


def _play(job: tuple[int, int, str]) -> Played:
    seed, number, name = job
    return play(YARD[0], drawn(seed, number), FIELD[name])


def told(played: dict[str, list[Played]], args: argparse.Namespace) -> int:
    print(f"{args.nights} nights, seed {args.seed}\n", table.by_contender(played), sep="\n")
    if GATED in played:
        print("", table.by_profile(played[GATED]), sep="\n")
    for line in troubles(played, args.seed):
        print(line)
    if GATED not in played or BARE not in played:
        return 0
    others = {name: nights for name, nights in played.items() if not FIELD[name].gate and name != BARE}
    held = numbers(played[GATED], played[BARE], others)
    print("", table.held(held), sep="\n")
    return int(args.hold and not all(number.met for number in held))


def troubles(played: dict[str, list[Played]], seed: int) -> Iterator[str]:
    """Nights of ralph that a reader will want to play again."""
    for name in (GATED, BARE):
        for night in played.get(name, ()):
            wrong = [what for what, holds in _WRONG.items() if holds(night)]
            if wrong and not (name == BARE and wrong == ["false done"]):
                print(f"{name}: night {night.number} ({night.profile}): {', '.join(wrong)}: {night.last_line}")
    yield f"\nAgain: python -m bench.nights --seed {seed} --night NUMBER --only NAME"


_WRONG = {
    "false done": lambda night: night.false_done,
    "missed done": lambda night: night.missed and night.profile != "forgetful",
    "left": lambda night: bool(night.left),
    "touched": lambda night: bool(night.touched),
    "sentence": lambda night: not night.sentence_true,
    "exit code": lambda night: not night.exit_true,
    "not over by morning": lambda night: night.exit_code is None,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
