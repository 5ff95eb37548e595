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
from bench.nights import chaos, contenders, table
from bench.nights.contenders import Contender
from bench.nights.measures import numbers
from bench.nights.night import Played, Yard, play
from bench.nights.population import drawn

GATED, BARE, CAREFUL = "ralph", "ralph, no gate", "bash: until the tests pass"
Job = tuple[int, int, str, str]  # seed, number, contender, trouble
YARD: list[Yard] = []
FIELD: dict[str, Contender] = {}


def main(argv: Sequence[str]) -> int:
    args = parsed(argv)
    _, program = installed()
    field, missing = contenders.ralph(program, metadata.version("ralph")), dict[str, str]()
    field += () if args.alone else contenders.bash()
    if args.peers:
        from bench.nights import peers

        there, missing = peers.brought()
        field += tuple(there)
    FIELD.update({one.name: one for one in field if chosen(one.name, args.only or ())})
    if not FIELD:
        print(f"nights: no such contender\nhint: choose from {'; '.join(one.name for one in field)}", file=sys.stderr)
        return 2
    YARD.append(Yard(os.environ.get("PATH", os.defpath)))
    try:
        if args.night is not None:
            for one in FIELD.values():
                print(table.story(_play((args.seed, args.night, one.name, args.chaos), keep_story=True), args.output))
            return 0
        played = all_played([(args.seed, night, name, "") for night in range(args.nights) for name in FIELD], args.jobs)
        chaotic = all_played(list(chaotic_nights(args)), args.jobs)
    finally:
        YARD[0].close()
    for name, why in missing.items():
        print(f"not played: {name}: {why}")
    return told(played, chaotic, args)


def chosen(name: str, only: Sequence[str]) -> bool:
    """By its whole name, or by a part of it that ends with `*`."""
    return not only or any(name == word or (word.endswith("*") and name.startswith(word[:-1])) for word in only)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.nights", description=__doc__.split("\n")[0])
    parser.add_argument("-n", "--nights", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="the series (default: 1)")
    parser.add_argument("--night", type=int, help="play this one alone, and tell it line by line")
    parser.add_argument(
        "--chaos", default="", choices=["", *chaos.TROUBLES], help="with --night: what goes wrong in it"
    )
    parser.add_argument("--output", action="store_true", help="with --night: all that the contender printed")
    parser.add_argument("--only", action="append", help="only this contender (`bash*`: all that begin so); repeatable")
    parser.add_argument("--alone", action="store_true", help="ralph alone")
    parser.add_argument("--peers", action="store_true", help="beside every other loop that can be had")
    parser.add_argument("--hold", action="store_true", help="exit 1 unless ralph keeps its numbers")
    parser.add_argument("-j", "--jobs", type=int, default=2 * (os.cpu_count() or 1), help="nights at a time")
    return parser.parse_args(argv)


def chaotic_nights(args: argparse.Namespace) -> Iterator[Job]:
    """One for every twenty ordinary ones, of each trouble that can be had here, for those who verify."""
    for trouble in chaos.ALL:
        if missing := trouble.missing():
            print(f"not played: {trouble.name}: {missing}")
            continue
        for night in range(max(1, args.nights // 20)):
            yield from ((args.seed, night, name, trouble.name) for name in (GATED, CAREFUL) if name in FIELD)


def all_played(todo: Sequence[Job], jobs: int) -> dict[str, list[Played]]:
    """By contender, or by contender and trouble. They take turns, so that a busy moment hits all alike."""
    found: dict[str, list[Played]] = {}
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for done, (job, one) in enumerate(pool.imap_unordered(_job, todo), 1):
            _, _, name, trouble = job
            found.setdefault(f"{trouble}: {name}" if trouble else name, []).append(one)
            if done % 50 == 0 or done == len(todo):
                print(f"{done} of {len(todo)} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    order = list(dict.fromkeys(f"{trouble}: {name}" if trouble else name for _, _, name, trouble in todo))
    return {name: sorted(found[name], key=lambda night: night.number) for name in order}


def _job(job: Job) -> tuple[Job, Played]:
    return job, _play(job)


def _play(job: Job, keep_story: bool = False) -> Played:
    seed, number, name, trouble = job
    if not trouble:
        return play(YARD[0], drawn(seed, number), FIELD[name], keep_story)
    script = chaos.script_for(seed, number)
    return chaos.play(YARD[0], script, FIELD[name], chaos.TROUBLES[trouble], keep_story)


def told(played: dict[str, list[Played]], chaotic: dict[str, list[Played]], args: argparse.Namespace) -> int:
    print(f"{args.nights} nights, seed {args.seed}\n", table.by_contender(played), sep="\n")
    if GATED in played:
        print("", table.by_profile(played[GATED]), sep="\n")
    if chaotic:
        print("", table.by_contender(chaotic), sep="\n")
    for line in troubles(played | chaotic, args.seed):
        print(line)
    if GATED not in played or BARE not in played:
        return 0
    others = {name: nights for name, nights in played.items() if not FIELD[name].gate and name != BARE}
    held = numbers(played[GATED], played[BARE], others)
    print("", table.held(held), sep="\n")
    return int(args.hold and not all(number.met for number in held))


def troubles(played: dict[str, list[Played]], seed: int) -> Iterator[str]:
    """Nights of ralph that a reader will want to play again."""
    for name in (name for name in played if name in (GATED, BARE) or name.endswith(f": {GATED}")):
        for night in played[name]:
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
