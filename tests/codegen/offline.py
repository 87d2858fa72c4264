"""Kernels as machine code, compiled without a GPU, and what can be read off it."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
from devices import A100, B200, H200, L40S, MI300, RTX
from torch._inductor.codecache import PyCodeCache
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mixorder.codegen.source import KernelSource
from mixorder.inductor.kernels import pointer_type
from mixorder.ir.program import LoopProgram

needs_a_compiler = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="an interpreted kernel has no machine code"
)

Known = Callable[..., bool]
"""The fixture `known` of conftest.py."""

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), A100),
    "sm_89": (GPUTarget("cuda", 89, 32), L40S),
    "sm_90": (GPUTarget("cuda", 90, 32), H200),
    "sm_100": (GPUTarget("cuda", 100, 32), B200),
    "sm_120": (GPUTarget("cuda", 120, 32), RTX),
    "gfx942": (GPUTarget("hip", "gfx942", 64), MI300),
}

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@functools.cache
def compiled(program: LoopProgram, source: KernelSource, target: GPUTarget) -> Any:
    function = getattr(PyCodeCache.load(source.module_text), source.name)
    config = source.config
    constants = dict(config.constants)
    signature = {f"{name}_ptr": pointer_type(program.buffer(name).dtype) for name in source.buffers}
    signature.update(dict.fromkeys(source.sizes, "i32"))
    signature.update(dict.fromkeys(constants, "constexpr"))
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(source.buffers))}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    options["enable_fp_fusion"] = not source.exact
    if source.registers and target.backend == "cuda":
        options["maxnreg"] = source.registers
    return triton.compile(ASTSource(function, signature, constants, aligned), target=target, options=options)


def spilled(kernel: Any, folder: Path) -> int | None:
    """Bytes of stack and local memory per thread; None where cuobjdump does not know the target."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    done = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True)
    usage = re.search(r"REG:\d+ STACK:(\d+) .*?LOCAL:(\d+)", done.stdout)
    return int(usage[1]) + int(usage[2]) if usage else None


def sass(kernel: Any, folder: Path) -> list[str]:
    """The names of a kernel's instructions, without what is behind a point."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    done = subprocess.run([CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True)
    return re.findall(r"/\*[0-9a-f]{4}\*/ +(?:@!?U?P\w+ +)?([A-Z]\w*)", done.stdout)


def main_loop(ttgir: str) -> Iterator[str]:
    """The lines of the first `scf.for`, to its `scf.yield`."""
    lines = iter(ttgir.splitlines())
    for line in lines:
        if "scf.for" in line:
            indent = len(line) - len(line.lstrip())
            break
    for line in lines:
        if "scf.yield" in line and len(line) - len(line.lstrip()) == indent + 2:
            return
        yield line
