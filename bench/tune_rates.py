"""How often does `ralph tune` decide correctly? A simulation of noisy measurements.

Run `python -m bench.tune_rates`. A run of the base version takes 1, multiplied by a slow drift of the machine and by
noise.
"""

import random
import sys

from ralph.core.measuring import Metric, Pairs

TRIES = 20_000
DRIFT = 0.01  # of the machine, from one run to the next


def decide(chance: random.Random, noise: float, gain: float) -> tuple[bool, int]:
    """Return whether a candidate with this true gain is kept, and the number of runs that were needed."""
    pairs, weather = Pairs(Metric()), 1.0

    def measure(value: float) -> float:
        nonlocal weather
        weather *= chance.lognormvariate(0, DRIFT)
        return value * weather * chance.lognormvariate(0, noise)

    while (decision := pairs.decide()) == "more":
        if len(pairs.values) % 2:
            candidate = measure(1 - gain)
            pairs = pairs.plus(measure(1.0), candidate)
        else:
            pairs = pairs.plus(measure(1.0), measure(1 - gain))
    return decision == "keep", 2 * len(pairs.values)


def difference(noise: float) -> float:
    """Return the median difference between two runs side by side."""
    chance = random.Random(1)
    found = sorted(
        abs(chance.lognormvariate(0, noise) - chance.lognormvariate(0, DRIFT) * chance.lognormvariate(0, noise))
        for _ in range(TRIES)
    )
    return found[TRIES // 2]


def main() -> int:
    print("| d: median difference of two runs | true gain | kept | runs |\n|---|---|---|---|")
    for noise in (0.005, 0.02, 0.1):
        d = difference(noise)
        for name, gain in (("none", 0.0), ("2 × d", 2 * d), ("3 × d", 3 * d), ("−2 × d", -2 * d), ("−5 × d", -5 * d)):
            chance = random.Random(7)
            tried = [decide(chance, noise, gain) for _ in range(TRIES // 10)]
            kept = sum(is_kept for is_kept, _ in tried) / len(tried)
            runs = sum(number for _, number in tried) / len(tried)
            print(f"| {100 * d:.1f} % | {name} ({100 * gain:+.1f} %) | {100 * kept:.1f} % | {runs:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
