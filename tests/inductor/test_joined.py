"""Results that are parts of one tensor: a launch writes them to their places, and nothing copies them.

All programs share one process (see wrapped.py), which prints what it found as JSON.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from joining import JOINS, ORDERS, PARTS
from support import stand_in

# Every join, with some order and some other part.
NAMES = [", ".join(one) for one in zip(JOINS, itertools.cycle(PARTS), itertools.cycle(ORDERS), strict=False)]
DYNAMIC = "cat of columns, loop, first"
RUN = NAMES[:2]  # of the others, the code is looked at: tests/interpreter runs all

SCRIPT = """
import json
import torch, wrapped
from support import stand_in
from torch._inductor.graph import GraphLowering
from joining import JOINED, SHAPES

made, codegen = [], GraphLowering.codegen

def kept(graph):
    code, lines = codegen(graph)
    made.append(code.value)
    return code, lines

def run(name, dynamic=False):
    function = JOINED[name]
    torch.manual_seed(0)
    mine = tuple(torch.randn(shape) for shape in SHAPES)
    torch._dynamo.reset()
    wrapped.launches.clear()
    for x in mine[:2] if dynamic else ():
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        ours = torch.compile(function, options=wrapped.OPTIONS, dynamic=None if dynamic else False)(*mine)
        exact = function(*(t.double() for t in mine))
    return {
        "errors": [float((t.double() - e).norm() / e.norm()) for t, e in zip(ours, exact, strict=True)],
        "launches": list(wrapped.launches),
        "code": made[-1],
    }

GraphLowering.codegen = kept
wrapped.install()
found = {"dynamic": run(DYNAMIC, True)} | {name: run(name) for name in RUN}
stand_in.codes()
print(json.dumps(found | {name: run(name) for name in NAMES if name not in found}))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    return stand_in.found(f"NAMES, RUN, DYNAMIC = {NAMES}, {RUN}, {DYNAMIC!r}\n{SCRIPT}")


@pytest.mark.parametrize("name", ["dynamic", *RUN])
def test_results(found: dict[str, Any], name: str) -> None:
    assert all(error < 1e-6 for error in found[name]["errors"]), found[name]["errors"]


@pytest.mark.parametrize("name", ["dynamic", *NAMES])
def test_parts_are_written_to_their_places(found: dict[str, Any], name: str) -> None:
    """Both main kernels write to a view of the whole, and no loop reads what they wrote."""
    code = found[name]["code"]
    mains, written = launched(code)
    assert len(mains) == 2 and len(written) == (0 if name.startswith("cat of permuted") else 2)
    loops = [line for line in code.splitlines() if "cpp_fused" in line and "async_compile" not in line]
    assert not any(place in re.findall(r"buf\d+", line) for place in written for line in loops)


def launched(code: str) -> tuple[list[str], set[str]]:
    """The lines that launch main kernels, and the views of other buffers that these get."""
    places = re.findall(r"(buf\d+) = reinterpret_tensor.*# alias", code)
    mains = [
        m for m in code.splitlines() if re.match(r" *triton_mixorder_\w+\.run", m) and "_final_" not in m
    ]
    return mains, {place for line in mains for place in re.findall(r"buf\d+", line) if place in places}


ON_GPU = """
import json
import torch, torch.nn.functional as F
from torch import nn
from torch._inductor.graph import GraphLowering
from support.peaks import peak
import mixorder

class Heads(nn.Module):
    "Norms of queries and keys, whose gradients meet those of the values for one product."
    def __init__(self):
        super().__init__()
        self.mix, self.q, self.k = nn.Linear(1024, 4096, bias=False), nn.RMSNorm(128), nn.RMSNorm(128)
    def forward(self, x):
        parts = self.mix(x).split([2048, 1024, 1024], -1)
        q, k, v = (t.unflatten(-1, (-1, 128)).transpose(1, 2) for t in parts)
        return F.scaled_dot_product_attention(self.q(q), self.k(k), v, enable_gqa=True)

class Parts(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.widths, self.norms = widths, nn.ModuleList(map(nn.RMSNorm, widths[:-1]))
    def forward(self, x):
        *parts, last = x.split(self.widths, -1)
        return [*(norm(part) for norm, part in zip(self.norms, parts)), last * 0.5]

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(2048) for _ in range(2))
    def forward(self, x):
        return [norm(part) for norm, part in zip(self.norms, x.unbind(1))]

class Grad(nn.Module):
    def __init__(self, inner, *shape):
        super().__init__()
        self.inner, self.x = inner, nn.Parameter(torch.empty(shape))
    def forward(self):
        return self.inner(self.x)

made, codegen = [], GraphLowering.codegen

def kept(graph):
    code, lines = codegen(graph)
    made.append(code.value)
    return code, lines

GraphLowering.codegen = kept
found = {}
for name, make in {
    "heads": lambda: Grad(Heads(), 8, 2048, 1024),
    "parts": lambda: Grad(Parts([2048, 1024, 1024]), 16384, 4096),
    "one part": lambda: Grad(Parts([512, 64]), 16384, 576),
    "unbound": lambda: Grad(Rows(), 16384, 2, 2048),
}.items():
    with torch.device("meta"):
        model = make().to(torch.bfloat16)
    peaks = []
    for on in (False, True):
        made.clear()
        peaks.append(peak(model, {}, mixorder=on).peak)
    found[name] = {"peaks": peaks, "code": made[-1]}
print(json.dumps(found))
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="the stand-in for CUDA is for a CPU build")
def test_on_a_gpu() -> None:
    """Launches write to the whole, no loop reads what they wrote, and no more is held than without them."""
    programs = stand_in.found(ON_GPU, stand_in.ON_A_GPU)
    for name, count in {"heads": 2, "parts": 2, "one part": 1, "unbound": 2}.items():
        (stock, ours), code = programs[name]["peaks"], programs[name]["code"]
        mains, written = launched(code)
        assert 0 < ours <= stock and len(mains) == len(written) == count
        loops = [line for line in code.splitlines() if ".run(" in line and "mixorder" not in line]
        assert not any(place in re.findall(r"buf\d+", line) for place in written for line in loops)
