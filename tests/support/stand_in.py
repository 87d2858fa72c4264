"""What stands in for a GPU where Inductor's code is wanted and no GPU is there, in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
OURS = {"mixorder": True, "mixorder_strict": True, "mixorder_interpret": True, "mixorder_min_numel": 0}

COMPILES = "import torch, mixorder; torch.compile(torch.sin)(torch.ones(2))"
ON_A_GPU = f"from support import fake_cuda; fake_cuda.load(); {COMPILES}"

SERVER = """
import json, os, signal, sys
{first}
for line in sys.stdin:
    code, out, err = json.loads(line)
    if (child := os.fork()) == 0:
        signal.alarm(900)
        for file, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), file)
        exec(code, {{"__name__": "__main__"}})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@functools.cache
def _server(first: str, **env: str) -> subprocess.Popen[str]:
    """A process that has run `first`, and runs what it reads in forks of itself. It ends with this one."""
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    # With Inductor's caches, nothing would be compiled; what compiles in threads cannot be forked.
    config = dict.fromkeys(("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"), "0")
    config["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    return subprocess.Popen(
        [sys.executable, "-c", SERVER.format(first=first)],
        env={**os.environ, **config, "PYTHONPATH": paths, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def found(script: str, first: str = COMPILES, **env: str) -> Any:
    """What a script prints last, as JSON. It goes on in a process that has run `first`, and compiled."""
    server = _server(first, **env)
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        print(json.dumps([script, str(out), str(err)]), file=server.stdin, flush=True)
        status = server.stdout.readline().strip()
        assert status == "0", f"{status}: {err.read_text()[-5000:] if err.exists() else 'no process'}"
        return json.loads(out.read_text().splitlines()[-1])


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
