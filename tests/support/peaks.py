"""Peak memory of a training step on a machine without a GPU: Inductor's wrapper code runs on fake tensors.

What runs is the code that Inductor writes, with kernels that do nothing. So allocations, reuse and `del` are
what a GPU sees; the memory that libraries take for themselves is missing. Needs `fake_cuda.load` before torch
is imported.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from unittest import mock

import torch
import torch._inductor.scheduler as scheduler
import triton
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.output_code import CompiledFxGraph
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixorder.inspection.backward import gradients, roots_of
from mixorder.inspection.meta import faked

from .stand_in import Driver, Nothing

PIECE = 512  # bytes: torch's allocator rounds to multiples


class Held(TorchDispatchMode):
    """Counts the bytes of tensors made while it is on, until they are freed. `peak`, and `at`: the line of
    generated code that made what reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self.at = 0, 0, ""
        self.alive: set[int] = set()

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage._cdata) in self.alive:
            return
        size = -(-storage.nbytes() // PIECE) * PIECE
        self.alive.add(key)
        self.now += size
        weakref.finalize(storage, self._free, key, size).atexit = False
        if self.now > self.peak:
            self.peak, self.at = self.now, _line()

    def _free(self, key: int, size: int) -> None:
        self.alive.remove(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_cuda:
                self.add(leaf)
        return result


def _line() -> str:
    """The innermost line of a generated module's `call`."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "call":
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame is not None else ""


def peak(model: nn.Module, inputs: dict[str, Any], **options: Any) -> Held:
    """What a compiled forward and backward hold at most, with a model and inputs on the meta device, and the
    inputs and parameters themselves. `options`: of Inductor."""
    model, inputs = faked(model, inputs, "cuda")
    given = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
    given += [*model.parameters(), *model.buffers()]
    held = Held()
    torch._dynamo.reset()
    with _playing(held), _mode_of(given[0]):
        for tensor in given:
            held.add(tensor)
        compiled = torch.compile(model, dynamic=False, options={"fx_graph_cache": False, **options})
        roots = roots_of(compiled(**inputs))
        gradients(roots, [p for p in model.parameters() if p.requires_grad])
    return held


def _mode_of(tensor: Any) -> FakeTensorMode:
    mode: FakeTensorMode = tensor.fake_mode
    return mode


@contextlib.contextmanager
def _playing(held: Held) -> Iterator[None]:
    """Generated modules allocate fake tensors and launch nothing; `held` is on while they run."""
    call: Any = CompiledFxGraph.__call__

    def counted(self: CompiledFxGraph, inputs: Any) -> Any:
        with held:
            return call(self, inputs)

    def empty(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def view(tensor: Tensor, size: Any, stride: Any, offset: int = 0) -> Tensor:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    def nothing(*_: Any, **__: Any) -> int:
        return 0

    triton.runtime.driver.set_active(Driver())
    guards = torch._C._dynamo.guards
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (CompiledFxGraph, "__call__", counted),
            (AsyncCompile, "triton", lambda *_, **__: Nothing()),
            (AsyncCompile, "wait", nothing),
            (guards, "_empty_strided_cuda", empty),
            (guards, "_reinterpret_tensor", view),
            (guards, "assert_size_stride", nothing),
            (guards, "assert_alignment", nothing),
            (torch._C, "_cuda_getCurrentRawStream", nothing),
            (torch.cuda, "_DeviceGuard", _Anywhere),
            (torch.cuda, "set_device", nothing),
            (scheduler, "has_triton", lambda *_: True),
        ):
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


class _Anywhere:
    def __init__(self, index: int) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
