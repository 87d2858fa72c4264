"""The order of effects in Inductor's code of a graph with a region, without a GPU.

The code is written in a process of its own, where a stand-in for the GPU driver is active, and kernels do
nothing.
"""

import functools
import re

import pytest
from support.stand_in import found

SCRIPT = """
import functools, json, torch
from support.stand_in import OURS, codes
from torch._inductor import config

@torch.library.custom_op("order::registered", mutates_args=())
def registered(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
registered.register_fake(torch.empty_like)
registered.register_effect(torch.library.EffectType.ORDERED)

@torch.library.custom_op("order::unregistered", mutates_args=())
def unregistered(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
unregistered.register_fake(torch.empty_like)

def program(effect, x, p, q):
    early = q.sin()
    first, second = effect(p), effect(q)
    # The two loops over q become one kernel, for which the second effect has to be done.
    return early, early * second, first, (x * x.cos()).sum(1, keepdim=True), (x * x.cos()).sum(0)

made = codes()
inputs = torch.rand(64, 128), torch.rand(64, 64), torch.rand(80, 96)
for effect in (torch.bernoulli, registered, unregistered):
    torch._dynamo.reset()
    # Torch 2.11 reorders random operators of an inference graph before our pass sees it.
    with config.patch(fallback_random=True, reorder_for_locality=False):
        torch.compile(functools.partial(program, effect), options=OURS)(*inputs)
print(json.dumps(made))
"""


@functools.cache
def codes() -> list[str]:
    """The code of a program with each kind of effect."""
    made: list[str] = found(SCRIPT)
    return made


@pytest.mark.parametrize("kind", ["random", "registered", "unregistered"])
def test_effects_run_in_the_order_of_the_graph(kind: str) -> None:
    """Which loops become one kernel had decided it, and with a region these are others."""
    code = codes()[["random", "registered", "unregistered"].index(kind)]
    assert "triton_mixorder_" in code
    sizes = dict(re.findall(r"assert_size_stride\((\w+), \((\d+, \d+)\)", code))
    given = re.findall(r"= torch\.ops\.(?:aten\.rand|order\.\w+)\.default\(\[?(\d+, \d+|\w+)", code)
    assert [sizes.get(operand, operand) for operand in given] == ["64, 64", "80, 96"]
