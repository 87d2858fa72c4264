"""On a GPU: the same bits in every run and on every stream, and what holds of gradients of half a batch."""

import pytest
import torch
from gradients import NORMS as MODULES
from gradients import case, grads, same
from support.compilers import STRICT
from support.inputs import poison_free_memory
from torch._dynamo.utils import counters

BF16, F32 = torch.bfloat16, torch.float32
# Held by one program, read off a boundary, and shared by several programs.
SHAPES = [(5000, 768), (1031, 1001), (600, 16400)]
NORMS = ("layer", "rms")


def compiled(module, **options):
    return torch.compile(module, options=STRICT | options, dynamic=False)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NORMS)
def test_the_same_bits_in_every_run_and_on_every_stream(name, shape, dtype):
    module, x, dy = case(MODULES[name], shape, dtype)
    function = compiled(module)
    first = grads(function, module, x, dy)
    assert counters["mixorder"]["fused_regions"] == 1
    for _ in range(5):
        poison_free_memory()
        assert same(grads(function, module, x, dy), first)
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(priority=-1)):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            poison_free_memory()
            found = grads(function, module, x, dy)
        stream.synchronize()
        assert same(found, first)
