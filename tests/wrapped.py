"""Run what Inductor makes of a fused graph without a GPU: its own wrapper code, with our kernels interpreted.

`tests/interpreter` runs the FX graph, so it cannot see the buffers that Inductor lays out, shares and reuses.
Here the wrapper code itself runs on the CPU, C++ kernels included. Only a launch of one of our kernels is
handed to a second process, since Triton's code generation and its interpreter exclude each other in one.

Use: run a script with `python`, that calls `install()` before its first compile and then compiles with
`OPTIONS`. Memory that Inductor allocates starts full of NaN.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

OPTIONS = {"mixorder": True, "mixorder_strict": True, "mixorder_interpret": True, "mixorder_min_numel": 0}

launches: list[tuple[str, tuple[Any, ...]]] = []
"""Per launch of one of our kernels: its name, and for each argument its size, or a tensor's size, stride
and storage offset."""


def install() -> None:
    """Give this process a stand-in for the GPU driver, interpreted launches, and poisoned allocations."""
    import triton
    from support.stand_in import Driver
    from torch._inductor.async_compile import AsyncCompile

    triton.runtime.driver.set_active(Driver())
    interpreter = _Interpreter()
    AsyncCompile.triton = lambda self, name, source, **_: _Kernel(interpreter, name, source)
    guards: Any = torch._C._dynamo.guards
    guards._empty_strided_cpu = _poisoned(guards._empty_strided_cpu)


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def empty_strided_cpu(*args: Any) -> torch.Tensor:
        result = allocate(*args)
        return result.fill_(float("nan")) if result.is_floating_point() else result

    return empty_strided_cpu


class _Kernel:
    """Stands where Inductor's wrapper has a compiled Triton kernel."""

    def __init__(self, interpreter: _Interpreter, name: str, source: str) -> None:
        self.interpreter, self.name, self.source = interpreter, name, source

    def run(self, *args: Any, stream: Any) -> None:
        *args, x, y, z = args
        described = tuple(
            (tuple(a.shape), a.stride(), a.storage_offset()) if isinstance(a, torch.Tensor) else a
            for a in args
        )
        launches.append((self.name, described))
        self.interpreter.run(self.name, self.source, args, (x, y, z))


class _Interpreter:
    """The other process; tensors travel as the bytes of their storages, and aliases stay aliases."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )

    def run(self, name: str, source: str, args: list[Any], grid: tuple[int, int, int]) -> None:
        storages = {a.untyped_storage().data_ptr(): _bytes(a) for a in args if isinstance(a, torch.Tensor)}
        sent = [
            (a.untyped_storage().data_ptr(), a.dtype, tuple(a.shape), a.stride(), a.storage_offset())
            if isinstance(a, torch.Tensor)
            else a
            for a in args
        ]
        content = {place: bytes(b.numpy()) for place, b in storages.items()}
        assert self.process.stdin is not None and self.process.stdout is not None
        pickle.dump((name, source, sent, content, grid), self.process.stdin)
        self.process.stdin.flush()
        for place, data in pickle.load(self.process.stdout).items():
            storages[place].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All of the tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _serve() -> None:
    """Interpret launches until the other side closes the pipe."""
    import triton.language.extra as extra
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_helpers, triton_heuristics

    from mixorder.plugin import prepare_interpreter

    prepare_interpreter()
    extra.libdevice = triton_helpers.libdevice  # whence Inductor 2.15 imports it for kernels of others
    triton_heuristics.user_autotune = lambda configs, **_: lambda function: (configs[0], function)
    results, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            name, source, sent, content, grid = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        storages = {k: torch.frombuffer(bytearray(v), dtype=torch.uint8) for k, v in content.items()}
        args = [
            torch.empty(0, dtype=a[1]).set_(storages[a[0]].untyped_storage(), a[4], a[2], a[3])
            if isinstance(a, tuple)
            else a
            for a in sent
        ]
        config, function = getattr(PyCodeCache.load(source), name)
        constants = {k: v for k, v in config.items() if k not in ("num_warps", "num_stages")}
        function[grid](*args, **constants)
        pickle.dump({k: bytes(v.numpy()) for k, v in storages.items()}, results)
        results.flush()


if __name__ == "__main__":
    _serve()
