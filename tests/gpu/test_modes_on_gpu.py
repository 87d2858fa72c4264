"""The tests of modes.py the whole way on a GPU, and torch's own modes with mixorder."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import modes
import pytest
import torch
from modes import *  # noqa: F403
from modes import close, exact, inputs, norm
from support.compilers import STRICT
from torch._dynamo.utils import counters
from torch._inductor import config

TORCH_MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@pytest.fixture(autouse=True)
def on_the_gpu():
    modes.target.device = "cuda"
    modes.target.compile = {"options": STRICT}
    torch.manual_seed(0)
    counters["mixorder"].clear()


def train(function, module, x, dy):
    """Three steps: CUDA graphs are recorded in the second, and replayed in the third."""
    wanted = [x, *module.parameters()]
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        grads = [g.clone() for g in torch.autograd.grad(function(x), wanted, dy)]
    return grads


@pytest.mark.parametrize("way", ["options", "patch"])
@pytest.mark.parametrize("mode", TORCH_MODES)
def test_modes_of_torch(mode, way):
    """torch takes a mode or options: give the mode's options along, or patch the config."""
    module, (x, dy) = modes.block(), inputs()
    torch._dynamo.reset()
    if way == "options":
        options = {**torch._inductor.list_mode_options(mode), **STRICT}
        grads = train(torch.compile(module, options=options, dynamic=False), module, x, dy)
    else:
        with config.patch(STRICT):
            grads = train(torch.compile(module, mode=mode, dynamic=False), module, x, dy)
    assert counters["mixorder"]["fused_regions"] == 4
    close(grads, exact(module, x, dy))


def test_autocast_runs_a_norm_in_float32():
    module, (x, dy) = norm(), inputs()
    with torch.autocast("cuda", torch.bfloat16):
        y = modes.compiled(module)(x.bfloat16())
    assert y.dtype == torch.float32
    grads = torch.autograd.grad(y, [x, *module.parameters()], dy)
    assert counters["mixorder"]["fused_regions"] == 1
    rounded = x.detach().bfloat16().float().requires_grad_()
    truths = exact(copy.deepcopy(module), rounded, dy)
    close(grads[:1], truths[:1], bound=0.01)  # x's gradient passes through bfloat16
    close(grads[1:], truths[1:])


IN_A_WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, modes
from modes import block, close, exact, grads, inputs
from torch._inductor.compile_fx import FxCompile
from torch._inductor.graph import GraphLowering

if __name__ == "__main__":
    modes.target.device, codes = "cuda", []
    GraphLowering.save_output_code = codes.append
    module, (x, dy) = block(), inputs()
    options = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0}
    function = torch.compile(module, options=options, dynamic=False)
    close(grads(function, module, x, dy), exact(module, x, dy))
    stats = {kind.__name__: stat.codegen_and_compile for kind, stat in FxCompile._compile_stats.items()}
    print(stats.get("_SubprocessFxCompile"), "triton_mixorder" in codes[-1])
"""


def test_compiled_in_another_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IN_A_WORKER)
    done = subprocess.run(
        [sys.executable, str(script), str(Path(modes.__file__).parent)],
        env={
            **os.environ,
            "TORCHINDUCTOR_FX_COMPILE_MODE": "SUBPROCESS",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["2", "True"]
