"""No text takes ralph more than linear time to read."""

import gc
import random
import time
from collections.abc import Callable

import pytest
from tests.fuzz.documents import DOCUMENTS, Make
from tests.fuzz.expressions import Expression, attacks, expressions
from tests.fuzz.readers import DEAF, PIECES, READERS

SMALL, LARGE = 100_000, 1_000_000
MOST = 15.0  # how much longer ten times the text may take
SUSPECT = 11.0  # the same for a ratio of two texts that are a fifth as large
TRIED_ANYWAY = 1 / 16  # for expressions that were fast in the first measurement
NOTHING = 0.02  # seconds; below this a ratio can't be measured
OUTLIER = 0.5  # seconds allowed for 4 KB
QUADRATIC = 0.1  # seconds allowed for 10 KB

Reader = Callable[[str], object]


def seconds(read: Reader, text: str) -> float:
    start = time.thread_time()
    read(text)
    return time.thread_time() - start


@pytest.fixture(autouse=True)
def _own_garbage() -> None:
    """Freeze the existing objects, so that the garbage collector doesn't go through those of the tests."""
    gc.collect()
    gc.freeze()


def repeated(piece: str, beginning: str = "") -> Make:
    """Return texts that seem to continue a match, and then don't."""
    return lambda size: (beginning + piece * (size // len(piece) + 1))[:size] + "\0"


def ratio(read: Reader, make: Make) -> float:
    """Return the ratio of the times for a large and a small text, the smallest of several: the machine may be busy."""
    small, large = make(SMALL), make(LARGE)
    if seconds(read, make(SMALL // 10)) > OUTLIER:  # no need to wait for the rest
        return float("inf")
    best = float("inf")
    for _ in range(12):
        if (longer := seconds(read, large)) < NOTHING:
            return 1.0
        best = min(best, longer / max(seconds(read, small), 1e-6))
        if best <= MOST:
            return best
    # On a busy machine the caches may end between the two sizes: measure again with other sizes.
    huge = make(4 * LARGE)
    longest, longer = (min(seconds(read, text) for _ in range(4)) for text in (huge, large))
    return best if longest > 6 * longer else MOST


def is_suspect(read: Reader, make: Make) -> bool:
    """Whether the time may grow faster than the text, judged by two smaller texts that take a fifth of the time. An
    expression that is only slightly quadratic, so that it shows only at a megabyte, is a tenth slower here."""
    small, large = make(SMALL // 5), make(LARGE // 5)
    return all(
        (longer := seconds(read, large)) > NOTHING / 25 and longer > SUSPECT * seconds(read, small) for _ in range(2)
    )


def reader_of(each: Expression) -> Reader:
    pattern, is_text = each.pattern, isinstance(each.pattern.pattern, str)

    def read(text: str) -> object:
        data = text if is_text else text.encode("utf-8", "replace")
        return pattern.match(data) if each.anchored else sum(1 for _ in pattern.finditer(data))  # type: ignore[arg-type]

    return read


@pytest.mark.parametrize("each", expressions(), ids=lambda each: each.name[:100])
def test_every_expression_takes_linear_time(each: Expression, share: float) -> None:
    read = reader_of(each)
    hardest = sorted(attacks(each.pattern), key=lambda attack: -seconds(read, repeated(attack[1], attack[0])(3000)))
    for beginning, piece in hardest[: max(1, round(5 * share))]:
        make = repeated(piece, beginning)
        assert seconds(read, make(10_000)) < QUADRATIC, (beginning, piece)  # a megabyte would take an hour
        assert ratio(read, make) <= MOST, (beginning, piece)


@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_linear_time(name: str, share: float) -> None:
    chance = random.Random(name)
    pieces = [*PIECES, *("".join(chance.choices(PIECES, k=chance.randint(2, 6))) for _ in range(40))]
    for piece in chance.sample(pieces, 1 if name in DEAF else max(4, round(len(pieces) * share))):
        if is_suspect(READERS[name], repeated(piece)) or chance.random() < TRIED_ANYWAY:
            assert ratio(READERS[name], repeated(piece)) <= MOST, repr(piece)


@pytest.mark.parametrize("group", DOCUMENTS)
def test_reading_a_document_takes_linear_time(group: str, share: float) -> None:
    chance, documents = random.Random(group), DOCUMENTS[group]
    for name in chance.sample([*documents], max(2, round(len(documents) * share))):
        make, read = documents[name]
        if is_suspect(read, make) or chance.random() < TRIED_ANYWAY:
            assert ratio(read, make) <= MOST, name


@pytest.mark.parametrize("name", READERS)
def test_every_small_text_is_read_quickly(name: str, share: float) -> None:
    """Read a hundred thousand texts of up to 4 KB, divided among the readers."""
    chance, slowest = random.Random(name), (0.0, "")
    for _ in range(round(100_000 * share / len(READERS)) + 1):
        few, size = chance.sample(PIECES, chance.randint(1, 8)), chance.randint(1, 4096)
        said = "".join(chance.choices(few, k=size * len(few) // sum(map(len, few)) + 1))[:size]
        slowest = max(slowest, (seconds(READERS[name], said), said))
    assert slowest[0] < OUTLIER or seconds(READERS[name], slowest[1]) < OUTLIER, slowest[1]
