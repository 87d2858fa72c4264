"""Choose a schedule from plain numbers: rows, columns, live tiles and the device. No graph, no timing.

The row-resident kernel is memory-bound as long as enough bytes are on their way: so many of them resident per
multiprocessor, so many in flight, in as few warps per row and as few programs as that allows. How many is
fitted to measurements (`constants.py`, `tools/fit.py`); what is not is here.

Raises `Decline` where no strategy fits.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from ..errors import DeclineReason, TooWide
from ..ir.alignment_phase import skew_of
from ..ir.program import AxisClass, Load, LoopProgram
from . import cost
from .constants import FITTED, Constants
from .device import DeviceInfo
from .schedule import Schedule, Tile

MAX_COLS = 16384  # an accumulator of a wider row does not stay in one program's registers
MAX_STAGES = 5  # of one program per multiprocessor; of several that take turns, one fewer
MAX_WARPS = 32
FINAL_BLOCKS = (16, 8)  # columns of a finalising program: 8 fp32 partials still fill a sector of 32 bytes
FINAL_WARPS = (4, 8)
# How to run rows, in the order to try them: a program holds a row, several share it, one reads it twice.
STRATEGIES = ("held", "shared", "twice")
ALIGNMENT = 16  # columns; where rows and parts start so, loads are as wide as can be. Others are not fitted
MOST_CHUNKS = 8  # each takes code of its own
MIN_CHUNK = 32  # columns: 64 bytes in bf16, two sectors
ACCESS_BYTES = 16
LIGHT_WORDS = 4  # held per element; of such narrow rows half as many per tile, and a stage more
WIDE_ROW = 8192  # bytes that stream in for a row
MAX_INSTRUCTIONS = 2048  # of a thread's loop body: 32 KB of code on NVIDIA, where the first caches end
DIVERGENT_ELEMENTS = 8  # of a thread. GELU by tanh, 32768x3072 bf16: 32 45% of the limit, 16 66%, 8 76%
SPILL_FACTOR_REREADING = 1.25  # LayerNorm in bf16 at 16384 columns: 72 bytes, and faster than any other way
SPILL_FACTOR = 1.1  # LayerNorm in fp32 at 8192 columns takes 1.125: held 71% of the limit, shared 93%


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the heuristic looks at: extents, and per element of the space, what is read and held.

    `rows` (of symbolic ones, the hint) x `cols` at each of `batch` places; a program has one place.

    `load_bytes`: bytes of full-size tensors that stream in for one element. `staged_bytes`: bytes of all its
    tile loads, also of what a gather reads again or many rows share. `held_words`: 32-bit words that it keeps
    in registers from one reduction to the next (`cost.held_words`). `instructions`: machine instructions
    that compute with it (`cost.instructions`). `rereads`: tile loads of what an earlier stage has read.
    `period`: how many rows on a row lies relative to a boundary of wide accesses as one does, 1 if all do;
    `slack`: lanes that a program then needs beyond its columns (`loops.alignment`). `item_bytes`: of an
    element of the narrowest full tensor. `divergent`: threads take different branches (`cost.divergent`).
    `levels`: reductions that follow from one another (`cost.levels`).
    """

    rows: int
    cols: int
    load_bytes: int
    held_words: int
    staged_bytes: int = 0
    instructions: int = 0
    rereads: int = 0
    batch: int = 1
    period: int = 1
    slack: int = 0
    item_bytes: int = 2
    divergent: bool = False
    levels: int = 1

    @property
    def numel(self) -> int:
        return self.rows * self.cols * self.batch

    def registers(self, elements: int, chunks: int) -> int:
        """Of a thread with so many elements, by the estimate. In chunks, those of one take a word more for
        each 4 bytes that stream in (H200, LayerNorm and residual, 32768x5120 bf16: by this 280 in 5 chunks,
        which spill two words and take 73% of the limit; 3 chunks 96%)."""
        computed = 1 if chunks == 1 else math.ceil(self.load_bytes / 4)
        return cost.registers_per_thread(self.held_words, elements, chunks, computed)


