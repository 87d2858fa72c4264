"""Cases of the family, and how one is run: in the interpreter, on a GPU, and in float64.

In: a case and a shape. Out: a step that can be run repeatedly (the backward of a training case, the
function itself of an inference case), and its expected results.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn

from mixorder.errors import Decline
from mixorder.inspection.accuracy import relative_error
from mixorder.report import RegionRecord

T = TypeVar("T")
Shape = tuple[int, ...]
Fused = tuple[str, int, int]
"""A region: its space, and how many inner and outer reductions it computes."""
MIN_ROWS = 256  # with fewer, sums without an inner reduction are left to Inductor
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def wide(x: Tensor) -> Tensor:
    """`.float()` in models: at least fp32, and fp64 in the reference."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Dropout(nn.Module):
    """`F.dropout`. A float64 reference draws random numbers in the dtype of the run that it checks.

    Inductor draws by seed and position in memory, and rounds the number to the input's dtype. So the
    reference, compiled by stock Inductor from the same seed, drops the same elements.
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = p
        self.drawn_in: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.drawn_in is None:
            return F.dropout(x, self.p)
        kept = F.dropout(torch.ones_like(x, dtype=self.drawn_in), self.p) != 0
        return torch.where(kept, x / (1 - self.p), 0.0)


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The first input's shape: at training size, in a test on a GPU, and in a test in the interpreter.

    The last two have odd sizes, so that tiles are partial.
    """

    training: Shape
    middle: Shape
    small: Shape


TOKENS = Shapes((8, 2048, 2048), (3, 1371, 760), (3, 5, 60))
HEADS = Shapes((8, 2048, 32, 128), (3, 457, 5, 120), (3, 5, 4, 12))
MATRIX = Shapes((16384, 2048), (4099, 760), (37, 60))


@dataclasses.dataclass(frozen=True)
class Case:
    """`make` takes the sizes of a shape, and gives a module of any float dtype or a function of tensors.

    `fused` takes the same sizes and gives the regions that must be fused, in order. `declined` are the
    reasons of the regions that must be declined. `inputs` are the dtypes of the inputs, None for that of
    the run. Without `training` the function is run without autograd. `forward` are the regions of a forward
    that is one operator on a CPU, but not on a GPU.
    """

    make: Callable[..., Callable[..., Any]]
    shapes: Shapes
    fused: Callable[..., list[Fused]]
    declined: tuple[str, ...] = ()
    inputs: tuple[torch.dtype | None, ...] = (None,)
    training: bool = True
    random: bool = False
    memory_format: torch.memory_format = torch.contiguous_format
    forward: Callable[..., list[Fused]] = lambda *shape: []

    def expected(self, shape: Shape, min_numel: int, device: str) -> tuple[list[Fused], list[str]]:
        """The regions that must be fused, and the reasons of those that must be declined."""
        regions = [*(self.forward(*shape) if device == "cuda" else ()), *self.fused(*shape)]
        big = [r for r in regions if numel(r[0]) >= min_numel and (r[1] or not min_numel or many_rows(r[0]))]
        return big, [*self.declined, *["too-small"] * (len(regions) - len(big))]


def numel(space: str) -> int:
    """Elements of a space, from its name: "16384x2048", or "row 16384 x batch 32 x column 128"."""
    return math.prod(map(int, re.findall(r"\d+", space)))


def many_rows(space: str) -> bool:
    """Whether a space has enough rows to fuse a sum without an inner reduction."""
    rows = re.findall(r"row (\d+)|^(\d+)x", space)
    assert rows, space
    return math.prod(int(named or first) for named, first in rows) >= MIN_ROWS


def pairs(*counts: tuple[int, int], cols: int = 1) -> Callable[..., list[Fused]]:
    """Regions of the input's rows and columns, its last `cols` dims, with so many reductions each."""

    def fused(*shape: int) -> list[Fused]:
        space = f"{math.prod(shape[:-cols])}x{math.prod(shape[-cols:])}"
        return [(space, inner, outer) for inner, outer in counts]

    return fused


def columns(make: Callable[[int], T]) -> Callable[..., T]:
    """`make` of the last size of a shape, as a function of all sizes."""
    return lambda *shape: make(shape[-1])


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Example:
    """A case at one shape, with its module, inputs and upstream gradients on a device."""

    def __init__(self, case: Case, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.case, self.dtype, self.device = case, dtype, device
        with torch.device(device), default_dtype(dtype):
            self.function = case.make(*shape)
        self.inputs = [
            self._random(shape, 1 + i).to(given or dtype).contiguous(memory_format=case.memory_format)
            for i, given in enumerate(case.inputs)
        ]
        self.num_bytes = 0

    def step(self, compile: Compile) -> Callable[[], Sequence[Tensor]]:
        """Compile and run the function. Returns a function that computes the gradients of all inputs and
        parameters, repeatedly from one forward; for an inference case, one that runs the function. Then
        `num_bytes` are those that it has to read and write."""
        function = compile(self.function)
        if not self.case.training:
            with torch.no_grad():
                self.num_bytes = _bytes(self.inputs) + _bytes(_tuple(function(*self.inputs)))
            return torch.no_grad()(lambda: _tuple(function(*self.inputs)))
        leaves = [x.detach().requires_grad_() for x in self.inputs]
        torch.manual_seed(2)  # for dropout
        with torch._functorch.config.patch(donated_buffer=False):  # the backward may run more than once
            outputs = _tuple(function(*leaves))
        upstream = [self.upstream(y, 100 + i) for i, y in enumerate(outputs)]
        leaves += self.parameters()
        self.num_bytes = 2 * _bytes(leaves) + _bytes(upstream)
        return lambda: torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)

    def exact(self, stock: Compile) -> list[Tensor]:
        """The step's expected results, in float64. Dropout is compiled, to drop the same elements."""
        other = copy.copy(self)
        if isinstance(self.function, nn.Module):
            other.function = copy.deepcopy(self.function).double()
            for module in other.function.modules():
                if isinstance(module, Dropout):
                    module.drawn_in = self.dtype
        other.inputs = [x.double() for x in self.inputs]
        step = other.step(stock if self.case.random else lambda function: function)
        return [t.double() for t in step()]

    def parameters(self) -> list[Tensor]:
        return list(self.function.parameters()) if isinstance(self.function, nn.Module) else []

    def upstream(self, y: Tensor, seed: int) -> Tensor:
        """A gradient of the output, with its strides; the same numbers in the reference."""
        return torch.empty_like(y).copy_(self._random(tuple(y.shape), seed))

    def _random(self, shape: Shape, seed: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, device=self.device, generator=generator).to(self.dtype)


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(x.nbytes for x in tensors)


def relative_errors(results: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Of each result."""
    return [relative_error(*pair) for pair in zip(results, exact, strict=True)]


def found_in(records: Sequence[RegionRecord | Decline]) -> tuple[list[Fused], list[str]]:
    """Records of `mixorder.report.collect`, in the form of `Case.expected`."""
    regions = [(str(r.space), len(r.inner), len(r.outer)) for r in records if not isinstance(r, Decline)]
    return regions, [r.reason.value for r in records if isinstance(r, Decline)]
