"""On a GPU, the whole way: `torch.compile(options={"mixorder": True})`, launched by Inductor."""

import gradients
import pytest
import torch
from gradients import as_exact, case, errors, exact, grads
from graphs import Block
from support.compilers import STRICT
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config

MODES = {
    "default": {},
    "cudagraphs": {"triton.cudagraphs": True},
    "cpp_wrapper": {},
    "autotune": {"mixorder_autotune": True},
}


NORMS = gradients.NORMS | {"layer_no_bias": lambda n: nn.LayerNorm(n, bias=False)}


@pytest.fixture
def mode(request):
    """The options of a mode. torch forgets `cpp_wrapper`, given as an option, in the backward."""
    with config.patch(cpp_wrapper=request.param == "cpp_wrapper"):
        yield MODES[request.param]


def compiled(module, x, dy, options=STRICT):
    """Gradients of a fresh compile."""
    counters["mixorder"].clear()
    torch._dynamo.reset()
    return grads(torch.compile(module, options=options, dynamic=False), module, x, dy)


def check(module, x, dy, options, regions, factor=1.05, more=1e-7):
    ours = compiled(module, x, dy, STRICT | options)
    assert counters["mixorder"]["fused_regions"] == regions
    as_exact(ours, compiled(module, x, dy, {"mixorder": False}), exact(module, x, dy), factor, more)


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("norm", NORMS)
def test_norm_in_every_mode(norm, mode):
    check(*case(NORMS[norm], (3, 411, 768), torch.bfloat16), mode, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [1, 7, 64, 100, 768, 1024, 4097, 8192, 16384])
@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize("norm", NORMS)
def test_shapes_against_float64(norm, rows, cols, dtype):
    module, x, dy = case(NORMS[norm], (rows, cols), dtype)
    ours = compiled(module, x, dy)
    if cols > 1:  # with one column dx and dw are rounding noise around zero
        stock, truths = compiled(module, x, dy, {"mixorder": False}), exact(module, x, dy)
        as_exact(ours, stock, truths, 1.05, 4 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_block_fuses_every_norm(mode):
    check(*case(Block, (4, 256, 512), torch.bfloat16), mode, 4, 1.1, 1e-6)


def test_offsets_beyond_two_to_the_31():
    rows, cols = 2**22 + 5, 513
    module, x, dy = case(NORMS["rms"], (rows, cols), torch.bfloat16)
    dx, dw = compiled(module, x, dy)
    assert counters["mixorder"]["fused_regions"] == 1
    exact_dw = torch.zeros(cols, device="cuda", dtype=torch.float64)
    for part in range(0, rows, 2**19):
        chunk = slice(part, part + 2**19)
        exact_dx, partial = exact(module, x[chunk], dy[chunk])
        exact_dw += partial
        assert errors([dx[chunk]], [exact_dx])[0] < 0.01
    assert errors([dw], [exact_dw])[0] < 0.01
