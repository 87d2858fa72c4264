"""A program's inputs and upstream gradients, in several memory layouts, and poisoned free memory.

In: a `Program`. Out: an `Example`, which runs a function on the same numbers every time. Inside `poisoned`,
free memory is filled with NaN before a run. Between the rows of a padded input there are large numbers.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import effects
from .comparison import Difference, Results, same_bits
from .operators import COL, FULL, KINDS, MORE_KINDS, WRITE, space_of
from .programs import OPS, Program

_PLANTS: dict[str, Callable[[torch.finfo], float]] = {
    "nan": lambda _: math.nan,
    "inf": lambda _: math.inf,
    "-inf": lambda _: -math.inf,
    "0.0": lambda _: 0.0,
    "-0.0": lambda _: -0.0,
    "smallest": lambda dtype: dtype.tiny,
    "subnormal": lambda dtype: -dtype.smallest_normal / 4,
}
_RESERVE = 1 << 26


class Example:
    """A program's inputs and upstream gradients. The same numbers in every run; in float64 if `wide`."""

    def __init__(self, program: Program, device: str, size: int | None = None, wide: bool = False) -> None:
        self.program, self.wide = program, wide
        self.classes: list[str] = []  # of the results of the last run
        self.device = "cuda" if device == "cuda" else "cpu"
        self.generator = torch.Generator(self.device).manual_seed(program.seed)
        narrow, weights = getattr(torch, program.dtype), getattr(torch, program.weight_dtype)
        layouts = program.layouts
        written = {s.args[0] for s in program.steps if OPS[s.op].result == WRITE}
        shapes = {name: program.shape_of(kind, size) for name, kind in KINDS.items()}
        self.inputs = {}
        for i, (name, shape) in enumerate(shapes.items()):
            values = self._planted(name, self._random(shape, weights if KINDS[name] == COL else narrow))
            layout = layouts[i % len(layouts)] if KINDS[name] == FULL else "contiguous"
            self.inputs[name] = laid_out(values, "contiguous" if name in written else layout)
        for i, name in enumerate(program.inputs[len(KINDS) :]):
            if name == "m":
                cols = program.shape[-1]
                self.inputs["m"] = self._random((cols, cols), narrow) / max(1, cols) ** 0.5
            else:
                kind = MORE_KINDS[name]
                values = self._exact(program.shape_of(kind, size), kind.partition(".")[2])
                layout = layouts[i % len(layouts)] if space_of(kind) == FULL else "contiguous"
                self.inputs[name] = laid_out(values, "contiguous" if written and kind == "full.i" else layout)

    def _random(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        values = torch.randn(tuple(shape), generator=self.generator, device=self.device).to(dtype)
        return values.double() if self.wide else values

    def _exact(self, shape: Sequence[int], letter: str) -> Tensor:
        """Integers of every size, half of them small; bools, one in four true; or 8-bit floats."""
        given = {"generator": self.generator, "device": self.device}
        chance = torch.rand(tuple(shape), **given)
        if letter == "b":
            return chance < 0.25
        if letter == "q":
            return (chance * 8 - 4).to(getattr(torch, self.program.fp8_dtype))
        dtype = getattr(torch, self.program.int_dtype)
        limits = torch.iinfo(dtype)
        small, large = (
            torch.randint(low, high, tuple(shape), dtype=torch.int64, **given)
            for low, high in ((-3, 4), (limits.min, limits.max))
        )
        return torch.where(chance < 0.5, small, large).to(dtype)

    def _planted(self, name: str, values: Tensor) -> Tensor:
        for where, place, what in self.program.planted:
            if where == name and values.numel():
                narrow = torch.finfo(getattr(torch, self.program.dtype))
                values.view(-1)[place % values.numel()] = _PLANTS[what](narrow)
        return values

    def run(self, function: Callable[..., Any], mark: bool = False) -> Results:
        """Outputs and the inputs after the run. Or gradients of the inputs, zeros where there is none, and
        the outputs without a gradient."""
        torch.manual_seed(self.program.seed)
        effects.LOG.clear()
        args, dim = list(self.inputs.values()), self.program.dynamic_dim
        if self.program.backward:
            args = [a.detach().requires_grad_(_differentiable(a)) for a in args]
        if mark and dim is not None:
            for value, name in zip(args, self.inputs, strict=True):
                ones = self.program.ones((KINDS | MORE_KINDS).get(name, COL))
                if dim not in ones and (value.shape[dim] > 1 or self.program.oblivious):
                    torch._dynamo.maybe_mark_dynamic(value, dim)
        if not self.program.backward:
            self.classes = [*self.program.result_classes, *map(_class_of, self.inputs)]
            with torch.no_grad():
                return [*function(*args), *args]
        given = list(zip(function(*args), self.program.result_classes, strict=True))
        # A compiled view of what has no gradient says that it has one.
        known = [y.requires_grad and (y.grad_fn is not None or any(y is a for a in args)) for y, _ in given]
        outputs = [y for (y, _), has in zip(given, known, strict=True) if has]
        others = [pair for pair, has in zip(given, known, strict=True) if not has]
        args = [a for a in args if a.requires_grad]
        self.classes = [*("" for _ in args), *(letter for _, letter in others)]
        layouts = self.program.layouts[2:] or ("contiguous",)
        narrow = getattr(torch, self.program.dtype)  # so that float64 gets the same numbers
        upstream = [
            laid_out(self._random(y.shape, narrow).to(y.dtype), layouts[i % len(layouts)])
            for i, y in enumerate(outputs)
        ]
        if not outputs:
            self.classes = self.classes[len(args) :]
            return [y for y, _ in others]
        before = [t.detach().clone() for t in (*args, *upstream)]
        grads = torch.autograd.grad(outputs, args, upstream, allow_unused=True)
        if mark and not all(map(same_bits, (a.detach() for a in (*args, *upstream)), before)):
            raise Difference("mutated", "an input or an upstream gradient was written")
        found = [torch.zeros_like(a) if g is None else g for a, g in zip(args, grads, strict=True)]
        return [*found, *(y for y, _ in others)]


def _differentiable(t: Tensor) -> bool:
    return t.is_floating_point() and t.dtype.itemsize > 1


def _class_of(name: str) -> str:
    return MORE_KINDS.get(name, "").partition(".")[2]


def laid_out(values: Tensor, layout: str) -> Tensor:
    """A tensor of these values in a memory layout; an expanded one repeats the first along dim 0."""
    if values.dim() == 0 or values.numel() == 0:
        return values
    last = values.shape[-1]
    match layout:
        case "padded":
            place = poison(values.new_empty((*values.shape[:-1], last + 5))[..., 2 : 2 + last])
        case "offset":
            place = poison(values.new_empty(values.numel() + 3)[3:].view(values.shape))
        case "transposed":
            place = torch.empty_like(values.transpose(0, -1).contiguous()).transpose(0, -1)
        case "channels-last" if values.dim() > 2:
            place = torch.empty_like(values.movedim(-1, 1).contiguous()).movedim(1, -1)
        case "expanded":
            return values[:1].expand(values.shape)
        case _:
            return values
    return place.copy_(values)


def poison(t: Tensor) -> Tensor:
    """Set every bit of each element, which is NaN in dtypes that have it. Between the elements are large
    numbers: torch's own product in bfloat16 reads behind a row on some CPUs, and multiplies it by zero."""
    torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage()).fill_(0x7B)
    t.view(getattr(torch, f"int{8 * t.dtype.itemsize}")).fill_(-1)
    return t


@contextlib.contextmanager
def poisoned(device: str) -> Iterator[None]:
    """Inside, newly allocated memory is filled with NaN."""
    if device == "cuda":
        poison_free_memory()
        yield
        return
    original = torch.fx.Interpreter.call_function

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        result = original(self, target, args, kwargs)
        if target is torch.ops.aten.empty_strided.default and type(result) is Tensor:  # else it is traced
            poison(result)
        if result is None and "_foreach_" in str(target):
            return args[0]  # written in place, as Inductor's lowering gives it back
        return result

    torch.fx.Interpreter.call_function = call_function  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.fx.Interpreter.call_function = original  # type: ignore[method-assign]


@functools.cache
def _reserve() -> None:
    """Free memory for the allocator to hand out, of both its kinds of blocks."""
    held = [torch.empty(_RESERVE, dtype=torch.uint8, device="cuda")]
    held += [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del held


def poison_free_memory() -> None:
    """Set every bit of the free memory of PyTorch's allocator: NaN in every float dtype."""
    _reserve()
    torch.cuda.synchronize()
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                torch.as_tensor(_Raw(address, block["size"]), device="cuda").fill_(255)
            address += block["size"]
    torch.cuda.synchronize()


class _Raw:
    """Memory by its address."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
