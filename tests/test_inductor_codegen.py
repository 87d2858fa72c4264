"""What Inductor makes of a rewritten backward, without a GPU: its wrapper code, up to loading it.

Run in a process of its own, since a stand-in for the GPU driver is made active there for Triton's analysis.
"""

import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch, triton
from torch import nn
from torch._inductor.graph import GraphLowering
from triton.backends.compiler import GPUTarget

class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_benchmarker(self):
        return None

class Stop(Exception):
    pass

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(64), nn.Linear(64, 64)
    def forward(self, x):
        return x + self.mix(self.norm(x))

class Sin(nn.Module):
    def forward(self, x):
        return x.sin()

def print_code(graph):
    code, _ = graph.codegen()
    print(code.value)
    raise Stop

triton.runtime.driver.set_active(Driver())
shape, dynamic, branches = eval(sys.argv[1]), sys.argv[2] == "dynamic", int(sys.argv[3])
model = nn.Sequential(*(Branch() for _ in range(branches)), Sin())
options = {"mixorder": True, "mixorder_strict": True, "mixorder_interpret": True, "mixorder_min_numel": 0}
compiled = torch.compile(model, options=options, dynamic=dynamic)
y = compiled(torch.randn(shape, requires_grad=True))
GraphLowering._compile_to_module = print_code
try:
    y.sum().backward()
except Exception as error:
    assert "Stop" in repr(error), error
"""


def backward_code(shape: tuple[int, ...], dynamic: bool, branches: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(shape), "dynamic" if dynamic else "static", str(branches)],
        env={**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    code = done.stdout
    return code[code.index("def call(") :]


def launches(code: str) -> list[str]:
    return [line.strip() for line in code.splitlines() if line.strip().startswith("triton_mixorder_")]


@pytest.mark.parametrize(
    ("shape", "dynamic", "sizes"),
    [((33, 64), False, 0), ((33, 64), True, 1), ((3, 11, 64), True, 2)],
)
def test_two_launches_per_region_and_nothing_copied(
    shape: tuple[int, ...], dynamic: bool, sizes: int
) -> None:
    """The Linear's bias gradient comes before the matrix product, the norm after it: two regions."""
    code = backward_code(shape, dynamic)
    names = [line.split("(")[0] for line in launches(code)]
    assert len(names) == 4
    assert [("final" in name, "layer_norm" in name) for name in names] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    assert "clone" not in code and "copy_" not in code
    main = launches(code)[2]
    arguments = main[main.index("(") + 1 :].split(", ")
    assert sum(argument.startswith("s") and argument[1:].isdigit() for argument in arguments) == sizes


@pytest.mark.parametrize(
    ("shape", "dynamic"), [((3, 111, 64), False), ((3, 111, 64), True), ((333, 64), False)]
)
def test_dx_is_written_where_dy_lies(shape: tuple[int, ...], dynamic: bool) -> None:
    """A chain of two norms needs two tensors of the activations' size: a residual's gradient, and the product
    of it that becomes dx. Nothing is copied."""
    code = backward_code(shape, dynamic, branches=2)
    norms = [line for line in launches(code) if "layer_norm" in line and "final" not in line.split("(")[0]]
    assert len(norms) == 2
    products = re.findall(r"extern_kernels\.mm\(.*, out=(buf\d+)\)", code)
    first, second = ({name for name in re.findall(r"buf\d+", line) if name in products} for line in norms)
    (dy,) = second - first
    gradient, product = re.findall(
        r"(buf\d+) = empty_strided_cpu\(\((?:333|3, 111|s\d+\*s\d+|s\d+, s\d+), 64\)", code
    )
    assert first == {product}
    assert re.search(rf"{dy} = .*{gradient}.*; del {gradient}  # reuse", code)
    returned = code[code.index("return (") :].split("\n")[0]
    assert dy in returned and product not in returned
    assert "clone" not in code and "copy_" not in code
