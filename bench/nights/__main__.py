"""Play simulated nights: can a loop be fooled, does it lose anything, does it leave a process running?

Run `make nights` or `python -m bench.nights`. Every night is drawn from a seed, and every contender plays it with the
same agent in a new repository.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import count, islice

from bench.lab import installed
from bench.nights import chaos, contenders, native, night, page, peers, table
from bench.nights.contenders import BARE, CAREFUL, EXAMINED, GATED, Contender
from bench.nights.night import Played, Yard
from bench.nights.page import Results
from bench.nights.population import BY_NAME, PROFILES, draw_script

Job = tuple[int, int, str, str]  # seed, number, contender, trouble

# Set by the parent process before it forks the processes that play nights.
FIELD: dict[str, Contender] = {}
YARD: list[Yard] = []


def main(argv: Sequence[str]) -> int:
    args = parse_arguments(argv)
    if sys.platform != "linux":
        print("nights: finding leftover processes needs /proc\nhint: run this on Linux", file=sys.stderr)
        return 2
    if args.last:
        return print_results(page.load_last(), args)
    missing = find_contenders(args)
    if not FIELD:
        print("nights: no contender has this name\nhint: use a name from the table, or `bash*`", file=sys.stderr)
        return 2
    night.become_subreaper()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    YARD.append(Yard(os.environ.get("PATH", os.defpath)))
    try:
        if args.night is not None:
            for name in FIELD:
                print(table.story(play((args.seed, args.night, name, args.chaos), keep_story=True), args.output))
            return 0
        together = play_all([*ordinary_jobs(args), *trouble_jobs(args)], args.jobs)
        results = Results(
            date=time.strftime("%Y-%m-%d"),
            version=metadata.version("ralph-until-done"),
            seed=args.seed,
            nights=args.nights,
            fairness={name: one.fairness for name, one in FIELD.items()},
            missing=missing,
            played={name: some for name, some in together.items() if name in FIELD},
            chaotic={name: some for name, some in together.items() if name not in FIELD},
            stories=play_stories(args.seed) if args.write else [],
        )
    finally:
        night.end_all()
        YARD[0].close()
    page.save(results)
    return print_results(results, args)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.nights", description=__doc__.split("\n")[0])
    parser.add_argument("-n", "--nights", type=positive, default=200, help="how many (default: 200)")
    parser.add_argument("--deep", type=positive, default=0, help="how many for ralph, if more")
    parser.add_argument("--seed", type=int, default=1, help="the series (default: 1)")
    parser.add_argument("--night", type=int, help="play only this night, and print it line by line")
    troubles = ["", *chaos.TROUBLES]
    parser.add_argument("--chaos", default="", choices=troubles, help="with --night: what goes wrong in it")
    parser.add_argument("--output", action="store_true", help="with --night: all that the contender printed")
    parser.add_argument(
        "--only", action="append", help="only this contender (repeatable); `bash*` means all that start so"
    )
    parser.add_argument("--agents", type=agents, help="only nights with these agents, and no trouble: steady,excellent")
    parser.add_argument("--alone", action="store_true", help="ralph alone")
    parser.add_argument(
        "--peers", choices=["native", "all"], help="add the loops that agents have built in, or other programs as well"
    )
    parser.add_argument("--hold", action="store_true", help="exit 1 unless ralph keeps its numbers")
    parser.add_argument("--write", action="store_true", help="write the page and the picture of the documentation")
    parser.add_argument("--last", action="store_true", help="print the last results, and play nothing")
    parser.add_argument("-j", "--jobs", type=positive, default=3 * (os.cpu_count() or 1), help="nights at a time")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def agents(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in BY_NAME]:
        raise argparse.ArgumentTypeError(f"there is no agent {unknown[0]!r}: choose from {', '.join(BY_NAME)}")
    return names


def find_contenders(args: argparse.Namespace) -> dict[str, str]:
    """Fill FIELD with the contenders that can be installed. Return the others, each with the reason."""
    _, program = installed()
    field, missing = [*contenders.ralph(program, metadata.version("ralph-until-done"))], dict[str, str]()
    if not args.alone:
        field += contenders.bash()
    if args.peers:
        there, missing = native.find_contenders()
        field += there
        if args.peers == "all":
            there, unplayed = peers.find_contenders()
            field, missing = [*field, *there], missing | unplayed
    FIELD.update({one.name: one for one in field if is_chosen(one.name, args.only or ())})
    return missing


def is_chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(name == word or (word.endswith("*") and name.startswith(word[:-1])) for word in only)


def ordinary_jobs(args: argparse.Namespace) -> Iterator[Job]:
    chosen = (at for at in count() if not args.agents or PROFILES[at % len(PROFILES)].name in args.agents)
    for position, number in enumerate(islice(chosen, max(args.nights, args.deep))):
        for name in FIELD:
            if position < args.nights or name.startswith("ralph "):
                yield args.seed, number, name, ""


def trouble_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Return nights with a trouble, for the loops that run checks: one for every twenty ordinary nights and each
    trouble."""
    for trouble in () if args.agents else chaos.ALL:
        if missing := trouble.missing():
            print(f"not played: {trouble.name}: {missing}")
            continue
        for number in range(max(2, args.nights // 20)):
            yield from ((args.seed, number, name, trouble.name) for name in (GATED, CAREFUL) if name in FIELD)


def play_all(todo: Sequence[Job], jobs: int) -> dict[str, list[Played]]:
    """Play all nights; return them by contender, or by trouble and contender. Contenders take turns, so that a busy
    moment affects all alike."""
    found: dict[str, list[Played]] = {title_of(job): [] for job in todo}
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs, set_signals) as pool:
        for done, (job, one) in enumerate(pool.imap_unordered(play_job, todo), 1):
            found[title_of(job)].append(one)
            if done % 50 == 0 or done == len(todo):
                print(f"{done} of {len(todo)} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    return {name: sorted(some, key=lambda one: one.number) for name, some in found.items()}


def set_signals() -> None:
    """Ignore Ctrl-C in a process that plays nights, and die at once on SIGTERM: its parent kills its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def title_of(job: Job) -> str:
    return f"{job[3]}: {job[2]}" if job[3] else job[2]


def play_job(job: Job) -> tuple[Job, Played]:
    return job, play(job)


def play(job: Job, keep_story: bool = False) -> Played:
    seed, number, name, trouble = job
    if not trouble:
        return night.play(YARD[0], draw_script(seed, number), FIELD[name], keep_story)
    script = chaos.script_for(seed, number)
    return chaos.play(YARD[0], script, FIELD[name], chaos.TROUBLES[trouble], keep_story)


def play_stories(seed: int) -> list[Played]:
    """Play the nights that the page shows line by line."""
    chosen = [(number, name) for number, names in page.choose_stories(seed) for name in names if name in FIELD]
    return [play((seed, number, name, ""), keep_story=True) for number, name in chosen]


def print_results(results: Results, args: argparse.Namespace) -> int:
    if args.write:
        page.write(results)
    for name, why in results.missing.items():
        print(f"not played: {name}: {why}")
    print(f"{results.nights} nights, seed {results.seed}", *results.tables(), sep="\n\n")
    for line in describe_failures(results.played | results.chaotic):
        print(line)
    again = f"python -m bench.nights --seed {results.seed} --night NUMBER --only NAME"
    print(f"\nOne of them again, line by line: {again}\n")
    if EXAMINED not in results.played or BARE not in results.played:
        return 0
    held = results.numbers()
    print(table.numbers_table(held))
    return int(args.hold and not all(number.met for number in held))


def describe_failures(played: dict[str, list[Played]]) -> Iterator[str]:
    """Describe the nights of ralph that need a look."""
    for name in (name for name in played if name in (EXAMINED, BARE) or name.endswith(f": {GATED}")):
        for one in played[name]:
            wrong = [what for what, holds in WRONG.items() if holds(one)]
            if wrong and not (name == BARE and wrong == ["false done"]):
                yield f"{name}: night {one.number} ({one.profile}): {', '.join(wrong)}: {one.last_line}"


WRONG = {
    "false done": lambda one: one.false_done,
    "missed done": lambda one: one.missed,
    "left": lambda one: bool(one.left),
    "touched": lambda one: bool(one.touched),
    "sentence": lambda one: not one.sentence_true,
    "not over by morning": lambda one: one.exit_code is None,
    "broke": lambda one: one.exit_code not in (0, 1, None),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
