"""How Inductor divides a sum over rows among programs.

Facts of torch 2.11 to 2.15: `InductorChoices.reduction_split_factor`, without its preference for divisors of
the rows that are near, and `_codegen_mix_order_reduction`.
"""

from __future__ import annotations

from .device import DeviceInfo

LEAST, MOST = 32, 512  # rows of a thread; it has every fourth row of a part
FEW_ROWS, OUTPUTS = 32, 64  # of so few rows, or of so many outputs to a multiprocessor, a sum is not divided
THREADS, COLUMNS, AT_ONCE = 256, 128, 4  # of a program: threads, columns, rows of a thread that run together
MIXED_PROGRAMS, MIXED_LEAST, MIXED_MOST = 8, 16, 128  # per multiprocessor; rows of each
MIXED_TILE = 4096  # elements that are counted as a tile


def parts(rows: int, outputs: int, device: DeviceInfo) -> int:
    """The parts of the rows that are summed by themselves."""
    if rows <= FEW_ROWS or outputs >= OUTPUTS * device.num_sm:
        return 1
    threads = device.max_threads * device.num_sm
    each = LEAST if rows * outputs < LEAST * threads else MOST
    if LEAST * threads <= rows * outputs < MOST * threads:
        programs = -(-(threads // THREADS) // -(-outputs // COLUMNS))
        each = max(LEAST, -(-rows // (AT_ONCE * programs)))
    return -(-rows // (AT_ONCE * each))


def rows_of_mixed(rows: int, device: DeviceInfo) -> int:
    """Rows that a program of Inductor's own fusion adds up."""
    each = rows // (MIXED_PROGRAMS * device.num_sm)
    return max(MIXED_LEAST, min(MIXED_MOST, 1 << max(0, each.bit_length() - 1)))


def tiles_of_mixed(rows: int, lanes: int) -> int:
    """Tiles that all programs of Inductor's own fusion go through, one after the other."""
    return -(-rows * lanes // MIXED_TILE)
