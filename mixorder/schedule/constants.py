"""The numbers in the rules that were fitted to measurements, and where they come from.

`fitted.json` has their values, and names the device. They were fitted to the plans that `tools/tune.py`
measured. Bytes, warps and programs are per multiprocessor, so that a device with more
multiprocessors gets more programs, and not different ones.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("fitted.json")


@dataclasses.dataclass(frozen=True)
class SharedRows:
    """The parameters of `cooperative.choose`."""

    tile_bytes: int
    """Of rows, per multiprocessor and iteration: fewer do not hide the exchange."""

    parts_of_4: int
    """Parts of a row, at most, for 4 programs per multiprocessor, which hide each other's barriers."""

    parts_of_2: int
    """The same for 2 programs: one warp reads all slots of a row, and more slots take longer to arrive."""

    words_of_2_rows: int
    """Slots that a row's programs exchange, at most, for tiles of two rows (half the registers of one)."""

    max_depth: int
    """Tiles between a partial result and its total, at most; the registers may hold fewer."""

    full_registers: int
    """The most estimated registers, except at `least_depth`. LayerNorm 16384x16384: depth 3, at 286 registers
    and without spills, 85%, depth 2 91% (2048x65536: 76 and 87%). RMSNorm: depth 3, at 258, 90%."""

    least_depth: int
    """Used even at up to `cooperative.SPILLED_REGISTERS` estimated registers: less waits for the exchange."""

    records_for_4_stages: int
    """The least rows per tile times parts for which `num_stages` of 4 pays: exchanges take longer then."""


@dataclasses.dataclass(frozen=True)
class Constants:
    """The parameters of `persistent.choose`, and with `shared` of `cooperative.choose`."""

    resident_bytes: int
    """Of row tiles, loaded per multiprocessor in one of `num_stages`. Lanes beyond a row load no bytes."""

    few_tiles_share: float
    """Factor on `resident_bytes` and `min_warps_per_sm` if tiles are few: smaller tiles start sooner, and
    spread more evenly."""

    in_flight: int
    """In multiples of `resident_bytes`: useful bytes in flight, however poorly rows fill a power of two."""

    programs_per_sm: int
    """At most. Several programs even out the tail; fewer programs leave fewer partials to finalise."""

    min_tiles: int
    """Per multiprocessor. With fewer tiles it gets one program, which leaves the fewest partials."""

    min_warps_per_sm: int
    """H200, LayerNorm with a residual 200704x128 bf16: 55% of the limit with 4 warps, 81% with 16."""

    elements_per_thread: int
    """At most. With many, a row spans few warps, and its reductions need few barriers."""

    stages: int
    """The least `num_stages`: row tiles in use or in flight."""

    final_per_thread: int
    """Partials per thread of the finalisation, at most. Beyond that: more warps, then narrower blocks."""

    chunk_saving: float
    """The least share of the lanes of a single tile that chunks must save to be used; 1: never."""

    min_chunk: int
    """Columns of a chunk, at least."""

    rounding: float
    """Factor on a number of elements before it is rounded to a power of two. With 1.25, elements of 6 bytes
    (bf16 and a residual) get tiles as large as elements of 4 bytes."""

    shared: SharedRows
    """The parameters of rows that programs share."""

    bandwidth_per_sm: float
    """Of the measured device, in bytes per second; 0 if unknown. Not fitted."""

    def elements(self, budget: float, each: int) -> int:
        """The power of two that is nearest to the elements of `each` bytes in a budget of bytes."""
        return 1 << max(0, round(math.log2(self.rounding * budget / max(1, each))))

    def bytes_scale(self, bandwidth: float, num_sm: int) -> float:
        """The factor on the bytes in flight for another device, within one step of what was measured.

        Latencies are alike, so the bytes that hide them are proportional to the bandwidth per multiprocessor.
        """
        if not bandwidth or not self.bandwidth_per_sm:
            return 1.0
        return max(0.5, min(2.0, bandwidth / num_sm / self.bandwidth_per_sm))

    def tile_scale(self, bandwidth: float, num_sm: int) -> float:
        """The factor on the bytes of a tile: 1/2 or 1, as tiles are powers of two, and never more than was
        measured: twice the bytes take twice the registers, and devices have no more."""
        return min(1.0, 2.0 ** round(math.log2(self.bytes_scale(bandwidth, num_sm))))


def read(path: Path = FILE) -> Constants:
    """The constants of a file."""
    found: dict[str, Any] = json.loads(path.read_text())["constants"]
    return Constants(**found | {"shared": SharedRows(**found["shared"])})


FITTED = read()
