"""What Inductor makes of a rewritten backward, without a GPU: its wrapper code, with kernels that do nothing.

Run in a process of its own, since a stand-in for the GPU driver is made active there for Triton's analysis.
"""

import functools
import json
import os
import re
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock
from support.stand_in import found

SCRIPT = """
import json, torch
import torch._higher_order_ops.triton_kernel_wrap as triton_kernel_wrap
import torch._inductor.memory as memory
from support.stand_in import OURS, codes
from torch import nn
from torch._inductor.scheduler import NopKernelSchedulerNode

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(64), nn.Linear(64, 64)
    def forward(self, x):
        return x + self.mix(self.norm(x))

class Sin(nn.Module):
    def forward(self, x):
        return x.sin()

def counted(*args, generate_ttir=triton_kernel_wrap.generate_ttir):
    analysed.append(args)
    return generate_ttir(*args)

def recorded(nodes, *args, reorder=memory.topological_sort_bfs):
    lone.append(sum(isinstance(node, NopKernelSchedulerNode) for node in nodes))
    return reorder(nodes, *args)

analysed, lone = [], []
triton_kernel_wrap.generate_ttir = counted
memory.reorder_for_peak_memory.__defaults__[0][1] = recorded

made, found = codes(), {}
for shape, dynamic, layers in MODELS:
    torch._dynamo.reset()
    analysed.clear()
    made.clear()
    model = nn.Sequential(*(Layer() for _ in range(layers)), Sin())
    compiled = torch.compile(model, options=OURS, dynamic=dynamic)
    result = compiled(torch.randn(shape, requires_grad=True)).sum()
    lone.clear()
    result.backward()
    said = f"analysed {len(analysed)} kernels\\nlone buffers {lone}\\n"
    found[repr((shape, dynamic, layers))] = f"{made[-1]}\\n{said}"
print(json.dumps(found))
"""
# The model of five layers first: what is analysed once is not analysed again for the others.
MODELS: tuple[tuple[tuple[int, ...], bool, int], ...] = (
    ((33, 64), False, 5),
    ((33, 64), False, 1),
    ((3, 11, 64), True, 1),
    ((3, 111, 64), False, 2),
    ((3, 111, 64), True, 2),
)


@functools.cache
def codes() -> dict[str, str]:
    """The backward's code of each model; one process makes all, for all workers of a run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    path = Path(tempfile.gettempdir()) / f"mixorder-wrapper-code-{run}.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_text(json.dumps(found(f"MODELS = {MODELS}\n{SCRIPT}")))
        return json.loads(path.read_text())


def backward_code(shape: tuple[int, ...], dynamic: bool, layers: int = 1) -> str:
    return codes()[repr((shape, dynamic, layers))]


def launches(code: str) -> list[str]:
    lines = code[code.index("def call(") :].splitlines()
    return [line.strip() for line in lines if line.strip().startswith("triton_mixorder_")]


@pytest.mark.parametrize(
    ("shape", "dynamic", "sizes"),
    [((33, 64), False, 0), ((3, 11, 64), True, 2)],
)
def test_two_launches_per_region_and_nothing_copied(
    shape: tuple[int, ...], dynamic: bool, sizes: int
) -> None:
    """One region: the Linear's bias gradient is a sum of a tensor that the norm's region reads anyway."""
    code = backward_code(shape, dynamic)
    names = [line.split("(")[0] for line in launches(code)]
    assert [("final" in name, "layer_norm" in name) for name in names] == [(False, True), (True, True)]
    call = code[code.index("def call(") :]
    assert "clone" not in call and "copy_" not in call
    main = launches(code)[0]
    arguments = main[main.index("(") + 1 :].split(", ")
    assert sum(argument.startswith("s") and argument[1:].isdigit() for argument in arguments) == sizes


def test_what_a_launch_writes_is_allocated_right_before_it() -> None:
    """Inductor's reordering had allocated a later layer's results from the start of the backward on."""
    code = backward_code((33, 64), dynamic=False, layers=5)
    lines = [line.strip() for line in code[code.index("def call(") :].splitlines()]
    kernels = [i for i, line in enumerate(lines) if re.match(r"(triton_|cpp_fused|extern_kernels)", line)]
    allocated = {
        m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(buf\d+) = empty_strided", line))
    }
    between, written = [], 0
    for i in kernels:
        new = [allocated.pop(name) for name in re.findall(r"buf\d+", lines[i]) if name in allocated]
        if lines[i].startswith("triton_mixorder_"):
            between += [lines[k] for k in kernels for at in new if at < k < i]
            written += len(new)
    assert written and between == []


def test_inductor_orders_launches_and_what_they_write_as_one() -> None:
    """Its orders had begun with all buffers that launches write, so that the graph's own was the best."""
    assert "\nlone buffers [0]\n" in backward_code((33, 64), dynamic=False, layers=5)


