"""What `tools/family.py` measures and prints. Its times need a GPU; the interpreter runs the rest.

Bytes are counted on Inductor's own scheduled kernels, in a process of its own with a stand-in for the driver.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import family
import pytest
import torch
from lab import family as measuring
from lab.family import NAMES, Outcome, Task, Way
from lab.written import PROGRAMS, Calls, Written
from support import stand_in
from torch import Tensor, nn

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOOLS = Path(__file__).resolve().parents[2] / "tools"

SCRIPT = """
import json, torch, triton
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from lab.family import ByteCount
from support.stand_in import Driver
from mixorder.report import collect

class Stop(Exception):
    pass

class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(1000)
    def forward(self, x):
        y = self.norm(x)
        return torch.cat((y, y.sin()), -1)

class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(1000), nn.Linear(1000, 1000, bias=False)
    def forward(self, x):
        return self.mix(self.norm(x))

original = GraphLowering._compile_to_module
def stop_in_backward(graph):
    if not graph.is_backward:
        return original(graph)
    graph.codegen()
    raise Stop

triton.runtime.driver.set_active(Driver())
GraphLowering._compile_to_module = stop_in_backward
AsyncCompile.cpp_pybinding = lambda *_, **__: lambda *args: None  # what the forward computes is not looked at
models = {"sliced": Sliced, "product": Product, "plain": lambda: nn.LayerNorm(1000)}
def counted(model, on):
    torch._dynamo.reset()
    with collect() as records:
        count = ByteCount(records)
        options = {"mixorder": on, "_post_fusion_custom_pass": count}
        if on:
            options |= {"mixorder_strict": True, "mixorder_interpret": True, "mixorder_min_numel": 0}
        y = torch.compile(model, options=options, dynamic=False)(torch.randn(512, 1000, requires_grad=True))
        try:
            y.sum().backward()
        except Exception as error:
            assert "Stop" in repr(error), error
    return count.forward, count.backward, len(records)

print(json.dumps({name: [counted(model(), on) for on in (False, True)] for name, model in models.items()}))
"""

FULL, VECTOR, STATISTIC = 512 * 1000 * 4, 1000 * 4, 512 * 4


Bytes = dict[str, tuple[tuple[int, int], tuple[int, int]]]


@pytest.fixture(scope="module")
def counted() -> Bytes:
    """By model: bytes of forward and backward, stock's and ours."""
    found = stand_in.found(f"import sys; sys.path.insert(0, {str(TOOLS)!r})\n{SCRIPT}")
    assert [(stock[2], ours[2]) for stock, ours in found.values()] == [(0, 1)] * 3  # regions
    return {model: (tuple(stock[:2]), tuple(ours[:2])) for model, (stock, ours) in found.items()}


def test_bytes_of_a_layer_norm(counted: Bytes) -> None:
    stock, ours = counted["plain"]
    forward = 2 * FULL + 2 * VECTOR + 2 * STATISTIC
    # dx from dy, x, w, mean, rstd; then dw and db from dy, x, mean, rstd.
    assert stock == (forward, 3 * FULL + VECTOR + 2 * STATISTIC + 2 * FULL + 2 * STATISTIC + 2 * VECTOR)
    # Everything once; the partial sums of dw and db are left out.
    assert ours == (forward, 3 * FULL + VECTOR + 2 * STATISTIC + 2 * VECTOR)


def test_bytes_of_two_views_of_one_tensor(counted: Bytes) -> None:
    """dy comes as the halves of a tensor of twice the width, each passed to the kernel."""
    _, (_, backward) = counted["sliced"]
    # x, both halves of dy, dx; w and b (sin's argument is recomputed), dw and db; mean, rstd.
    assert backward == 4 * FULL + 4 * VECTOR + 2 * STATISTIC


def test_bytes_of_a_dx_that_is_written_over_dy(counted: Bytes) -> None:
    """Read and written: as many bytes as two tensors. The products count as they do in stock."""
    (_, stock), (_, ours) = counted["product"]
    again = 2 * FULL + 2 * STATISTIC  # what stock's second kernel reads of the norm's inputs
    assert stock - ours == again


def outcome(**changes: Any) -> Outcome:
    stock, ours = Way(100.0, 4, 300_000_000, 1e-3), Way(60.0, 2, 200_000_000, 1e-3)
    whole = Outcome("norms", "RMSNorm", 50.0, stock, ours, ["16384x2048"])
    return dataclasses.replace(whole, **changes)


