"""What `tools/family.py` does without a GPU: its counting of bytes.

Bytes are counted on Inductor's own scheduled kernels, in a process of its own with a stand-in for the driver.
"""

from pathlib import Path

import pytest
from support import stand_in

TOOLS = Path(__file__).resolve().parents[2] / "tools"

SCRIPT = """
import json, torch, triton
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from family import ByteCount
from support.stand_in import Driver
from mixorder.report import collect

class Stop(Exception):
    pass

class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(1000)
    def forward(self, x):
        y = self.norm(x)
        return torch.cat((y, y.sin()), -1)

class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(1000), nn.Linear(1000, 1000, bias=False)
    def forward(self, x):
        return self.mix(self.norm(x))

original = GraphLowering._compile_to_module
def stop_in_backward(graph):
    if not graph.is_backward:
        return original(graph)
    graph.codegen()
    raise Stop

triton.runtime.driver.set_active(Driver())
GraphLowering._compile_to_module = stop_in_backward
AsyncCompile.cpp_pybinding = lambda *_, **__: lambda *args: None  # what the forward computes is not looked at
models = {"sliced": Sliced, "product": Product, "plain": lambda: nn.LayerNorm(1000)}
def counted(model, on):
    torch._dynamo.reset()
    with collect() as records:
        count = ByteCount(records)
        options = {"mixorder": on, "_post_fusion_custom_pass": count}
        if on:
            options |= {"mixorder_strict": True, "mixorder_interpret": True, "mixorder_min_numel": 0}
        y = torch.compile(model, options=options, dynamic=False)(torch.randn(512, 1000, requires_grad=True))
        try:
            y.sum().backward()
        except Exception as error:
            assert "Stop" in repr(error), error
    return count.forward, count.backward, len(records)

print(json.dumps({name: [counted(model(), on) for on in (False, True)] for name, model in models.items()}))
"""

FULL, VECTOR, STATISTIC = 512 * 1000 * 4, 1000 * 4, 512 * 4


Bytes = dict[str, tuple[tuple[int, int], tuple[int, int]]]


@pytest.fixture(scope="module")
def counted() -> Bytes:
    """By model: bytes of forward and backward, stock's and ours."""
    found = stand_in.found(f"import sys; sys.path.insert(0, {str(TOOLS)!r})\n{SCRIPT}")
    assert [(stock[2], ours[2]) for stock, ours in found.values()] == [(0, 1)] * 3  # regions
    return {model: (tuple(stock[:2]), tuple(ours[:2])) for model, (stock, ours) in found.items()}


def test_bytes_of_a_layer_norm(counted: Bytes) -> None:
    stock, ours = counted["plain"]
    forward = 2 * FULL + 2 * VECTOR + 2 * STATISTIC
    # dx from dy, x, w, mean, rstd; then dw and db from dy, x, mean, rstd.
    assert stock == (forward, 3 * FULL + VECTOR + 2 * STATISTIC + 2 * FULL + 2 * STATISTIC + 2 * VECTOR)
    # Everything once; the partial sums of dw and db are left out.
    assert ours == (forward, 3 * FULL + VECTOR + 2 * STATISTIC + 2 * VECTOR)


def test_bytes_of_two_views_of_one_tensor(counted: Bytes) -> None:
    """dy comes as the halves of a tensor of twice the width, each passed to the kernel."""
    _, (_, backward) = counted["sliced"]
    # x, both halves of dy, dx; w and b (sin's argument is recomputed), dw and db; mean, rstd.
    assert backward == 4 * FULL + 4 * VECTOR + 2 * STATISTIC


def test_bytes_of_a_dx_that_is_written_over_dy(counted: Bytes) -> None:
    """Read and written: as many bytes as two tensors. The products count as they do in stock."""
    (_, stock), (_, ours) = counted["product"]
    again = 2 * FULL + 2 * STATISTIC  # what stock's second kernel reads of the norm's inputs
    assert stock - ours == again
