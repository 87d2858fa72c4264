"""Programs of two ranks with collectives inside the compiled graph, and what they must give.

In each, a collective of one of a region's results is called before a collective that makes one of the
region's inputs, as where the last bias of a residual and the norm before it read the same gradient. A program
is written once: `Group` calls torch's functional collectives, `Threads` runs all ranks in one process, as
threads that meet at every collective, for the truth in float64. `interpreted_calls` notes those of a rank.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from fresh_process import HANG_S
from torch import Tensor

from mixorder.inspection.accuracy import largest_error

RANKS = 2
ROWS, COLUMNS = (100, 200), 16
Tensors = tuple[Tensor, ...]


# Collectives.


class Collectives(abc.ABC):
    """Of one rank; and as functions with a gradient: those of tensor parallelism, of hooks and of shards."""

    def __init__(self) -> None:
        self.hooked = _function(torch.clone, self.all_reduce)
        """An identity; its gradient is summed over the ranks."""
        self.summed = _function(self.all_reduce, torch.clone)
        self.gathered = _function(self.all_gather, self.reduce_scatter)
        self.scattered = _function(self.reduce_scatter, self.all_gather)
        self.exchanged = _function(self.all_to_all, self.all_to_all)

    @abc.abstractmethod
    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor: ...

    @abc.abstractmethod
    def all_gather(self, x: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def reduce_scatter(self, x: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def all_to_all(self, x: Tensor) -> Tensor: ...


def _function(forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return backward(grad.contiguous())

    return Function.apply


class Group(Collectives):
    """Those of a process group, as operators that a graph can hold."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        return self._wait(torch.ops._c10d_functional.all_reduce(x, op, self.name))

    def all_gather(self, x: Tensor) -> Tensor:
        return self._wait(torch.ops._c10d_functional.all_gather_into_tensor(x, RANKS, self.name))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return self._wait(torch.ops._c10d_functional.reduce_scatter_tensor(x, "sum", RANKS, self.name))

    def all_to_all(self, x: Tensor) -> Tensor:
        parts = [x.shape[0] // RANKS] * RANKS
        return self._wait(torch.ops._c10d_functional.all_to_all_single(x, parts, parts, self.name))

    @staticmethod
    def _wait(x: Tensor) -> Tensor:
        return torch.ops._c10d_functional.wait_tensor(x)


class Threads(Collectives):
    """One rank's end of a meeting of threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, table: list[Any]) -> None:
        super().__init__()
        self.rank, self.barrier, self.table = rank, barrier, table

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        together = torch.stack(self._meet(x, op))
        return together.sum(0) if op == "sum" else together.amax(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._meet(x, "gather"))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return torch.stack(self._meet(x, "scatter")).sum(0).chunk(RANKS)[self.rank]

    def all_to_all(self, x: Tensor) -> Tensor:
        return torch.cat([other.chunk(RANKS)[self.rank] for other in self._meet(x, "exchange")])

    def _meet(self, x: Tensor, kind: str) -> list[Tensor]:
        """What every rank has brought."""
        self.table[self.rank] = (kind, x.detach())
        self.barrier.wait()
        brought = list(self.table)
        self.barrier.wait()
        assert len({(kind, x.shape) for kind, x in brought}) == 1, "ranks call different collectives"
        return [x for _, x in brought]


# Programs. Each is a function of a rank's collectives and tensors; the results are a tensor or several.


def same_shape(ranks: Collectives, x: Tensor, dy: Tensor, w: Tensor) -> Tensors:
    """Two sums of one size: where they are mixed up, nothing but the numbers tells."""
    dw = ranks.all_reduce((dy * x).sum(0))
    dx_hat = dy * ranks.all_reduce(w, "max")
    return dx_hat - x * (dx_hat * x).mean(1, keepdim=True), dw


def other_shape(ranks: Collectives, x: Tensor, dy: Tensor, w: Tensor) -> Tensors:
    dw = ranks.all_reduce((dy * x).sum(0))
    dx_hat = dy * ranks.all_reduce(w[:1].exp())
    return dx_hat - x * (dx_hat * x).mean(1, keepdim=True), dw


def three(ranks: Collectives, x: Tensor, dy: Tensor, w: Tensor) -> Tensors:
    """Of kinds that differ, and one of them in the middle of the region's rows' stages."""
    dw = ranks.all_reduce((dy * x).sum(0))
    share = ranks.reduce_scatter(dy.sum(0))
    dx_hat = dy * ranks.all_gather(w[: len(w) // RANKS])
    dx = dx_hat - x * (dx_hat * x).mean(1, keepdim=True)
    return dx * ranks.all_reduce(w, "max"), dw, share


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _same(x: Tensor) -> Tensor:
    return x


def layer(
    x: Tensor,
    weights: Sequence[Tensor],
    weight: Callable[[Tensor], Tensor] = _same,
    enter: Callable[[Tensor], Tensor] = _same,
    leave: Callable[[Tensor], Tensor] = _same,
) -> Tensor:
    """The end of a post-norm layer and the next one's MLP: the MLP and its residual read one norm's result.

    A weight goes through `weight` where it is used, so that in the backward its collective is called as
    soon as its gradient is there. `enter` and `leave` are around the MLP's products.
    """
    w, b, up, up_b, down, down_b = weights
    h = norm(x, weight(w), weight(b))
    hidden = F.silu(enter(h) @ weight(up) + weight(up_b))
    return h + leave(hidden @ weight(down)) + weight(down_b)


def hooks(ranks: Collectives, x: Tensor, *weights: Tensor) -> Tensor:
    """Data parallel: every weight's gradient is summed in the backward."""
    return layer(x, weights, ranks.hooked)


def shards(ranks: Collectives, x: Tensor, *weights: Tensor) -> Tensor:
    """Fully sharded: weights are gathered in the forward, their gradients' sums scattered in the backward."""
    return layer(x, weights, ranks.gathered)


def tensor_parallel(ranks: Collectives, x: Tensor, *weights: Tensor) -> Tensor:
    """An activation's gradient is summed between two norms, and every weight's."""
    w, b = (ranks.hooked(t) for t in weights[:2])
    y = layer(x, weights, ranks.hooked, ranks.hooked, ranks.summed)
    return y + norm(y, w, b)


def sequence_parallel(ranks: Collectives, x: Tensor, *weights: Tensor) -> Tensor:
    """Rows are gathered after the norm and scattered before the residual."""
    return layer(x, weights, ranks.hooked, ranks.gathered, ranks.scattered)


def experts(ranks: Collectives, x: Tensor, *weights: Tensor) -> Tensor:
    """Some rows are exchanged before the MLP and after it; how many is the same on all ranks."""

    def back(some: Tensor) -> Tensor:
        return F.pad(ranks.exchanged(some), (0, 0, 0, 0, 0, x.shape[0] - some.shape[0]))

    return layer(x, weights, ranks.hooked, lambda h: ranks.exchanged(h[:8]), back)


@dataclasses.dataclass(frozen=True)
class Program:
    """`rows`: of each rank."""

    step: Callable[..., Any]
    backward: bool
    rows: tuple[int, int] = ROWS
    columns: int = COLUMNS
    sharded: bool = False

    @property
    def name(self) -> str:
        return self.step.__name__

    def min_numel(self, rank: int) -> int:
        """Only the second rank fuses, always, whatever time is predicted."""
        return (2**40, 0)[rank]

    def arguments(self, rank: int, rows: int | None = None) -> Tensors:
        """A rank's; weights differ between ranks only where they are shards."""
        rows, columns = rows or self.rows[rank], self.columns
        # Tensor parallel: both have the same batch. Sequence parallel: each has its own rows.
        draw = torch.Generator().manual_seed(0 if self.step is tensor_parallel else rank)
        shape = (rows // 4, 4, columns) if self.backward else (rows, columns)
        x, dy = (torch.randn(shape, generator=draw) for _ in range(2))
        if not self.backward:
            return x, dy, torch.randn(columns, generator=draw)
        draw = torch.Generator().manual_seed(2 + (rank if self.sharded else 0))
        hidden = columns * 3 // 2
        shapes = [(columns,)] * 2 + [(columns, hidden), (hidden,), (hidden, columns), (columns,)]
        if self.sharded:
            shapes = [(n // RANKS, *rest) for n, *rest in shapes]
        scale = (COLUMNS / columns) ** 0.5  # products stay as large as with few columns
        return x, dy, *(torch.randn(shape, generator=draw) * scale ** (len(shape) - 1) for shape in shapes)

    def run(
        self, ranks: Collectives, arguments: Tensors, compiled: Callable[..., Any] = lambda function: function
    ) -> Tensors:
        """What a rank gets: its results, and for a module also the gradients."""
        function = compiled(functools.partial(self.step, ranks))
        if not self.backward:
            with torch.no_grad():
                return function(*arguments)
        x, dy, *weights = arguments
        given = [t.detach().requires_grad_() for t in (x, *weights)]
        y = function(*given)
        return y.detach(), *torch.autograd.grad(y, given, dy)

    def truth(self) -> list[Tensors]:
        """Of every rank, in float64 and without torch.distributed."""
        barrier, table = threading.Barrier(RANKS, timeout=HANG_S), [None] * RANKS
        results: list[Any] = [None] * RANKS

        def one(rank: int) -> None:
            try:
                arguments = tuple(t.double() for t in self.arguments(rank))
                results[rank] = self.run(Threads(rank, barrier, table), arguments)
            except BaseException as error:
                barrier.abort()
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


PROGRAMS = {
    program.name: program
    for program in (
        Program(same_shape, backward=False),
        Program(other_shape, backward=False),
        Program(three, backward=False),
        Program(hooks, backward=True),
        Program(shards, backward=True, sharded=True),
        Program(tensor_parallel, backward=True, rows=(100, 100)),
        Program(sequence_parallel, backward=True, rows=(100, 100)),
        Program(experts, backward=True),
    )
}


def off(found: Tensors, truth: Tensors) -> float:
    """The largest relative error of a result."""
    return largest_error(zip(found, truth, strict=True))


# The collectives that are called, in order.

Called = tuple[str, tuple[int, ...], str]
_STARTS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")


def is_start(target: Any) -> bool:
    """Whether an operator starts a functional collective."""
    space, _, name = str(target).partition(".")
    return space == "_c10d_functional" and name.split(".")[0].startswith(_STARTS)


@contextmanager
def interpreted_calls() -> Iterator[list[Called]]:
    """Those that graphs run by `torch.fx.Interpreter` call, with shape and first argument."""
    original, calls = torch.fx.Interpreter.call_function, list[Called]()

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if is_start(target) and type(args[0]) is Tensor:  # not while a graph is traced
            name = str(target).split(".")[1].rstrip("_")  # in place or not: the same collective
            calls.append((name, tuple(args[0].shape), str(args[1])))
        return original(self, target, args, kwargs)

    torch.fx.Interpreter.call_function = call_function
    try:
        yield calls
    finally:
        torch.fx.Interpreter.call_function = original
