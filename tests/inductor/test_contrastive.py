"""Losses along both dims of one tensor, as in graphs for a GPU, and graphs in which there is no region."""

from __future__ import annotations

import pytest
import torch
from support.stand_in import ON_A_GPU, found

SCRIPT = """
import json, re
import torch, torch.nn.functional as F
from torch._inductor.graph import GraphLowering
from support.peaks import Held, _playing
from torch.utils.checkpoint import checkpoint
from mixorder.inspection.meta import faked
from mixorder.report import RegionRecord, collect
import mixorder

def contrastive(l, y):
    return F.cross_entropy(l.float(), y) + F.cross_entropy(l.float().t(), y)

def clip(l, y):
    return (F.cross_entropy(l, y) + F.cross_entropy(l.t(), y)) / 2

def transposed(l, y):
    return l.float().t().logsumexp(-1).sum() + (l * 2).float().logsumexp(-1).sum()

def sums(l, y):
    return (l.sum(1) * l.t().exp().sum(-1)).sum()

def sigmoid(l, y):
    return F.logsigmoid((2 * torch.eye(l.shape[0], device=l.device) - 1) * l).sum()

def labels(l, y):
    return F.cross_entropy(l, y)

def gated(l, y):
    return (F.silu(l) @ F.gelu(l)).square().mean()

def routed(l, y, again=True):
    "A router in a checkpoint. Its rows are so short that the backward adds them up again."
    def layer(l):
        p = l.reshape(-1, 8).float().softmax(-1)
        return p, p.mean(0)
    p, share = checkpoint(layer, l, use_reentrant=False) if again else layer(l)
    return p.topk(2, -1).values.square().sum() + share.square().sum()

codes = []
original = GraphLowering.codegen
def codegen(graph):
    made = original(graph)
    codes.append(re.sub("# AOT ID: .*", "", made[0].value))
    return made
GraphLowering.codegen = codegen

def step(function, n, **options):
    torch._dynamo.reset()
    codes.clear()
    tensors = torch.empty(n, n, dtype=torch.bfloat16), torch.empty(n, dtype=torch.int64)
    function, args = faked(function, tensors, "cuda")
    with collect() as records, _playing(Held()), args[0].fake_mode:
        options = {"fx_graph_cache": False, "mixorder_strict": True, **options}
        compiled = torch.compile(lambda *given: function(*given), dynamic=False, options=options)
        compiled(args[0].requires_grad_(), args[1]).backward()
    fused = [r for r in records if isinstance(r, RegionRecord)]
    return list(codes), [str(r.space) for r in fused], [k.text for r in fused for k in r.kernels]

both = {f.__name__: step(f, 8192, mixorder=True)[1] for f in (contrastive, clip, transposed, sums)}
same = {}
for function, n in ((sigmoid, 4096), (labels, 4096), (gated, 1024), (contrastive, 64), (sums, 64)):
    ours, regions, _ = step(function, n, mixorder=True)
    stock, *_ = step(function, n, mixorder=False)
    same[f"{function.__name__} {n}"] = [len(regions), len(ours), ours == stock]
def sums_of_rows(function):
    *_, texts = step(function, 1024, mixorder=True, mixorder_min_numel=0)
    return len(re.findall(r"tl\\.sum\\(\\w+, 1\\)", "".join(texts)))

once = sums_of_rows(lambda l, y: routed(l, y, False))
print(json.dumps([both, same, [once, sums_of_rows(routed)]]))
"""

Results = tuple[dict[str, list[str]], dict[str, list[int]], list[int]]


@pytest.fixture(scope="module")
def results() -> Results:
    if torch.version.cuda is not None:
        pytest.skip("the stand-in for CUDA is for a CPU build")
    return tuple(found(SCRIPT, ON_A_GPU))


def test_reductions_of_a_tensor_and_of_its_transpose_are_one_region(
    results: Results,
) -> None:
    both, *_ = results
    assert both.pop("contrastive") == both.pop("clip") == both.pop("sums") == ["8192x8192"]
    assert "8192x8192" in both.pop("transposed") and not both


def test_a_graph_without_a_region_is_stocks_own_code(
    results: Results,
) -> None:
    """The forward's, and the backward's. Values in half precision that are compared, and sums in checkpointed
    layers, are marked before it is known what is fused: such graphs may differ."""
    _, same, _ = results
    assert same and all(found == [0, 2, True] for found in same.values()), same


def test_a_softmax_that_is_recomputed_is_left_to_inductor(results: Results) -> None:
    """In a region, its sums would have other bits than where the other graph computes them."""
    *_, (once, again) = results
    assert once == 1 and again == 0
