"""Entries of tables: what is compiled and run, what must become of it, and how exact it must be.

`tables/` has a module for each feature, and `test_tables.py` runs the entries of all.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from graphs import f32
from running import OFF, Counting, Tensors, check, compiled, has_half_layer_norm
from support.effects import watched
from torch import nn
from torch.fx.experimental import _config as fx_config
from torch.utils._pytree import tree_leaves

from mixorder.planning import planning_with
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import MEASURED as H200

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Entry:
    """`make` gives a module, whose gradients are compared, or a function of tensors, whose results are.

    `shapes` are those of normal numbers, of which `given` makes the inputs, in other layouts or of other
    values. With `dims`, those dims of each input are symbolic, and one compile also serves sizes by `more`
    larger. `dynamic` is that of `torch.compile`; with `oblivious`, a graph may be compiled for 0 or 1.

    `regions`: how many are fused, with none declined; None is any number. `declined`: the reasons of those
    that are. `shows`: what is true of the records. Errors are compared with those of eager, or `by_graph`
    with those of the unfused graph. `lies`: also strides are. `cancelled`: the size of the terms that a
    result is a difference of, if it is much larger.

    `after`: what becomes of a result outside of the compile, before its gradient is asked for. `setting`:
    what compiles plan with, besides a GPU of so few `multiprocessors` that programs have several tiles.
    `patches`: names of modules with other values, for small sizes.
    """

    make: Callable[[], Callable[..., Any]]
    shapes: tuple[Shape, ...]
    dtype: torch.dtype = f32
    given: Callable[..., Tensors] = lambda *drawn: drawn
    dims: tuple[Shape, ...] = ()
    more: tuple[int, ...] = (0,)
    dynamic: bool = False
    oblivious: bool = False
    regions: int | None = 1
    declined: tuple[str, ...] = ()
    shows: Callable[..., object] = lambda *records: True
    by_graph: bool = False
    lies: bool = False
    cancelled: float = 0.0
    after: Callable[[torch.Tensor], torch.Tensor] = lambda t: t
    multiprocessors: int = 5
    setting: dict[str, Any] = dataclasses.field(default_factory=dict)
    patches: tuple[tuple[Any, str, Any], ...] = ()

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        device = {"device": dataclasses.replace(H200, num_sm=self.multiprocessors)}
        with contextlib.ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(mock.patch.object(*patch))
            stack.enter_context(planning_with(**(device | self.setting)))
            stack.enter_context(fx_config.patch(backed_size_oblivious=self.oblivious))
            yield

    def inputs(self, more: int) -> Tensors:
        dims = self.dims or ((),) * len(self.shapes)
        sizes = [
            [n + more * (d in free) for d, n in enumerate(shape)]
            for shape, free in zip(self.shapes, dims, strict=True)
        ]
        return self.given(*(torch.randn(size).to(self.dtype) for size in sizes))


def of(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """`make` of a function."""
    return lambda: lambda *args: function(*args)


def random_weights(make: Callable[[], nn.Module], dtype: torch.dtype = f32) -> Callable[[], nn.Module]:
    """`make` of a module with parameters of random numbers: ones and zeros would hide an error."""

    def module() -> nn.Module:
        made = make()
        for parameter in made.parameters():
            nn.init.normal_(parameter)
        return made.to(dtype)

    return module


def results(entry: Entry, function: Callable[..., Any], module: Any, inputs: Tensors) -> Tensors:
    """What a function gives, or the gradients of its inputs and of a module's parameters."""
    if not isinstance(module, nn.Module):
        with torch.no_grad():
            return tuple(tree_leaves(function(*inputs)))
    leaves = [t.detach().requires_grad_() for t in inputs]
    outputs = list(map(entry.after, tree_leaves(function(*leaves))))
    generator = torch.Generator().manual_seed(1)
    dtype = inputs[0].dtype if inputs[0].dtype != torch.float64 else f32  # equal numbers in the reference
    seeds = [torch.randn(y.shape, generator=generator).to(dtype).to(y.dtype) for y in outputs]
    seeds = [torch.empty_like(y).copy_(seed) for y, seed in zip(outputs, seeds, strict=True)]
    wanted = [*leaves, *(p for p in module.parameters() if p.requires_grad)]
    return torch.autograd.grad(outputs, wanted, seeds)


def marked(entry: Entry, inputs: Tensors) -> Tensors:
    mark = torch._dynamo.maybe_mark_dynamic if entry.oblivious else torch._dynamo.mark_dynamic
    for tensor, dims in zip(inputs, entry.dims, strict=bool(entry.dims)):
        for d in dims:
            mark(tensor, d)
    return inputs


def run(entry: Entry) -> None:
    """Assert that an entry is fused and exact as it says, in one compile that adds no guard."""
    module, backend = entry.make(), Counting()
    torch._dynamo.reset()
    function = torch.compile(module, backend=backend, dynamic=entry.dynamic)
    compiles, moved = 0, list[str]()
    with entry.in_force(), collect() as records, watched(moved):
        for more in entry.more:
            inputs = entry.inputs(more)
            ours = results(entry, lambda *args: function(*marked(entry, args)), module, inputs)
            compare(entry, ours, module, inputs)
            compiles = compiles or backend.compiles
    assert backend.compiles == compiles and not moved, moved
    fused = [r for r in records if isinstance(r, RegionRecord)]
    declined = tuple(sorted(r.reason.value for r in records if not isinstance(r, RegionRecord)))
    assert declined == entry.declined or entry.regions is None, records
    assert len(fused) == entry.regions or entry.regions is None, records
    assert entry.shows(*fused), fused


def compare(entry: Entry, ours: Tensors, module: Any, inputs: Tensors) -> None:
    # Eager LayerNorm adds up in half precision on a CPU.
    by_graph = entry.by_graph or has_half_layer_norm(module, inputs[0].dtype)
    stock = results(entry, compiled(OFF)(module) if by_graph else module, module, inputs)
    if entry.lies and lie(ours) != lie(stock):
        stock = results(entry, compiled(OFF)(module), module, inputs)  # torch 2.14: eager's order is another
    assert not entry.lies or lie(ours) == lie(stock)
    wide = copy.deepcopy(module).double() if isinstance(module, nn.Module) else module
    exact = results(entry, wide, wide, tuple(t.double() if t.is_floating_point() else t for t in inputs))
    terms = max(1, sum(t.numel() for t in inputs))
    check(ours, stock, tuple(t.double() for t in exact), terms, entry.cancelled)


def lie(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The strides of the dims that have several elements."""
    return [[t.stride(d) for d, n in enumerate(t.shape) if n > 1] for t in tensors]
