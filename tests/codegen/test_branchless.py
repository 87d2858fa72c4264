"""Functions without branches: what they compute by PyTorch, and where the library is called. Their PTX is run
on a GPU (tests/gpu/test_assembly_on_gpu.py), and digests hold it."""

from __future__ import annotations

import graphs
import pytest
import torch
from graphs import f32

from mixorder.codegen.branchless import FUNCTIONS as OURS
from mixorder.inductor.config import patched
from mixorder.ir.rewriting import rewritten
from mixorder.transform.branches import FUNCTIONS, OF_EAGER, PREFIX, without_branches


@pytest.mark.parametrize("function", sorted(FUNCTIONS | OF_EAGER))
def test_the_meaning(function: str) -> None:
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([0.0, float("inf"), float("nan")])])
    found = OURS[PREFIX + function].meaning(x)
    assert torch.allclose(found, getattr(torch, function)(x.double()).float(), equal_nan=True)


def gelu(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return dx, dx.sum(0)


def test_where_the_library_is_called() -> None:
    full = ((4096, 512), f32)
    graph = graphs.traced(gelu, full, full)
    main, _ = graphs.kernels(graphs.only(graph))[2]
    assert "libdevice.tanh" not in main.text and "branchless_tanh" in main.text
    amd = graphs.merged(graphs.only(graph), runs_ptx=False)
    assert "tanh" in {getattr(s, "op", "") for s in amd.nests[0].body}
    with patched({"use_fast_math": True}):
        assert rewritten(amd, without_branches) == amd
    assert rewritten(amd, without_branches) != amd
