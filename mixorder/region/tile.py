"""Regions whose reductions all end within a tile: scales of blocks, along rows, columns or both.

Where every reduction is over a factor of some 32 rows or columns, a program that has whole blocks needs
nothing of other programs. Whatever such reductions and their consumers read and write, transposed or not, is
then one kernel without a workspace. A space's axes are the factors that the region's tensors tell apart.

Takes the FX graph; finds seeds, and grows a `Region` around each. Reads the graph, never writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..ir.program import AxisClass
from .axes import Reduced, Space, space_of
from .factors import Run, boundaries, flat, spanned
from .growth import Growth
from .members import used_outside
from .nodes import (
    fake,
    is_constant,
    is_permutation,
    is_relative,
    operands,
    reduced,
    reduction_kind,
    shape_of,
    shows,
    size_of,
    unviewed,
)
from .orders import Orders, is_loop
from .region import Region, Seed
from .sizes import Size, product
from .space_analysis import SpaceAnalysis
from .walk import by_position, closure, dependents, inside, needed_for, position, sweep

Shapes: TypeAlias = Callable[[Node], tuple[Size, ...] | None]
LEAST, MOST = 16, 128  # elements of a block along one axis
PAIR = 2  # elements of what is packed into a byte: no region is looked for such a reduction
LEAST_TILES = 8  # with fewer, blocks are whole rows or columns of small tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileSeed(Seed):
    """Reductions that each end within a tile, of what is computed from the elements of `root`; or, without
    any, `results` that are stored, of which the first is transposed (`transposed.py`)."""

    root: Node
    results: tuple[Node, ...] = ()


def block_lengths(what: Reduced) -> list[Size]:
    """Elements of each run of dims that a reduction reduces; none if it reduces all elements, or there
    are no elements."""
    lengths = [factor.size for factor in what.run or ()]
    return [] if product(lengths) == product(what.shape) else lengths


def is_within_tile(node: Node, least: int = LEAST) -> bool:
    """Whether a node is a reduction over short runs of dims, each a power of two long, and not over all."""
    what = reduced(node)
    if what is None or not all(isinstance(n, int) for n in what.shape):
        return False
    lengths = block_lengths(what)
    return bool(lengths) and all(
        isinstance(n, int) and least <= n <= MOST and n & (n - 1) == 0 for n in lengths
    )


def may_be_square(node: Node) -> bool:
    """Whether a node selects from as many elements as a square of blocks has, which are one dim: behind a
    permutation they may be of several axes."""
    what, kind = reduced(node), reduction_kind(node)
    if what is None or kind is None or not kind.selects or not all(isinstance(n, int) for n in what.shape):
        return False
    lengths = block_lengths(what)
    return len(lengths) == 1 and MOST < lengths[0] <= MOST**2 and lengths[0] & (lengths[0] - 1) == 0


def ends_in_tile(node: Node, orders: Orders, least: int = LEAST) -> bool:
    """Whether a reduction is within a tile, also where it reduces blocks of several axes as one dim."""
    if is_within_tile(node, least):
        return True
    if not may_be_square(node) or operands(node)[0] not in orders:
        return False
    factors = orders.reduced(node)
    return len(factors) > 1 and all(LEAST <= f.size <= MOST and orders.is_within_dim(f) for f in factors)


def tile_seed(node: Node) -> TileSeed | None:
    """The seed that a reduction within a tile belongs to; None if Inductor's kernels do as well, or nothing
    of full size is computed from the reductions."""
    sources = full_sources(node, shape_of)
    roots = [n for n in sources if is_row_major(n)]
    if not roots:
        return None
    orders = Orders(roots[0])
    reductions = block_reductions(roots[0], orders, lambda n: ends_in_tile(n, orders))
    if node not in reductions:
        return None
    outer = [n for n in reductions if orders.reduced(n)[0].stride > 1]
    inner = [n for n in reductions if n not in outer]
    analysis = SpaceAnalysis(orders.size_of(roots[0]))
    return TileSeed(analysis, Space(()), tuple(inner), tuple(outer), root=roots[0])


def full_sources(node: Node, shape_of: Shapes) -> list[Node]:
    """The tensors, as large as its operand, that a reduction is computed from; none where it is along the
    rows of what was not permuted: if others are across rows, one of those is tried."""
    nodes = above([node])
    if _is_along_rows(node) and not any(map(is_permutation, nodes)):
        return []
    size = product(shape_of(operands(node)[0]) or ())
    return by_position(n for n in nodes if not is_loop(n) and product(shape_of(n) or ()) == size)


def block_reductions(root: Node, orders: Orders, is_over_blocks: Callable[[Node], bool]) -> list[Node]:
    """The reductions over blocks of what is computed from the elements of `root`; none if a tile does no
    better than Inductor's kernels, or nothing of full size is computed from the reductions."""
    candidates, below, size = list[Node](), list[Node](), orders.size_of(root)

    def is_below(node: Node) -> bool:
        if not ((is_loop(node) or is_over_blocks(node)) and orders.find(node)):
            return False
        below.append(node)
        if is_over_blocks(node) and orders.agrees(node):
            candidates.append(node)
        return True

    sweep(root.users, is_below)
    assert isinstance(size, int)
    used = any(orders.size_of(n) == size for n in dependents(candidates, below))
    return candidates if used and _is_worthwhile(orders, candidates, size) else []