def workload(program: LoopProgram) -> Workload:
    """Read the numbers off a merged program."""
    (row, col), batch = program.tile_axes, program.axis(AxisClass.BATCH)
    body = program.nests[0].body
    tiles = [s for s in body if isinstance(s, Load) and col.symbol in s.index.free_symbols]
    skew = skew_of(program)
    rows = max(1, program.hint(row.size))  # a graph may have been traced with none
    size = rows * int(col.size) * (1 if batch is None else int(batch.size))
    streamed = {s.buffer for s in tiles if program.hint(program.buffer(s.buffer).numel) >= size}
    # What a tensor is put together from; a table that many rows share has no predicate.
    pieces = {s.buffer for s in tiles if s.predicate is not None} - streamed
    in_pieces = sum(program.hint(program.buffer(b).numel) * program.buffer(b).dtype.itemsize for b in pieces)
    return Workload(
        rows,
        int(col.size),
        load_bytes=sum(program.buffer(b).dtype.itemsize for b in streamed) + math.ceil(in_pieces / size),
        held_words=cost.held_words(program),
        staged_bytes=sum(program.buffer(s.buffer).dtype.itemsize for s in tiles),
        instructions=cost.instructions(program),
        rereads=sum(s.again for s in tiles),
        batch=1 if batch is None else int(batch.size),
        period=1 if skew is None else skew.period,
        slack=0 if skew is None else skew.elements - 1,
        item_bytes=min((program.buffer(b).dtype.itemsize for b in streamed | pieces), default=4),
        divergent=cost.divergent(program),
        levels=cost.levels(program),
    )


