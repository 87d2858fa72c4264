"""The numbers in the rules that were fitted to measurements, and where they come from.

`fitted.json` has their values, which `tools/fit.py` made of the schedules that `tools/tune.py` measured, and
says on what device. Bytes, warps and programs are per multiprocessor, so
that a device with more of them gets more programs and not other ones.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("fitted.json")


@dataclasses.dataclass(frozen=True)
class Constants:
    """What `heuristics.choose` and `sharing.choose_shared` go by."""

    resident_bytes: int
    """Of row tiles, loaded per multiprocessor and stage. Useful bytes: lanes beyond a row's end load none."""

    few_tiles_share: float
    """Of `resident_bytes` and `min_warps_per_sm`, where tiles are few: smaller ones start sooner, and are
    shared out more evenly."""

    in_flight: int
    """Times `resident_bytes`: what has to be on its way, however badly rows fill their power of two."""

    programs_per_sm: int
    """Several even out the tail; the fewer there are, the fewer partials are left to finalise."""

    min_tiles: int
    """Per multiprocessor. With fewer, one program there leaves the fewest partials."""

    min_warps_per_sm: int
    """H200, LayerNorm with a residual 200704x128 bf16: 4 warps 55% of the limit, 16 81%."""

    elements_per_thread: int
    """At most, so that a row stays within few warps, and its reductions need few barriers."""

    stages: int
    """Row tiles in use or in flight, at least."""

    final_per_thread: int
    """Partials that a thread of the finalisation holds, at most: more warps, then narrower blocks."""

    chunk_saving: float
    """Share of the lanes of one tile that chunks must save for a row to be held in them; 1: never."""

    min_chunk: int
    """Columns of a chunk, at least."""

    rounding: float
    """Times the elements that fit into so many bytes, before the nearest power of two is taken: with 1.25,
    elements of 6 bytes, as beside a residual in bf16, come in as large tiles as those of 4."""

    tile_bytes: int
    """Of shared rows, loaded per multiprocessor and turn of the loop: less does not hide the exchange."""

    parts_of_4: int
    """Parts of a row, at most, for 4 programs per multiprocessor, which hide one another's barriers."""

    parts_of_2: int
    """The same for 2 programs: one warp reads all words of a row, and more words take longer to come in."""

    words_of_2_rows: int
    """Words that a row's programs exchange, at most, for tiles of two rows (half the registers of one)."""

    max_depth: int
    """Tiles between a partial result and its total, as many as the registers hold."""

    full_registers: int
    """By the estimate, for any but `least_depth`. LayerNorm at 248 three tiles deep 85%, two deep 91%
    (16384x16384; 76 and 87 at 2048x65536), though nothing is spilled; RMSNorm at 232 three deep 90%."""

    least_depth: int
    """That deep even where the estimate is up to `sharing.SPILLED_REGISTERS`: less waits for the exchange."""

    records_for_4_stages: int
    """Rows per tile times parts, from which on a fourth stage pays: longer waits for the exchange."""

    bandwidth_per_sm: float
    """Of the device measured, bytes per second; 0 if unknown. Not fitted."""

    def elements(self, budget: float, each: int) -> int:
        """The power of two of elements, of `each` bytes, that is nearest to a budget of bytes."""
        return 1 << max(0, round(math.log2(self.rounding * budget / max(1, each))))

    def bytes_scale(self, bandwidth: float, num_sm: int) -> float:
        """How many times the bytes in flight another device needs: 1/2, 1 or 2.

        Latencies are alike, so the bytes that hide them go with the bandwidth per multiprocessor. By powers
        of two, as tiles are, and no further from what was measured than one of them.
        """
        if not bandwidth or not self.bandwidth_per_sm:
            return 1.0
        return 2.0 ** max(-1, min(1, round(math.log2(bandwidth / num_sm / self.bandwidth_per_sm))))


def read(path: Path = FILE) -> Constants:
    """The constants of a file that `tools/fit.py` wrote."""
    found: dict[str, Any] = json.loads(path.read_text())["constants"]
    return Constants(**found)


FITTED = read()