def _is_along_rows(node: Node) -> bool:
    """Whether a reduction is over the last dims of its operand and no others."""
    what = reduced(node)
    return what is not None and all(factor.stride == 1 for factor in what.run or ())


def _is_worthwhile(orders: Orders, reductions: list[Node], size: int) -> bool:
    """Whether a tile spares a read, or accesses across memory, and there are enough of them.

    It does if the blocks are along different axes, and not all along the rows: Inductor has a kernel for
    each. It also does for one reduction of transposed elements, or of blocks along two axes.
    """
    blocks = {orders.reduced(n) for n in reductions}
    if size < LEAST_TILES * spanned([factor for run in blocks for factor in run]):
        return False
    if all(run[-1].stride == 1 and len(run) == 1 for run in blocks):
        return False
    if len(blocks) > 1 or any(len(run) > 1 for run in blocks):
        return True
    return any(len(flat(orders[operands(n)[0]])) > 1 for n in reductions)


def is_row_major(node: Node) -> bool:
    """Whether a tensor's elements lie in the order of its dims, with gaps or without."""
    val = fake(node)
    if val is None or not all(isinstance(stride, int) for stride in val.stride()):
        return False
    strides = [stride for n, stride in zip(map(size_of, val.shape), val.stride(), strict=True) if n != 1]
    return bool(strides) and strides[-1] == 1 and strides == sorted(strides, reverse=True)


def above(nodes: Iterable[Node], without: frozenset[Node] = frozenset()) -> set[Node]:
    """What some nodes are computed from, to the first nodes that are no loops, or in `without`."""

    def read(node: Node) -> list[Node]:
        return [a for a in operands(node) if shape_of(a) is not None]

    starts = {a for n in nodes for a in read(n)}
    return set(closure(starts, lambda n: read(n) if n not in without and is_loop(n) else ()))


