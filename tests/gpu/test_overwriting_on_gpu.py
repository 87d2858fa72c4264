"""On a GPU: a dx that is written over dy is the same but for rounding, and needs less memory.

Not the same bits: from one compile to the next Inductor may choose other kernels for a forward, by timing.
"""

from __future__ import annotations

import pytest
import torch
from graphs import Block, HFRMSNorm, bf16, f32, randomised
from torch import nn

from mixorder import pipeline
from mixorder.report import RegionRecord, collect

# A hit in the cache of graphs would run no pass.
STRICT = {"mixorder": True, "mixorder_strict": True, "fx_graph_cache": False}
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hf": HFRMSNorm}


def requested(what: str) -> int:
    """Bytes without what the allocator adds: up to 1 MiB of a free block that it does not split. How much
    that is depends on what was allocated before."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{what}"])


def gradients(
    module: nn.Module, x: torch.Tensor, dy: torch.Tensor, **options: bool
) -> tuple[list[torch.Tensor], int, int]:
    """Gradients, twice; how many inputs were overwritten; and what the second backward takes in bytes."""
    torch._dynamo.reset()
    with collect() as records:
        compiled = torch.compile(module, options={**STRICT, **options}, dynamic=False)
        found = []
        for _ in range(2):
            y = compiled(x)
            torch.cuda.reset_peak_memory_stats()
            before = requested("current")
            found += torch.autograd.grad(y, [x, *module.parameters()], dy)
    kernels = [record.kernels[0] for record in records if isinstance(record, RegionRecord)]
    over = sum(name.startswith("in") for kernel in kernels for name in kernel.written)
    return found, over, requested("peak") - before


def compare(
    norm: str, dim: int, dtype: torch.dtype, least: int, monkeypatch: pytest.MonkeyPatch, **options: bool
) -> tuple[int, int]:
    """Gradients with `least` inputs overwritten or more are those with none; the bytes that each takes."""
    torch.manual_seed(0)
    module = nn.Sequential(*(Block(dim, NORMS[norm]) for _ in range(2)))
    module = randomised(module, dtype).cuda()
    x, dy = (torch.randn(4, 1021, dim, device="cuda", dtype=dtype) for _ in range(2))
    x.requires_grad_()
    ours, count, peak = gradients(module, x, dy, **options)
    monkeypatch.setattr(pipeline, "dead_after", lambda *_: ())
    separate, none, higher = gradients(module, x, dy, **options)
    assert count >= least and none == 0
    bound = 1e-5 if dtype == f32 else 2e-2
    for mine, theirs in zip(ours, separate, strict=True):
        assert float((mine.double() - theirs.double()).norm()) <= bound * float(theirs.double().norm())
    return peak, higher


# By default Inductor finds out by timing, from compile to compile, whether to pad products of odd width.


@pytest.mark.parametrize("dtype", [bf16, f32])
@pytest.mark.parametrize("dim", [256, 768, 1030, 4096])
@pytest.mark.parametrize("norm", NORMS)
def test_same_gradients_in_less_memory(
    norm: str, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Results that matrix products read have gaps between unaligned rows, and need memory of their own.
    least = 3 if dim % 8 == 0 else 2
    peak, higher = compare(norm, dim, dtype, least, monkeypatch, shape_padding=False)
    assert peak <= higher


def test_of_padded_products_a_part_is_a_copy_or_has_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    # No assertion on memory: copies come and go, and two compiles of the same differ by up to 6%. A gradient
    # is a part of a padded product or leaves gaps, so that there may be nothing to overwrite.
    compare("layer", 1030, bf16, 0, monkeypatch, force_shape_pad=True)