def test_a_comment_above_each_launch_names_its_source_nodes() -> None:
    lines = [line.strip() for line in backward_code((33, 64), dynamic=False).splitlines()]
    at = [i for i, line in enumerate(lines) if re.match(r"triton_mixorder_\w+\.run\(", line)]
    comments = [next(line for line in reversed(lines[:i]) if line.startswith("#")) for i in at]
    found = [re.search(r"Source Nodes: \[(.*)\], Original ATen: \[(.*)\]", c).groups() for c in comments]
    assert [ops for _, ops in found] == ["aten.native_layer_norm_backward"] * 2
    main, final = found[0][0].split(", "), found[1][0].split(", ")
    assert len(main) == 5 and len(final) == 3 and set(final) < set(main)
    assert all(re.fullmatch(r"sum_\d+", name) for name in main)


def test_layers_launch_kernels_that_are_defined_and_analysed_once() -> None:
    code = backward_code((33, 64), dynamic=False, layers=5)
    launched = [re.split(r"[.(]", line)[0] for line in launches(code)]
    defined = re.findall(r"^(triton_mixorder_\w+) = async_compile", code, re.MULTILINE)
    assert len(launched) == 4 + 2 * 4  # a Linear's bias gradient rides along with the norm behind it
    assert len(defined) == len(set(defined)) < len(launched) and set(defined) == set(launched)
    # On a CPU a graph's inputs may lie anywhere: the kernel that writes over one is defined anew.
    sources = {re.sub(r"_\d+$", "", name) for name in defined}
    assert len(sources) == len(defined) - 1
    assert f"analysed {len(sources)} kernels" in code


@pytest.mark.parametrize("dynamic", [False, True])
def test_dx_is_written_where_dy_lies(dynamic: bool) -> None:
    """A chain of two norms needs two tensors of the activations' size, for the products that become dx. The
    first gradient lies over an activation. Nothing is copied."""
    code = backward_code((3, 111, 64), dynamic, layers=2)
    norms = [line for line in launches(code) if "layer_norm" in line and "final" not in line.split("(")[0]]
    assert len(norms) == 2
    products = re.findall(r"extern_kernels\.mm\(.*, out=(buf\d+)\)", code)
    first, second = ({name for name in re.findall(r"buf\d+", line) if name in products} for line in norms)
    (dy,) = second - first
    large = re.findall(r"(buf\d+) = empty_strided_cpu\(\((?:333|3, 111|s\d+\*s\d+|s\d+, s\d+), 64\)", code)
    assert large == [*first, dy]
    returned = code[code.index("return (") :].split("\n")[0]
    assert dy in returned and not first & {*re.findall(r"buf\d+", returned)}
    assert "clone" not in code and "copy_" not in code


def test_finalisations_are_launched_before_the_main_kernel_has_ended() -> None:
    code = backward_code((33, 64), dynamic=False)
    definitions = re.findall(
        r"^(triton_\w+) = async_compile\.triton\((.*?)^\'\'\'", code, re.MULTILINE | re.DOTALL
    )
    assert len(definitions) >= 2
    for name, text in definitions:
        assert ("'launch_pdl': True" in text) == ("mixorder" in name and "_final_" in name), name
