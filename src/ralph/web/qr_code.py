"""How does a phone read a link off the terminal? As a QR code: bytes, the lowest error correction, versions 1 to 6,
which hold 134 bytes: larger ones need many more rules."""

from collections.abc import Iterator

_DATA = {1: (19, 7, 1), 2: (34, 10, 1), 3: (55, 15, 1), 4: (80, 20, 1), 5: (108, 26, 1), 6: (136, 18, 2)}
"""For each version: bytes of data in all, bytes of error correction in each block, blocks."""
_LEVEL_AND_MASK = 0b01000  # level L, and mask 0: a chessboard
_QUIET = 2  # modules of light around it

Matrix = list[list[int]]


def matrix(text: str) -> Matrix | None:
    """The code of a text: 1 is dark. None where it is too long."""
    data = text.encode()
    version = next((one for one, (size, _, _) in _DATA.items() if len(data) + 2 <= size), None)
    if version is None:
        return None
    size = 17 + 4 * version
    modules = [[-1] * size for _ in range(size)]
    for row, column in ((0, 0), (0, size - 7), (size - 7, 0)):
        _place_finder(modules, row, column)
    if version > 1:
        _place_square(modules, size - 7, size - 7, 2)
    for at in range(8, size - 8):
        modules[6][at] = modules[at][6] = 1 - at % 2
    _place_format(modules)
    _fill(modules, _bits(data, version))
    return modules


def drawn(modules: Matrix) -> list[str]:
    """Two rows of modules in a line of text, light where the terminal's characters are: most are light on dark."""
    size = len(modules) + 2 * _QUIET
    rows = [[0] * size for _ in range(_QUIET)]
    rows += [[0] * _QUIET + row + [0] * _QUIET for row in modules]
    rows += [[0] * size for _ in range(_QUIET + len(rows) % 2)]
    signs = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
    lines = zip(rows[::2], rows[1::2], strict=False)
    return ["".join(signs[pair] for pair in zip(upper, lower, strict=True)) for upper, lower in lines]


def _place_finder(modules: Matrix, row: int, column: int) -> None:
    """A finder and the light line around it, as far as it is inside."""
    size = len(modules)
    for r in range(max(row - 1, 0), min(row + 8, size)):
        for c in range(max(column - 1, 0), min(column + 8, size)):
            modules[r][c] = 0
    _place_square(modules, row + 3, column + 3, 3)


def _place_square(modules: Matrix, row: int, column: int, reach: int) -> None:
    """Dark and light squares around a centre."""
    for r in range(-reach, reach + 1):
        for c in range(-reach, reach + 1):
            modules[row + r][column + c] = int(max(abs(r), abs(c)) != reach - 1)


def _place_format(modules: Matrix) -> None:
    """Level and mask, twice, and the one module that is always dark."""
    rest = _LEVEL_AND_MASK << 10
    for shift in range(4, -1, -1):
        if rest >> (10 + shift) & 1:
            rest ^= 0b10100110111 << shift
    bits = (_LEVEL_AND_MASK << 10 | rest) ^ 0b101010000010010
    size = len(modules)
    for at in range(15):
        bit = bits >> at & 1
        modules[at + (at > 5) if at < 8 else size - 15 + at][8] = bit
        modules[8][size - 1 - at if at < 8 else 15 - at - (at > 8)] = bit
    modules[size - 8][8] = 1


def _fill(modules: Matrix, bits: Iterator[int]) -> None:
    """Two columns at a time, up and down, around what stands there; masked."""
    size = len(modules)
    rows = range(size - 1, -1, -1)
    for right in (*range(size - 1, 6, -2), *range(5, 0, -2)):
        for r in rows:
            for c in (right, right - 1):
                if modules[r][c] < 0:
                    modules[r][c] = next(bits, 0) ^ (r + c + 1) % 2
        rows = rows[::-1]


def _bits(data: bytes, version: int) -> Iterator[int]:
    """The blocks of data and of error correction, byte by byte in turn."""
    size, correction, blocks = _DATA[version]
    stream = (0b0100 << 8 | len(data)) << 8 * len(data) | int.from_bytes(data, "big")
    whole = (stream << 4).to_bytes(len(data) + 2, "big").ljust(size, b"\0")
    padded = bytearray(whole)
    for at in range(len(data) + 2, size):
        padded[at] = (0xEC, 0x11)[(at - len(data)) % 2]
    share = size // blocks
    parts = [bytes(padded[at * share : (at + 1) * share]) for at in range(blocks)]
    for group in (parts, [_remainder(part, correction) for part in parts]):
        for column in zip(*group, strict=True):
            for byte in column:
                yield from (byte >> shift & 1 for shift in range(7, -1, -1))


def _remainder(data: bytes, size: int) -> bytes:
    """Reed-Solomon: what is left of the data divided by the generator of that size."""
    generator = [1]
    for power in range(size):
        root = _EXPONENTS[power]
        generator = [a ^ _times(b, root) for a, b in zip([*generator, 0], [0, *generator], strict=True)]
    rest = [*data, *(0 for _ in range(size))]
    for at in range(len(data)):
        factor = rest[at]
        for offset, one in enumerate(generator):
            rest[at + offset] ^= _times(one, factor)
    return bytes(rest[len(data) :])


def _exponents() -> list[int]:
    found = [1]
    while len(found) < 255:
        doubled = found[-1] << 1
        found.append(doubled ^ 0x11D if doubled > 255 else doubled)
    return found


_EXPONENTS = _exponents()
_LOGARITHMS = {power: at for at, power in enumerate(_EXPONENTS)}


def _times(a: int, b: int) -> int:
    return _EXPONENTS[(_LOGARITHMS[a] + _LOGARITHMS[b]) % 255] if a and b else 0