class TileGrowth(Growth):
    """Grows one region around what its reductions are computed from. `early`: what is read, and what that is
    computed from."""

    def __init__(self, seed: TileSeed) -> None:
        super().__init__(seed.analysis)
        self.seed = seed
        self.wanted = {*seed.inner, *seed.outer, *seed.results}
        self.must_recompute = seed.must_recompute | above(seed.must_recompute)
        self.above = {n for n in above(self.wanted, seed.without) if is_loop(n)} - seed.without
        core = self.above | self.wanted
        self.reads = {a for n in core for a in operands(n) if a not in core}
        first = core | above(seed.without) if seed.results else core
        self.early = self.reads | needed_for(self.reads, since=min(map(position, first)))
        self.above -= {n for n in self.early if not self.analysis.recomputed(n) or self.is_stored(n)}
        self.orders = Orders(seed.root).spread(self.above | self.wanted)
        self.members = {}
        self.start = min(map(position, self.reads))

    def grow(self, name: str) -> Region:
        """The region. Raises `Decline` where it cannot be one kernel."""
        below = closure(self.reads, lambda n: n.users if n in self.reads or is_loop(n) else ())
        begins = {*self.above, *self.wanted, *filter(self.is_standalone, below)}
        sweep((n for n in begins if position(n) >= self.start and n.op == "call_function"), self.visit)
        _, outputs = used_outside(self.members, lambda n: shows(n) or is_constant(n) or self.stays(n))
        nodes = inside(outputs, self.members)
        reductions = [n for n in nodes if reduction_kind(n) is not None]
        self.check_left(nodes, reductions)
        space = self.space(nodes)
        inner, outer = self.sides(reductions)
        orders = {n: self.orders[n] for n in self.orders if n in self.members or self.is_read(n)}
        region = Region(
            name, space, nodes, tuple(outputs), tuple(inner), tuple(outer), self.seed, orders=orders
        )
        for read in region.inputs:
            self.analysis.check(read)
        return region

    def sides(self, reductions: list[Node]) -> tuple[list[Node], list[Node]]:
        """The reductions along rows, and the others."""
        outer = [n for n in reductions if self.orders.reduced(n)[0].stride > 1]
        if reductions and not outer:
            raise Decline(DeclineReason.AXIS_CLASS, "the remaining reductions all run along rows")
        return [n for n in reductions if n not in outer], outer

    def check_left(self, nodes: Collection[Node], reductions: Collection[Node]) -> None:
        """Raise `Decline` if what the region is for could not join."""
        if self.seed.results:
            if (transposed := self.seed.results[0]) not in nodes:
                raise Decline(DeclineReason.AXIS_CLASS, "a tensor is needed in two orders", transposed.name)
        elif self.column.issuperset(reductions):
            known = (n for n in (*self.above, *self.wanted, *self.reads) if fake(n) is not None)
            for read in by_position(known):
                self.analysis.check(read)
            raise Decline(DeclineReason.CYCLE, "the reductions depend on each other through a node outside")

    def is_read(self, node: Node) -> bool:
        return any(user in self.members for user in node.users)

    def is_given(self, member: Node) -> bool:
        return self.members[member] or not self.stays(member)

    def waits(self, node: Node, args: list[Node]) -> bool:
        # Values of `column` exist only when all programs have ended: no member can need them.
        return is_loop(node) and self.column.isdisjoint(args) and self.fits(node, args)

    def is_standalone(self, node: Node) -> bool:
        """Whether a node may join that uses none of the region's."""
        return reduction_kind(node) is not None

    def joins(self, node: Node, args: list[Node]) -> bool:
        live = self.live(args)
        if columns := [a for a in args if a in self.column]:
            # Their values exist only when all programs have ended: what follows has no more elements.
            if not is_loop(node) or len(columns) < len(live) or not self.fits(node, args):
                return False
            ends = [max((f.end for f in flat(self.orders[n])), default=1) for n in (columns[0], node)]
            return ends[1] <= ends[0]
        if (
            node in self.above
            or node in self.wanted
            or (live and (is_loop(node) or ends_in_tile(node, self.orders, PAIR)))
        ):
            return self.fits(node, args)
        if node in self.early or not self.spans_rows(node):
            return False
        return self.reads.issuperset(self.sources(node)) and self.fits(node, args)

    def spans_rows(self, node: Node) -> bool:
        if reduction_kind(node) is None or is_relative(node) or not self.orders.search(node):
            return False
        return not ends_in_tile(node, self.orders) and self.orders.over(node) is AxisClass.ROW

    def sources(self, node: Node) -> set[Node]:
        """The full-size tensors from which loops compute what a reduction reduces."""
        return {n for n in above([node]) if not is_loop(n) and self.analysis.is_full(n)}

    def fits(self, node: Node, args: list[Node]) -> bool:
        """Whether the region may compute a node: it stands at one place in the space, and what it uses of
        nodes outside does not depend on the region."""
        if node in self.seed.without or self.uses_tainted(args):
            return False
        taken = is_permutation(node) or self.analysis.takes(node, (unviewed(a, is_permutation) for a in args))
        return taken and self.orders.search(node) and self.orders.agrees(node)

    def pull(self, arg: Node) -> None:
        """Take an operand that waits for that, or is as cheap to compute as to read."""
        if arg in self.members or not is_loop(arg) or self.uses_tainted([arg]):
            return
        args = operands(arg)
        cheap = self.is_cheap(arg) or self.is_read_anyway(arg)
        if arg in self.pending or (cheap and self.fits(arg, args)):
            self.members[arg] = False
            self.pending.discard(arg)
            for further in args:
                self.pull(further)

    def is_read_anyway(self, node: Node) -> bool:
        """Whether the region reads anyway what a node is made of, and only members need the node."""
        return all(n in self.members for n in node.users) and self.reads >= self.sources(node)

    def stays(self, node: Node) -> bool:
        """Whether users outside recompute a member: it is cheap, and needs no result of the region, or
        smaller ones only."""
        if not self.is_cheap(node) or (self.members[node] and not self.analysis.is_full(node)):
            return False
        needed = [a for a in operands(node) if a in self.members]
        return all((self.members[a] and not self.analysis.is_full(a)) or self.stays(a) for a in needed)

    def is_cheap(self, node: Node) -> bool:
        """Whether loops compute a node rather than read it."""
        return (node in self.must_recompute or self.analysis.recomputed(node)) and not self.is_stored(node)

    def is_stored(self, node: Node) -> bool:
        return not shows(node) and self.analysis.is_written_anyway(node)

    def space(self, nodes: tuple[Node, ...]) -> Space:
        """The axes that the tensors tell apart, and the reductions over each."""
        cuts = set[Size]()
        by: dict[bool, list[Run]] = {False: [], True: []}
        for node in {*nodes, *(a for n in nodes for a in operands(n))}:
            cuts |= boundaries(flat(self.orders[node])) | self.gaps(node)
            if reduction_kind(node) is not None and node in self.members and node not in self.column:
                run = self.orders.reduced(node)
                by[run[0].stride > 1].append(run)
        space = space_of(self.analysis.numel, by[False], by[True], cuts)
        if any(by.values()) or self.column:
            return space
        *rows, (last, _) = space.axes
        return Space((*((n, AxisClass.ROW) for n, _ in rows), (last, AxisClass.COLUMN)))

    def gaps(self, node: Node) -> set[Size]:
        """The boundaries between dims that a tensor in memory does not have next to each other."""
        val, shape = fake(node), shape_of(node)
        if val is None or shape is None or node in self.members:
            return set()
        cuts: set[Size] = set()
        long = [d for d, n in enumerate(shape) if n != 1]
        for d, after in zip(long, long[1:], strict=False):
            if size_of(val.stride(d)) != size_of(val.stride(after)) * shape[after]:
                cuts |= boundaries((*self.orders[node][d], *self.orders[node][after]))
        return cuts
