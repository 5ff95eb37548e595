"""Runs are killed at random moments. Nothing survives, nothing is lost, and nothing is done twice.

RALPH_CHAOS_KILLS and RALPH_CHAOS_SEED choose how many kills there are, and which; each run prints its seed.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

KILLS = int(os.environ.get("RALPH_CHAOS_KILLS", "320"))
SEED = int(os.environ.get("RALPH_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
RUNS = 4


@pytest.mark.timeout(600)
def test_runs_that_are_killed_at_random_moments_lose_nothing(
    victim: Callable[[int], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    victims = [victim(SEED + number) for number in range(RUNS)]

    def suffer(one: Any) -> None:
        for _ in range(KILLS // RUNS):
            one.live()
        one.finish()

    with ThreadPoolExecutor(RUNS) as pool:
        futures = {one.seed: pool.submit(suffer, one) for one in victims}
    with capsys.disabled():
        report(victims, time.monotonic() - began)
    for seed, future in futures.items():
        if error := future.exception():
            raise AssertionError(f"RALPH_CHAOS_SEED={seed}: {error}") from error
    kills = sum((one.kills for one in victims), Counter[str]())
    assert kills["both"] > KILLS // 8
    assert sum(kills.values()) - kills["too late"] >= KILLS * 0.8


def report(victims: list[Any], seconds: float) -> None:
    kills = sum((one.kills for one in victims), Counter[str]())
    moments = sum((one.interrupted for one in victims), Counter[str]())
    iterations = sum(len(one.recorded) for one in victims)
    runs = f"{len(victims)} runs at once, {iterations} iterations kept"
    print(f"\n{sum(kills.values())} kills in {seconds:.0f} s, {runs}")
    print(f"seeds: {', '.join(str(one.seed) for one in victims)}")
    print(f"left by runs that were killed with their keepers, and ended later: {sum(one.orphans for one in victims)}")
    print("by:", ", ".join(f"{name} {count}" for name, count in kills.most_common()))
    print("right after:", ", ".join(f"{name} {count}" for name, count in moments.most_common()))
