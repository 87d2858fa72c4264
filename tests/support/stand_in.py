"""What stands in for a GPU where Inductor's code is wanted and no GPU is there, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
OURS = {"mixorder": True, "mixorder_strict": True, "mixorder_interpret": True, "mixorder_min_numel": 0}


def found(script: str, **env: str) -> Any:
    """What a script prints last, as JSON. Inductor's caches are off, or nothing would be compiled."""
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    caches_off = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **caches_off, "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


class Driver:
    """As much of Triton's driver for a GPU as its analysis of kernels needs."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> None: ...


class Nothing:
    """In place of a kernel."""

    def __call__(self, *_: Any, **__: Any) -> None: ...

    def run(self, *_: Any, **__: Any) -> None: ...


def codes() -> list[str]:
    """Make the stand-ins active in this process. The list gets the code of each graph that is compiled."""
    import triton
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    made: list[str] = []
    codegen: Any = GraphLowering.codegen

    def kept(graph: Any) -> Any:
        code, lines = codegen(graph)
        made.append(code.value)
        return code, lines

    GraphLowering.codegen = kept  # type: ignore[method-assign]
    AsyncCompile.cpp_pybinding = AsyncCompile.triton = lambda *_, **__: Nothing()
    triton.runtime.driver.set_active(Driver())
    return made
