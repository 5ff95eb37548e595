import pytest

from ralph.git.locks import RetryPolicy


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays that were requested. No test sleeps."""
    delays: list[float] = []
    monkeypatch.setattr("ralph.git.locks.time.sleep", delays.append)
    return delays


def test_attempts_are_counted_and_the_last_one_is_marked(slept: list[float]) -> None:
    assert [*RetryPolicy(attempts=3, delay=0.5).tries()] == [False, False, True]
    assert slept == [0.5, 0.5]


def test_delays_grow_up_to_a_limit(slept: list[float]) -> None:
    assert len([*RetryPolicy(attempts=5, delay=1.0, factor=2.0, max_delay=3.0).tries()]) == 5
    assert slept == [1.0, 2.0, 3.0, 3.0]


def test_the_attempt_after_the_timeout_is_the_last(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 9.0, 11.0])
    monkeypatch.setattr("ralph.git.locks.time.monotonic", lambda: next(clock))
    assert [*RetryPolicy(timeout=10.0).tries()] == [False, False, True]
