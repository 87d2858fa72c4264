"""On a GPU, the whole way: `torch.compile(options={"mixorder": True})`, launched by Inductor."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

pytestmark = pytest.mark.gpu

# A hit in the cache of graphs would run no pass.
STRICT = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0, "fx_graph_cache": False}
MODES = {
    "default": {},
    "cudagraphs": {"triton.cudagraphs": True},
    "cpp_wrapper": {},
    "autotune": {"mixorder_autotune": True},
}


class HFRMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


class Block(nn.Module):
    def __init__(self, dim, norm=nn.LayerNorm):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = norm(dim), norm(dim), norm(dim)
        self.mix, self.up, self.down = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(2 * dim, dim),
        )

    def forward(self, x):
        x = x + self.mix(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.norm3(x)


NORMS = {
    "layer": nn.LayerNorm,
    "layer_no_bias": lambda n: nn.LayerNorm(n, bias=False),
    "rms": lambda n: nn.RMSNorm(n, eps=1e-6),
    "hf": HFRMSNorm,
}


def randomised(module, dtype):
    module = module.cuda()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_()
    return module.to(dtype)


def gradients(function, module, x, dy):
    x = x.detach().requires_grad_()
    torch._dynamo.reset()
    return torch.autograd.grad(function(x), [x, *module.parameters()], dy)


def errors(grads, references):
    return [float((g.double() - r).norm() / r.norm()) for g, r in zip(grads, references, strict=True)]


def reference(module, x, dy):
    exact = copy.deepcopy(module).double()
    return gradients(exact, exact, x.double(), dy.double())


@pytest.fixture
def mode(request):
    """The options of a mode. torch forgets `cpp_wrapper`, given as an option, in the backward."""
    with config.patch(cpp_wrapper=request.param == "cpp_wrapper"):
        yield MODES[request.param]


def compile_and_grad(module, x, dy, options):
    counters["mixorder"].clear()
    torch._dynamo.reset()
    compiled = torch.compile(module, options=options, dynamic=False)
    return gradients(compiled, module, x, dy)


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("norm", NORMS)
def test_norm_in_every_mode(norm, mode):
    module = randomised(NORMS[norm](768), torch.bfloat16)
    x, dy = (torch.randn(3, 411, 768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = compile_and_grad(module, x, dy, STRICT | mode)
    assert counters["mixorder"]["fused_regions"] == 1
    exact = reference(module, x, dy)
    stock = compile_and_grad(module, x, dy, {"mixorder": False})
    for mine, theirs in zip(errors(ours, exact), errors(stock, exact), strict=True):
        assert mine <= theirs * 1.05 + 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [1, 7, 64, 100, 768, 1024, 4097, 8192, 16384])
@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize("norm", NORMS)
def test_shapes_against_float64(norm, rows, cols, dtype):
    module = randomised(NORMS[norm](cols), dtype)
    x, dy = (torch.randn(rows, cols, device="cuda", dtype=dtype) for _ in range(2))
    ours = compile_and_grad(module, x, dy, STRICT)
    exact = reference(module, x, dy)
    stock = compile_and_grad(module, x, dy, {"mixorder": False})
    for mine, theirs in zip(errors(ours, exact), errors(stock, exact), strict=True):
        if cols > 1:  # with one column dx and dw are rounding noise around zero
            assert mine <= theirs * 1.05 + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_block_fuses_every_norm(mode):
    module = randomised(Block(512), torch.bfloat16)
    x, dy = (torch.randn(4, 256, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = compile_and_grad(module, x, dy, STRICT | mode)
    assert counters["mixorder"]["fused_regions"] == 4
    exact = reference(module, x, dy)
    stock = compile_and_grad(module, x, dy, {"mixorder": False})
    for mine, theirs in zip(errors(ours, exact), errors(stock, exact), strict=True):
        assert mine <= theirs * 1.1 + 1e-6


@pytest.mark.parametrize("width", [511, 513, 100])
def test_odd_widths_between_matmuls(width):
    """Inductor pads strides of such intermediates unless told not to."""
    module = randomised(Block(width), torch.bfloat16)
    x, dy = (torch.randn(4, 300, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = compile_and_grad(module, x, dy, STRICT | {"comprehensive_padding": True})
    assert counters["mixorder"]["fused_regions"] == 4
    exact = reference(module, x, dy)
    for error in errors(ours, exact):
        assert error < 0.03


def test_gradients_are_bitwise_reproducible():
    module = randomised(nn.LayerNorm(768), torch.bfloat16)
    x, dy = (torch.randn(5000, 768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    compiled = torch.compile(module, options=STRICT, dynamic=False)
    x.requires_grad_()
    runs = []
    for _ in range(3):
        poison = [torch.full((5000, 768), float("nan"), device="cuda") for _ in range(8)]
        del poison  # the allocator hands these out again as outputs and workspace
        runs.append(torch.autograd.grad(compiled(x), [x, *module.parameters()], dy))
    for run in runs[1:]:
        for first, again in zip(runs[0], run, strict=True):
            assert torch.equal(first, again) and first.isfinite().all()


def test_generated_code_launches_two_kernels_and_no_clone():
    module = randomised(nn.LayerNorm(768), torch.bfloat16)
    x, dy = (torch.randn(5000, 768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(module, options=STRICT, dynamic=False)
    _, codes = run_and_get_code(lambda: gradients_of(compiled, module, x, dy))
    backward = codes[-1]
    body = backward[backward.index("def call(") :]
    assert body.count(".run(") == 2
    assert body.count("triton_mixorder_native_layer_norm_backward") >= 2
    assert "copy_" not in body and "clone" not in body


def gradients_of(compiled, module, x, dy):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(compiled(x), [x, *module.parameters()], dy)


def test_offsets_beyond_two_to_the_31():
    rows, cols = 2**22 + 5, 513
    module = randomised(nn.RMSNorm(cols, eps=1e-6), torch.bfloat16)
    x, dy = (torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dx, dw = compile_and_grad(module, x, dy, STRICT)
    assert counters["mixorder"]["fused_regions"] == 1
    exact_dw = torch.zeros(cols, device="cuda", dtype=torch.float64)
    for part in range(0, rows, 2**19):
        chunk = slice(part, part + 2**19)
        exact_dx, partial = reference(module, x[chunk], dy[chunk])
        exact_dw += partial
        assert errors([dx[chunk]], [exact_dx])[0] < 0.01
    assert errors([dw], [exact_dw])[0] < 0.01
