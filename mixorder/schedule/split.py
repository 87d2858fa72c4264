"""How Inductor divides a sum over rows among programs, and the tiles that each of them walks through.

Facts of torch 2.11 to 2.13: `InductorChoices.reduction_split_factor`, `outer_config_opt` of
`triton_heuristics`, and `_codegen_mix_order_reduction`.
"""

from __future__ import annotations

from .device import DeviceInfo
from .kernel_time import Walk
from .plan import next_power_of_2

LEAST, MOST = 32, 512  # rows of a thread; it has every fourth row of a part
FEW_ROWS, OUTPUTS = 32, 64  # of so few rows, or of so many outputs to a multiprocessor, a sum is not divided
THREADS, COLUMNS, AT_ONCE = 256, 128, 4  # of a program: threads, columns, rows of a thread that run together
FEW_OUTPUTS, MANY_ELEMENTS = 2, 8192  # to a multiprocessor; of a sum over rows and columns that is divided
WHOLE = 64  # rows of a part that is a single tile
TILE = 512  # elements of a program's tile
# Where the last part is shorter than the others, each load is masked by its row: 1.25 times the time, by 64
# of 272 kernels with partial sums (H200).
UNEVEN = 1.25
MIXED_PROGRAMS, MIXED_LEAST, MIXED_MOST = 8, 16, 128  # per multiprocessor; rows of each
MIXED_TILE = 4096  # elements that are counted as a tile
MASK = 2  # tiles that a mask takes as long as. Ten of ten such kernels took 1.1 to 2.1 times as long, H200.


def parts(rows: int, outputs: int, device: DeviceInfo) -> int:
    """The parts of the rows that are summed by themselves."""
    if rows <= FEW_ROWS or outputs >= OUTPUTS * device.num_sm:
        return 1
    threads = device.max_threads * device.num_sm
    if rows * outputs < LEAST * threads:
        each = LEAST
    elif rows * outputs < MOST * threads:
        programs = -(-(threads // THREADS) // -(-outputs // COLUMNS))
        each = max(LEAST, _even(rows, -(-rows // (AT_ONCE * programs)), 20))
    else:
        each = _even(rows, MOST, 50)
    return -(-rows // (AT_ONCE * each))


def parts_of_all(elements: int, outputs: int, device: DeviceInfo) -> int:
    """The parts of a sum over rows and columns, of so many elements for each of its outputs."""
    if outputs >= FEW_OUTPUTS * device.num_sm or elements <= MANY_ELEMENTS:
        return 1
    threads = device.max_threads * device.num_sm
    if elements * outputs <= LEAST * threads:
        each = LEAST
    elif elements * outputs < MOST * threads:
        programs = -(-(threads // (2 * THREADS)) // outputs)
        each = max(LEAST, _even(elements, -(-elements // (THREADS * programs)), 30))
    else:
        each = _even(elements, MOST, 50)
    return -(-elements // (THREADS * each))


def _even(rows: int, wanted: int, off: int) -> int:
    """The divisor of the rows that is nearest to a number, if it is less than `off` away."""
    near = [n for n in range(max(1, wanted - off + 1), wanted + off) if rows % n == 0]
    return min(near, key=lambda n: abs(n - wanted), default=wanted)


def walk(rows: int, outputs: int, parts: int, loads: int) -> Walk:
    """Through the tiles of a part. The first load of a tile is under way while the one before is added.
    Inductor times several tiles only where it does not divide the rows."""
    each, further = -(-rows // parts), max(0, loads - 1)
    if each <= WHOLE:
        return Walk(further)
    lanes = next_power_of_2(outputs * parts)
    width, height = _tile(lanes, next_power_of_2(each), loads) if parts > 1 else (WHOLE, WHOLE)
    turns = -(-each // height)
    return Walk(further * turns, further * turns * -(-outputs * parts // width))


def _tile(lanes: int, rows: int, loads: int) -> tuple[int, int]:
    """Columns and rows of a program's tile; `lanes` and `rows` are powers of two."""
    if lanes <= 1024:
        return max(2, min(8, lanes // 128)), min(rows, 64)
    if lanes <= 8 * 4096:
        return 16, TILE // 16
    if loads >= 4 and rows > 128:
        return 32, 64 if rows >= 2048 else 32
    width = max(64, min(256, lanes // 4096))
    return width, TILE // width


def rows_of_mixed(rows: int, device: DeviceInfo) -> int:
    """Rows that a program of Inductor's own fusion adds up."""
    each = rows // (MIXED_PROGRAMS * device.num_sm)
    return max(MIXED_LEAST, min(MIXED_MOST, 1 << max(0, each.bit_length() - 1)))


def mixed_walk(rows: int, lanes: int, each: int, masks: int) -> Walk:
    """Of programs that have so many rows each, of which tiles have some at once, and load `masks` of bytes.

    Bytes are loaded in another order than wider elements, and exchanged between threads.
    """
    at_once = min(16, max(each // 32, 4 if lanes <= 512 else 1))
    return Walk(-(-each // at_once), -(-rows * lanes // MIXED_TILE) * (1 + MASK * masks))
