"""On a GPU: reductions of every dtype into every dtype, effects in their order, launches with no rows."""

import pytest
import torch
from reduced_dtypes import CASES, case_name, program
from support.compilers import STRICT
from torch._inductor import config

from mixorder.report import RegionRecord, collect


def half_integers(rows, cols):
    x, y = ((torch.randint(1, 5, (rows, cols)) / 2).cuda() for _ in range(2))
    x[:, 0] += 100 * cols
    return x, y * torch.where(torch.rand(rows, cols, device="cuda") < 0.4, -1.0, 1.0)


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
@pytest.mark.parametrize("chosen", CASES, ids=case_name)
def test_a_reduction_is_computed_in_its_own_dtype(chosen, inside):
    x, y = half_integers(3000, 40)
    with collect() as records:
        ours = torch.compile(program(chosen, inside), options=STRICT, dynamic=False)(x, y)
    assert any(isinstance(r, RegionRecord) for r in records)
    for mine, truth, name in zip(ours, program(chosen, inside)(x, y), ["z", "dw", *chosen * 2], strict=True):
        assert (mine.dtype, mine.shape) == (truth.dtype, truth.shape)
        if truth.is_floating_point():
            places = 8 * torch.finfo(truth.dtype).eps
            torch.testing.assert_close(mine, truth, rtol=places, atol=places, equal_nan=True, msg=str(name))
        else:
            assert torch.equal(mine.view(torch.uint8), truth.view(torch.uint8)), str(name)


@pytest.mark.parametrize("rows", [100, 200])
def test_random_operators_keep_their_order(rows):
    """As without mixorder, also where one of two sizes is too small for a region."""
    x, y = (torch.randn(rows, 256, device="cuda") for _ in range(2))
    w = torch.randn(256, 256, device="cuda")

    def function(x, y, w):
        first = torch.multinomial((x * y).sum(0).sigmoid(), 8)
        second = torch.rand(256, device="cuda")
        late = y @ w + second
        return late - x * (x * late).sum(-1, keepdim=True), first, second

    def seeded(options):
        torch._dynamo.reset()
        torch.manual_seed(3)
        return torch.compile(function, options=options)(x, y, w)

    with config.patch(fallback_random=True):
        stock = seeded({"fx_graph_cache": False})
        for least in (0, 150 * 256):
            ours = seeded(STRICT | {"mixorder_min_numel": least})
            assert torch.equal(ours[1], stock[1]) and torch.equal(ours[2], stock[2])


@pytest.mark.parametrize("cols", [64, 16400], ids=["persistent", "cooperative"])
@pytest.mark.parametrize("first", [6, 0])
def test_a_module_compiled_for_any_number_of_rows(cols, first):
    from torch.fx.experimental import _config as fx_config

    module = torch.nn.RMSNorm(cols, device="cuda")
    with fx_config.patch(backed_size_oblivious=True):
        compiled = torch.compile(module, options=STRICT)
        for batch in (first, 0, 1, 5):
            x = torch.randn(batch, 7, cols, device="cuda", requires_grad=True)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            dy = torch.randn(batch, 7, cols, device="cuda")
            inputs = [x, module.weight]
            ours = torch.autograd.grad(compiled(x), inputs, dy)
            for mine, truth in zip(ours, torch.autograd.grad(module(x), inputs, dy), strict=True):
                torch.testing.assert_close(mine, truth, rtol=1e-4, atol=1e-3)