def test_a_line_of_the_table(tmp_path: Path) -> None:
    failed = outcome(group="unseen", name="dice", message="no device")
    host = outcome(name="LayerNorm", limit_us=0.0, stock=Way(error=1e-3), declined=["slower"])
    path = tmp_path / "family.jsonl"
    lines = [json.dumps(dataclasses.asdict(one)) for one in (failed, host, outcome(limit_us=1.0), outcome())]
    path.write_text("\n".join(lines))
    loaded = family.load([path])
    assert loaded == [failed, host, outcome()]  # of a case that was measured twice, the last
    norms, unseen = family.tables(loaded).values()
    assert norms.splitlines()[2:] == [
        "| LayerNorm | 16384x2048; left to Inductor: slower | 0 -> 2 | 0.0 | - | - | - | 0.0 -> 200.0 | "
        "1.0e-03 / 1.0e-03 |",
        "| RMSNorm | 16384x2048 | 4 -> 2 | 50.0 | 100.0 -> 60.0 | 1.67 | 50 -> 83 | 300.0 -> 200.0 | "
        "1.0e-03 / 1.0e-03 |",
    ]
    assert "| dice | no device |" in unseen
    assert family.means([outcome()]) == "Geometric means: 50% of the limit by stock, 83% by mixorder."


def test_what_is_wrong() -> None:
    def ours(us: float, error: float = 1e-3) -> Outcome:
        return outcome(ours=Way(us, error=error))

    wrong = ours(104.0), ours(60.0, 2e-3), ours(60.0, float("nan")), outcome(message="no device")
    assert all(map(family.is_wrong, wrong))
    assert not any(map(family.is_wrong, (ours(102.9), outcome())))


def small(fail: bool = False) -> Written:
    def call(self: Any, x: Tensor) -> Tensor:
        if fail:
            raise ValueError("no such program")
        return self.norm(x)

    return Written(Calls(call, norm=nn.LayerNorm(64)), [torch.randn(256, 64).requires_grad_()])


def test_a_program_and_a_case_run_in_the_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs = {"small": small, "fails": lambda: small(fail=True)}
    monkeypatch.setattr(measuring, "WRITTEN", {"unseen": programs})
    monkeypatch.setattr(measuring, "ahead_of_time", lambda *_: lambda gm, inputs: gm)  # as stock and ours
    monkeypatch.setattr(measuring, "inductor", lambda options: lambda function: function)
    turn = str(tmp_path / "turn")
    done = [measuring.work(Task("unseen", name, "cpu", turn)) for name in programs]
    case = measuring.work(Task("norms", "RMSNorm", "cpu", turn, (4, 8, 64), "float32"))
    good, failed = done
    assert "no such program" in failed.message and family.is_wrong(failed)
    assert not good.message and not case.message
    assert 0 < good.stock.error == good.ours.error < 1e-6 and not family.is_wrong(case)
    assert "CPU" in good.on and good.limit_us == 0


def test_groups_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tasks = list[Task]()
    monkeypatch.setattr(family, "measured", lambda _, found, *rest: tasks.extend(found) or [])
    family.main(["--groups", "unseen", "norms", "--cases", "dice", "Cohere", "--out", str(tmp_path)])
    assert [(task.group, task.name) for task in tasks] == [
        ("unseen", "dice"),
        ("norms", "Cohere"),
        ("norms", "Cohere QK-norm"),
    ]


def test_bytes_of_a_backward() -> None:
    program = small()
    x, parameters = 256 * 64 * 4, 2 * 64 * 4
    assert program.backward_bytes([program.module(*program.inputs)]) == 3 * x + 2 * parameters
    other = Written(program.module, program.inputs, unread=[0], written=False)
    assert other.backward_bytes([program.module(*program.inputs)]) == x + 2 * parameters


def test_programs_are_made_without_data() -> None:
    for name, make in PROGRAMS.items():
        with torch.device("meta"):
            program = make()
        found = program.module(*program.inputs)
        assert program.backward_bytes([found] if isinstance(found, Tensor) else found) > 2**24, name


def test_pages_have_the_kept_outcomes() -> None:
    """Each group's table and means, with their days, cards, versions and commits."""
    kept = family.load([family.KEPT])
    assert {one.group for one in kept} == set(NAMES)
    pages = [(DOCS / "lab" / name).read_text() for name in ("family.md", "written.md")]
    for group, found in family.tables(kept).items():
        page = pages[group in measuring.WRITTEN]
        assert found in page, group
        measured = [one for one in kept if one.group == group]
        assert {one.name for one in measured} == set(NAMES[group])
        assert all(one.on in page for one in measured), group
        if group in measuring.WRITTEN:
            assert family.means([one for one in measured if one.ours.us]) in page
