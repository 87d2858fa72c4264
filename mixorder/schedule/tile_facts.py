"""Facts of a program whose reductions all end within a tile, as choosing the tile needs them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..ir.program import (
    Axis,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    PartialAccumulate,
    Reduce,
    Store,
    is_full,
    stride_along,
)
from .facts import TiledFacts, cost_of, streamed
from .producers import row_axes_of
from .staged import Small


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The full tensors that are loaded and stored."""

    loads: int = 1
    """Those that are loaded."""

    chains: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Of each, the bytes of an element, and the places of the axes along which it is contiguous, innermost
    first."""

    transposed: int = 0
    """Those that are stored in another order than the one that is loaded."""

    store_bytes: int = 0
    """Stored of an element."""


@dataclasses.dataclass(frozen=True)
class TileFacts(TiledFacts):
    """Facts of a tile-local program."""

    whole: frozenset[int] = frozenset()
    """The places of those that are reduced within a tile."""

    summed: frozenset[int] = frozenset()
    """The places of those that partial results are summed over."""

    reductions: int = 0
    """How many there are."""

    row_axes: int = 0
    """How many of the first axes are rows, where producers compute values of whole rows; else 0."""

    small: tuple[Small, ...] = ()
    """The results that are no full tensors."""

    tensors: Tensors = Tensors()

    @property
    def memory_orders(self) -> int:
        """How many axes are innermost in some full tensor's memory."""
        return len({chain[0] for _, chain in self.tensors.chains})

    @property
    def of_norm(self) -> bool:
        """Whether a small tile is as good as a large one: nothing is packed or quantised."""
        narrowest = min((item for item, _ in self.tensors.chains), default=1)
        return len(self.whole) == 1 and narrowest >= 2 and self.load_bytes >= 4

    @property
    def heavy(self) -> bool:
        """Whether computing takes longer than memory."""
        return self.instructions > 4.5 * (self.load_bytes + self.tensors.store_bytes)

    @property
    def light(self) -> bool:
        """Whether there is little to compute for an element, so that a thread has registers for more."""
        return self.instructions <= 10


def facts_of_tile(program: LoopProgram) -> TileFacts:
    """The facts of a tile-local program."""
    nest = program.nests[0]
    axes, reduced, summed = nest.axes, nest.reduced, nest.summed
    sizes = tuple(int(axis.size) for axis in axes)
    every, deps = {axis.symbol for axis in axes}, nest.dependence()
    full = [s for s in nest.body if isinstance(s, Load | Store) and is_full(s, axes, reduced)]
    stores = [s for s in nest.body if isinstance(s, Store)]
    computed = (s for s in nest.body if isinstance(s, Compute) and every <= deps[s.name])
    chains = {(program.buffer(s.buffer).dtype.itemsize, _chain(s, axes)) for s in full}
    read, stored = ([_chain(s, axes) for s in full if isinstance(s, kind)] for kind in (Load, Store))
    numel, cols = math.prod(sizes), math.prod(sizes[axes.index(a)] for a in axes[-2:])
    tensors = Tensors(
        loads=len({s.buffer for s in full if isinstance(s, Load)}),
        chains=tuple(sorted(c for c in chains if c[1])),
        transposed=sum(
            all(_innermost(chain, store_chain) not in store_chain[:1] for chain in read)
            for store_chain in stored
        ),
        store_bytes=sum(program.buffer(s.buffer).dtype.itemsize for s in full if isinstance(s, Store)),
    )
    return TileFacts(
        numel // cols,
        cols,
        **streamed(program, full),
        instructions=sum(cost_of(s) for s in computed),
        sizes=sizes,
        whole=frozenset(i for i, axis in enumerate(axes) if axis.symbol in reduced),
        summed=frozenset(i for i, axis in enumerate(axes) if axis in summed),
        reductions=sum(isinstance(s, Reduce | PartialAccumulate) for s in nest.body),
        row_axes=row_axes_of(program.producer_nest, sizes),
        small=tuple(filter(None, (small_result(program, s, axes) for s in stores))),
        tensors=tensors,
    )


def small_result(program: LoopProgram, store: Store, axes: Sequence[Axis]) -> Small | None:
    """What a store writes, if that is a result with fewer elements than the loops have points, all of which
    lie next to each other."""
    buffer, places = program.buffer(store.buffer), _chain(store, axes)
    indexed = [i for i, axis in enumerate(axes) if axis.symbol in store.index.free_symbols]
    if (
        buffer.role is not BufferRole.OUTPUT
        or len(indexed) < 2
        or sorted(places) != indexed
        or len(indexed) == len(axes)
    ):
        return None
    return Small(buffer.name, buffer.dtype.itemsize, places)


def _innermost(chain: Sequence[int], among: Sequence[int]) -> int:
    """The first place of a chain that is also in another one, -1 if there is none: of packed elements, a load
    has places that the store has not."""
    return next((place for place in chain if place in among), -1)


def _chain(stmt: Load | Store, axes: Sequence[Axis]) -> tuple[int, ...]:
    """The places of the axes along which an access is contiguous, innermost first."""
    places, stride = list[int](), 1
    by_stride = {int(stride_along(stmt.index, axis.symbol)): i for i, axis in enumerate(axes)}
    while (place := by_stride.get(stride)) is not None and place not in places:
        places.append(place)
        stride *= int(axes[place].size)
    return tuple(places)
