"""The tiles of Inductor's loops that read what our kernels have written, without a GPU.

Inductor's Triton code of a backward is written up to loading it, in a process of its own: a stand-in for the
GPU driver is made active there. Tiles are chosen for a CPU as they are for a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from types import SimpleNamespace

import pytest
from support.stand_in import found

from mixorder.inductor import tiling

SCRIPT = """
import json, torch, triton
import torch._inductor.config as config
import torch._inductor.scheduler as scheduler
from support.stand_in import OURS, Driver
from torch._inductor.graph import GraphLowering

class Stop(Exception):
    pass

def norm_of_channels(x, positions, weight, bias):
    rows = (x @ positions).view(3, 72, 77).transpose(1, 2)
    return torch.nn.functional.layer_norm(rows, (72,), weight, bias)

def keep_code(graph):
    code, _ = graph.codegen()
    made.append(code.value)
    raise Stop

made = []

triton.runtime.driver.set_active(Driver())
scheduler.has_triton = lambda *_: True
original = GraphLowering._compile_to_module
for ours in (True, False):
    torch._dynamo.reset()
    options = OURS if ours else {"mixorder": False}
    compiled = torch.compile(norm_of_channels, options=options, dynamic=False)
    shapes = (216, 32), (32, 77), (72,), (72,)  # 64 channels would be a block of the forward
    y = compiled(*(torch.randn(shape, requires_grad=True) for shape in shapes))
    GraphLowering._compile_to_module = keep_code
    try:
        with config.patch(cpu_backend="triton"):
            y.sin().sum().backward()
    except Exception as error:
        assert "Stop" in repr(error), error
    finally:
        GraphLowering._compile_to_module = original
print(json.dumps(made))
"""


@functools.cache
def codes() -> list[str]:
    """The backward's code with mixorder, and without."""
    made: list[str] = found(SCRIPT)
    return made


def loops(code: str) -> list[str]:
    """The text of each pointwise kernel of Inductor's."""
    return re.findall(r"^triton_poi_\w+ = async_compile\.triton\(.*?^'''", code, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("ours", [True, False])
def test_a_loop_has_a_tile_over_both_dims_that_its_tensors_are_contiguous_along(ours: bool) -> None:
    """The norm's rows are channels, and a matrix product reads their gradient with positions as rows.
    Inductor had copied a result of ours along the positions alone: five times as long on a GPU."""
    code = codes()[0 if ours else 1]
    assert ("triton_mixorder_" in code) == ours
    transposing = [text for text in loops(code) if "transpose" in text.split(" ")[0]]
    assert transposing and all("XBLOCK" in text and "YBLOCK" in text for text in transposing)


@dataclasses.dataclass(frozen=True)
class Reads:
    reads: tuple[SimpleNamespace, ...]

    def rename(self, names: dict[str, str]) -> Reads:
        return Reads(tuple(SimpleNamespace(name=names.get(r.name, r.name)) for r in self.reads))


@dataclasses.dataclass(frozen=True)
class NotYetFused:
    """As 2.15's view of nodes that it may fuse: frozen, and without a scheduler of its own."""

    nodes: tuple[SimpleNamespace, ...]
    read_writes: Reads

    def get_nodes(self) -> tuple[SimpleNamespace, ...]:
        return self.nodes


@pytest.mark.parametrize("written", ["buf1", "buf2"])
def test_nodes_that_may_be_fused_are_read_by_names_in_loops(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setattr(tiling, "launches_ours", lambda operation: operation == "ours")
    buffers = {written: SimpleNamespace(defining_op="ours")}
    scheduler = SimpleNamespace(mutation_real_name={written: "buf0"}, name_to_buf=buffers)
    reads = Reads((SimpleNamespace(name="buf1"), SimpleNamespace(name="buf3")))
    node = NotYetFused((SimpleNamespace(scheduler=scheduler),), reads)
    seen = tiling.by_names_in_loops(lambda node: [read.name for read in node.read_writes.reads], node)
    assert seen == ["buf0" if written == "buf1" else "buf1", "buf3"]
    assert node.read_writes is reads
