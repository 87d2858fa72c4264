"""The kernels of a region before and after fusion, and their tensors, as plain data for a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import sympy

from ..ir.program import NUM_SPLITS, BufferRole, Load, LoopProgram, Nest, PartialAccumulate, Store
from ..record import RegionRecord, TensorRecord
from ..schedule import baseline, tile
from ..schedule.device import DeviceInfo
from ..schedule.kernel_time import Kind
from ..transform.finished import finished
from .findings import GraphRecord

_TITLES = {
    Kind.ROWS: "along rows",
    Kind.LOOPED: "along rows, in parts",
    Kind.COLUMNS: "over rows",
    Kind.MIXED: "along and over rows",
    Kind.POINTWISE: "no reduction",
    Kind.FINAL: "over partial sums",
}
_PARTIAL = "partial sums"
_ADDS_UP = "adds up partial sums"
_SMALL = "small results"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """`kind`: `input`, `result` or `between`. `title`: what it is; `moved`: bytes, unknown if None."""

    kind: str
    title: str
    text: str
    moved: float | None

    @property
    def size(self) -> str:
        """Bytes with a unit."""
        if self.moved is None:
            return ""
        return f"{self.moved / 1e6:.1f} MB" if self.moved >= 5e4 else f"{self.moved / 1e3:.1f} KB"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel, or several like it: its title and launches, and the tensors that it reads and writes, by
    key."""

    title: str
    launches: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Flow:
    """Kernels in the order of their launches, and all their tensors, by key."""

    kernels: tuple[Kernel, ...]
    tensors: dict[str, Tensor]


def before(record: RegionRecord, graph: GraphRecord, device: DeviceInfo) -> Flow:
    """The kernels that Inductor would make, as they are predicted."""
    loops, kernels, written = record.apart, [], set[str]()
    others = tile.kernels_of(loops) if loops.blocked else baseline.kernels_of(loops, device)
    for i, one in enumerate(others):
        used = dict.fromkeys(access.buffer for access in one.accesses)
        outputs = [b for b in used if loops.buffer(b).role is BufferRole.OUTPUT and b not in written]
        reads = tuple(b for b in used if b not in outputs)
        summed = [b for b in outputs if one.launches > 1 and not _has_rows(loops, b)]
        partial = (f"{_PARTIAL} {i}",) if summed else ()
        direct = tuple(b for b in outputs if b not in summed)
        kernels.append(Kernel(_TITLES[one.kind], 1, reads, direct + partial))
        if summed:
            kernels.append(Kernel(_ADDS_UP, one.launches - 1, partial, tuple(summed)))
        written.update(outputs)
    return _flow(kernels, record, loops, graph)


def after(record: RegionRecord, graph: GraphRecord) -> Flow:
    """The main kernel, and the one that finishes its work, if there is one."""
    kind = Kind.MIXED if record.inner else Kind.COLUMNS if record.outer else Kind.POINTWISE
    loops = finished(record.loops) if record.schedule.finishes else record.loops
    main, *others = loops.nests
    kernels = [_kernel([main], _TITLES[kind])]
    if others:
        sums = [nest for nest in others if nest.over_splits]
        titles = [_ADDS_UP] * bool(sums) + [f"places {_SMALL}"] * (len(others) > len(sums))
        kernels.append(_kernel(others, " and ".join(titles)))
    return _flow(kernels, record, loops, graph)


def _kernel(nests: Sequence[Nest], title: str) -> Kernel:
    reads, writes = dict[str, None](), dict[str, None]()
    for nest in nests:
        reads |= dict.fromkeys(s.buffer for s in nest.statements if isinstance(s, Load))
        stores = (Store,) if nest.after else (Store, PartialAccumulate)  # accumulators are not in memory then
        writes |= dict.fromkeys(s.buffer for s in nest.statements if isinstance(s, stores))
    return Kernel(title, 1, tuple(reads), tuple(writes))


def _flow(kernels: Sequence[Kernel], record: RegionRecord, loops: LoopProgram, graph: GraphRecord) -> Flow:
    keys = dict.fromkeys(key for k in kernels for key in (*k.reads, *k.writes))
    return Flow(tuple(kernels), {key: _tensor(key, record, loops, graph) for key in keys})


def _tensor(key: str, record: RegionRecord, loops: LoopProgram, graph: GraphRecord) -> Tensor:
    if key.startswith(_PARTIAL):
        return Tensor("between", _PARTIAL, "", None)
    buffer = loops.buffer(key)
    moved = _bytes(record, loops, key)
    roles = ((BufferRole.INPUT, record.inputs), (BufferRole.OUTPUT, record.outputs))
    for role, tensors in roles:
        for one, tensor in zip(loops.role(role), tensors, strict=True):
            if one.name == key and role is BufferRole.INPUT:
                return Tensor("input", "", str(tensor), moved)
            if one.name == key:
                title = _gradient(tensor, _has_rows(loops, key), graph)
                return Tensor("result", title, str(tensor), moved)
    staged = any(isinstance(s, Store) and s.buffer == key for s in loops.nests[0].statements)
    shared = "exchanged sums" if buffer.role is not BufferRole.WORKSPACE else _PARTIAL
    return Tensor("between", _SMALL if staged else shared, "", moved)


def _gradient(tensor: TensorRecord, has_rows: bool, graph: GraphRecord) -> str:
    """`dw norm.weight`, `db norm.bias`, `dx`, as far as is known; in a forward nothing."""
    if graph.kind != "backward":
        return ""
    of = graph.gradients.get(tensor.name, "")
    if of.startswith("input ") or not of:
        return f"dx of {of}" if of else "dx" if has_rows else "dw or db"
    return f"{'db' if 'bias' in of.rpartition('.')[2] else 'dw'} of {of}"


def _has_rows(loops: LoopProgram, buffer: str) -> bool:
    """Whether a result has an element for each row."""
    if loops.blocked:
        small = loops.nests[1].body if len(loops.nests) > 1 else ()
        return any(s not in small for s in _stores(loops, buffer))
    row = loops.tile_axes[0].symbol
    return any(row in store.index.free_symbols for store in _stores(loops, buffer))


def _stores(loops: LoopProgram, buffer: str) -> Iterable[Store]:
    return (s for n in loops.nests for s in n.statements if isinstance(s, Store) and s.buffer == buffer)


def _bytes(record: RegionRecord, loops: LoopProgram, name: str) -> float:
    buffer = loops.buffer(name)
    numel = sympy.sympify(buffer.numel).subs(NUM_SPLITS, record.schedule.splits)
    return float(loops.hint(numel) * buffer.dtype.itemsize)