@functools.cache
def layouts(work: Workload) -> tuple[tuple[int, int], ...]:
    """The ways to hold a row: lanes, and the chunks of a power of two each that these are; one chunk first.

    More chunks only where they need fewer lanes. One alone where rows are shifted (`period`: masks at both
    ends), or read again (their tiles are not held).
    """
    size = _next_power_of_2(work.cols)
    found = [(size, 1)]
    alone = work.period > 1 or work.rereads > 0
    while not alone and (size := size // 2) >= MIN_CHUNK and (chunks := -(-work.cols // size)) <= MOST_CHUNKS:
        if chunks * size < found[-1][0]:
            found.append((chunks * size, chunks))
    return tuple(found)


def lanes_of(work: Workload, constants: Constants = FITTED) -> tuple[int, int]:
    """The layout to choose: the fewest lanes that a thread holds, if enough fewer than those of one chunk."""
    first, *others = layouts(work)
    for lanes, chunks in reversed(others):
        worth = lanes <= (1 - constants.chunk_saving) * first[0] and lanes // chunks >= constants.min_chunk
        if worth and _fits_a_thread(work, chunks * _per_access(work), chunks):
            return lanes, chunks
    return first


def choose(
    work: Workload,
    device: DeviceInfo,
    split_size: int = 0,
    spill_factor: float | None = None,
    constants: Constants = FITTED,
) -> Schedule:
    """The row-resident schedule for a workload; `split_size` rows per program if that is not 0.

    `spill_factor`: how many times the device's registers a row may take before it is refused; None for
    what was measured to pay.
    """
    if work.cols > MAX_COLS:
        detail = f"{work.cols} columns, at most {MAX_COLS} fit"
        raise TooWide(work.held_words, detail, DeclineReason.ROW_TOO_WIDE)
    r0_block, chunks = lanes_of(work, constants)
    factor = spill_factor or (SPILL_FACTOR_REREADING if work.rereads else SPILL_FACTOR)
    if work.held_words * r0_block + r0_block // chunks > factor * device.registers:
        detail = f"{work.held_words} tiles of {work.cols} columns in {device.registers} registers"
        raise TooWide(work.held_words, detail)
    tile, per_sm = _tile(work, r0_block, device, constants, chunks)
    tiles = -(-work.rows // tile.xblock)
    # No more programs than are resident at once: a second wave of them would be as long as the first.
    at_once = max(1, per_sm * device.num_sm // work.batch)
    num_splits = min(-(-work.rows // split_size), most_partials(device)) if split_size else 0
    num_splits = num_splits or even(tiles, min(tiles, at_once))
    period = work.period if work.period <= at_once and work.cols + work.slack <= r0_block else 1
    if period > 1 and not split_size:
        # H200, 32768x4097 bf16: 128 programs leave 4 multiprocessors idle, 264 take turns on all of them:
        # RMSNorm 69 -> 73% of the limit, LayerNorm 64 -> 67%.
        num_splits *= 2 if num_splits % period and 2 * num_splits % period == 0 else 1
    num_splits = (-(-num_splits // period) if split_size else max(1, num_splits // period)) * period
    finalising = final(num_splits, _next_power_of_2(work.cols), device, constants)
    return Schedule(
        tile, r0_block, num_splits, *finalising, period=period, chunks=chunks, overlap=device.overlaps
    )


def even(tiles: int, num_splits: int) -> int:
    """Of so many programs, as many as take no more turns, if the finalisation is half as long then.

    H200, LayerNorm 2048x8192 bf16: 132 programs take 16 turns, as 128 do, and 78.2% of the limit, 128 81.0%.
    """
    needed = -(-tiles // -(-tiles // num_splits))
    return needed if _next_power_of_2(needed) < num_splits else num_splits


def most_partials(device: DeviceInfo) -> int:
    """The most programs whose partials one program of the finalisation can hold in registers."""
    return device.registers // FINAL_BLOCKS[-1]


def final(num_splits: int, r0_block: int, device: DeviceInfo, constants: Constants) -> tuple[int, int]:
    """Block and warps of the finalisation: the least of both that hold the partials."""
    partials = _next_power_of_2(num_splits)
    for block in FINAL_BLOCKS:
        for warps in FINAL_WARPS:
            if partials * block <= constants.final_per_thread * warps * device.warp_size:
                return min(block, r0_block), warps
    return min(FINAL_BLOCKS[-1], r0_block), FINAL_WARPS[-1]


def _tile(
    work: Workload, r0_block: int, device: DeviceInfo, constants: Constants, chunks: int
) -> tuple[Tile, int]:
    """The tile, and how many programs share a multiprocessor."""
    # Never more than was measured: twice the bytes take twice the registers, and there are no more of them.
    scale = min(1.0, constants.bytes_scale(device.bandwidth, device.num_sm))
    resident = constants.elements(scale * constants.resident_bytes, work.load_bytes)
    few_tiles = work.rows * work.batch * r0_block < constants.min_tiles * resident * device.num_sm
    # H200, LayerNorm in bf16, 32768x2048: 4 programs of 8 KB and 3 stages 90.7% of the limit, one of 16 KB
    # and 5 stages 92.9%; 8192x4096: 94.6 -> 96.1%. RMSNorm loses a point by it.
    # But where reductions follow from one another, programs hide one another's barriers: BitLinear's backward
    # with its forward computed again, 16384x2048: one program 76%, two 83%, four 88%.
    wide = chunks == 1 and work.cols * work.load_bytes >= WIDE_ROW and work.levels <= 1
    small = few_tiles or (wide and work.held_words > LIGHT_WORDS and work.item_bytes == 2)
    share = constants.few_tiles_share if small else 1.0
    resident = max(1, int(share * resident))
    per_sm = 1 if small else min(constants.programs_per_sm, _floor_power_of_2(resident // r0_block))
    # Two such programs are no better than one: RMSNorm 32768x4096 bf16 93.5 -> 94.5%, 32768x2048 fp32
    # 94.2 -> 95.9%. In chunks they are (32768x2560: 91.9% with one, 94.7% with two).
    per_sm = 1 if per_sm == 2 and wide else per_sm
    xblock = _floor_power_of_2(resident // per_sm // r0_block)
    if xblock >= 4 and work.held_words <= LIGHT_WORDS and not (few_tiles or work.divergent):
        xblock //= 2  # RMSNorm in bf16, 1000000x256: 95.1 -> 95.9% of the limit, 1048576x128: 94.2 -> 94.9%
    while xblock > 1 and (xblock > work.rows or -(-work.rows // xblock) * work.batch < device.num_sm):
        xblock //= 2  # too few rows: rather more programs than larger tiles
    elements = xblock * r0_block
    per_thread = _elements_per_thread(work, elements, constants)
    min_threads = share * constants.min_warps_per_sm * device.warp_size
    while per_thread > 8 and per_sm * elements < per_thread * min_threads:
        per_thread //= 2
    if chunks > 1:
        # H200, LayerNorm 32768x5120 bf16 in 5 chunks: accesses of 16 bytes 94% of the limit, of 8 bytes 83%.
        per_thread = chunks * _per_access(work)
    num_warps = max(1, min(MAX_WARPS, elements // per_thread // device.warp_size))
    per_thread = -(-elements // (num_warps * device.warp_size))
    registers = work.registers(per_thread, chunks) * num_warps * device.warp_size
    per_sm = max(1, min(per_sm, device.registers // registers))
    return Tile(xblock, num_warps, _stages(work, elements, r0_block, per_sm, device, constants)), per_sm


def _elements_per_thread(work: Workload, elements: int, constants: Constants) -> int:
    """The most that a thread's registers and its code, unrolled over them, allow; 4 at least."""
    count = constants.elements_per_thread
    if work.divergent:
        count = min(count, DIVERGENT_ELEMENTS)
    while count > 4 and not _fits_a_thread(work, count):
        count //= 2
    return min(count, elements)


def _fits_a_thread(work: Workload, count: int, chunks: int = 1) -> bool:
    most = cost.MAX_REGISTERS if chunks == 1 else cost.NOT_SPILLED
    return work.registers(count, chunks) <= most and count * work.instructions <= MAX_INSTRUCTIONS


def _stages(
    work: Workload,
    elements: int,
    r0_block: int,
    per_sm: int,
    device: DeviceInfo,
    constants: Constants,
) -> int:
    """Row tiles in use or in flight, to `MAX_STAGES`: as near as can be to the bytes that are to be in
    flight, for more of them are as bad as fewer, and no more than fit."""
    if work.rereads and (work.cols == r0_block or work.held_words > 2):
        return 1  # H200, bf16: RMSNorm 16384x16384 77% with two stages, 89% with one; 8192x12288 71% and 58%
    useful = per_sm * elements * work.load_bytes * work.cols // r0_block
    scale = constants.bytes_scale(device.bandwidth, device.num_sm)
    wanted = int(scale * constants.in_flight * constants.resident_bytes)
    if per_sm == 1 and work.load_bytes > 2 * work.item_bytes:
        wanted = wanted * 5 // 4  # H200, LayerNorm and residual, 32768x5120 bf16: 91.6 -> 96.2% of the limit
    most = MAX_STAGES if per_sm == 1 else MAX_STAGES - 1
    stages = max(constants.stages, min(most, 1 + round(wanted / max(1, useful))))
    # Triton keeps stages - 1 tiles of each pipelined load in shared memory.
    staged = per_sm * elements * max(work.load_bytes, work.staged_bytes)
    while stages > 1 and staged * (stages - 1) > device.shared_memory:
        stages -= 1
    return stages


def _per_access(work: Workload) -> int:
    """Elements of the widest memory access of the narrowest full tensor."""
    return ACCESS_BYTES // work.item_bytes


def _floor_power_of_2(n: int) -> int:
    """The next one down; 1 at least."""
    return 1 << max(0, n.bit_length() - 1)


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
