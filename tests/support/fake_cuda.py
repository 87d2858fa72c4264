"""A CUDA device for fake tensors on a machine without a GPU, with a CPU build of torch.

`load` compiles and loads a small library and must run before torch is imported: torch asks for a device's
hooks once, while it is imported. Graphs that are traced then are those of an H200: its autocast lists, its
attention, and Inductor's decompositions for a GPU. Nothing can be computed on the device.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")


def load(backward: bool = True) -> None:
    """Raises RuntimeError where torch is loaded already, is no CPU build, or no C++ compiler is found.
    Without `backward`, a build for CUDA will do: fake tensors need no driver."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is loaded already: the stand-in for CUDA has to come before it")
    if has_cuda():
        if backward:
            raise RuntimeError("this torch has CUDA of its own; the stand-in is for a CPU build")
        _pretend()
        return
    root = _root()
    library = _built(root)
    ctypes.CDLL(str(root / "lib" / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))
    _pretend()


def has_cuda() -> bool:
    """Whether torch is no CPU build; torch stays unloaded."""
    return bool(list(_root().glob("lib/libtorch_cuda.so")))


def _root() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise RuntimeError("torch is not installed")
    return Path(spec.origin).parent


def _built(root: Path) -> Path:
    """The library for the torch at `root`: it is compiled once per source and version of torch."""
    version = importlib.metadata.version("torch")
    name = hashlib.sha256(SOURCE.read_bytes() + version.encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"mixorder_fake_cuda_{os.getuid()}_{name}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CXX", "g++"), "-O1", "-std=c++20", "-shared", "-fPIC", str(SOURCE)]
        command += [f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(partial)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the stand-in for CUDA does not compile:\n{done.stderr[-2000:]}")
        partial.replace(library)
    return library


def _pretend() -> None:
    """Give torch's Python the answers of an H200. `torch.cuda.is_available` stays false: nothing can run."""
    import torch
    import torch.cuda.amp.common as amp

    properties = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        warp_size=32,
        total_memory=139 << 30,
        memory_clock_rate=3201000,
        memory_bus_width=6144,
        L2_cache_size=50 << 20,
        gcnArchName="",
    )
    amp.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: properties.name
    torch.cuda.current_device = lambda: 0
    torch.cuda.default_generators = (_generator(),)
    torch.autograd.set_multithreading_enabled(False)
    _fold_constants_on_cpu()
    import mixorder.region.legality as legality

    legality.has_triton = lambda: True


def _fold_constants_on_cpu() -> None:
    """Inductor computes constants of one element on the graph's device: let it do so on the CPU."""
    import torch
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class OnCpu(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs or {}))
            return func(*args, **kwargs)

    def on_cpu(method):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            with OnCpu():
                return method(*args, **kwargs)

        return call

    for name in ("__init__", "run"):
        setattr(UniformValueConstantFolder, name, on_cpu(getattr(UniformValueConstantFolder, name)))


def _generator() -> Any:
    """The device's random generator: checkpointing asks for its state and its device's number."""
    import torch

    class Generator(torch.Generator):
        device = torch.device("cuda:0")

        def clone_state(self) -> Generator:
            return Generator()

        def graphsafe_get_state(self) -> Generator:
            return self

        def graphsafe_set_state(self, state: torch.Generator) -> Generator:
            return self

    return Generator()
