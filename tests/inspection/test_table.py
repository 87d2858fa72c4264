"""The text of a report: the verdict, what fits a terminal, what is explained, and what is not said."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from torch import Tensor, nn

import mixorder
from mixorder.errors import Decline, DeclineReason
from mixorder.inspection import table
from mixorder.inspection.explanation import Report
from mixorder.inspection.page import page
from mixorder.record import TensorRecord
from mixorder.region.provenance import Provenance

ANY_SIZE = {"mixorder_min_numel": 0, "mixorder_strict": True}


class Heads(nn.Module):
    """A norm with a weight per head: a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.weight = nn.Linear(256, 256), nn.Parameter(torch.ones(4, 64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x).view(-1, 4, 64)
        return nn.functional.rms_norm(y, (64,)) * self.weight


@pytest.fixture(scope="module")
def report() -> Report:
    model = nn.Sequential(Heads(), nn.Flatten(), nn.LayerNorm(256))
    return mixorder.explain(model, options=ANY_SIZE)(torch.randn(300, 256, requires_grad=True))


@pytest.fixture(scope="module")
def shared() -> Report:
    """Rows that several programs share."""
    with torch.device("meta"):
        return mixorder.explain(nn.RMSNorm(65536))(torch.randn(64, 65536, requires_grad=True))


def test_details_say_how_kernels_run(report: Report, shared: Report) -> None:
    details = " ".join(report.details.split())
    for word in ("dtypes: ", "inner: ", "outer: ", "launches: ", "strategy: persistent", "schedule: "):
        assert word in details and word not in str(report)
    assert "cooperative, " in shared.details and any(
        "batch 4" in str(region.space) for region in report.regions
    )


def test_the_verdict_comes_first_and_lines_fit_a_terminal(report: Report, shared: Report) -> None:
    for one in (report, shared):
        first, share, second, third, *_ = str(one).splitlines()
        assert first.startswith("Predicted: a step takes ") and " -> " in second and " of " in third
        assert share.startswith("At most ")
        assert max(map(len, one.details.splitlines())) <= table.WIDTH == 80
        assert str(one).endswith(table.origin(one))


def test_bytes_that_only_separate_kernels_would_move_are_not_printed(report: Report) -> None:
    """Inductor's own kernel for both orders reads once as well."""
    assert " MB" not in report.details


def test_modules_with_the_same_kernels_share_a_line(report: Report) -> None:
    """Also where the graph calls them, or the tensors, otherwise."""
    region, other = report.regions
    kernels = tuple(dataclasses.replace(kernel, name=f"{kernel.name}_1") for kernel in region.kernels)
    inputs = tuple(dataclasses.replace(tensor, name=f"{tensor.name}_1") for tensor in region.inputs)
    renamed = dataclasses.replace(region, kernels=kernels, inputs=inputs)
    assert table.grouped([region, other, renamed]) == [[0, 2], [1]]


def test_of_paths_only_the_numbers_of_parents_are_left_out() -> None:
    def named(*paths: str) -> str:
        decline = Decline(DeclineReason.CYCLE, "")
        decline.provenance = Provenance(tuple((path, "Linear") for path in paths))
        return table.source([decline])

    assert named("0.1", "0.0", "1.1", "1.0") == "*.1, *.0" and named("layers.0.norm") == "layers.0.norm"
    assert named("layers.0.norm", "layers.11.norm") == "layers.*.norm"
    assert named("mix.7", "norm.8") == "mix.7, norm.8" and named("a", "b", "c") == "a, b and 1 more"


def test_advice_is_given_once_and_details_are_listed_below_it() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 16), nn.LayerNorm(16))
    found = mixorder.explain(model)(torch.randn(8, 32))
    reason = found.misses[0].reason
    said = " ".join(str(found).split())
    assert len({miss.detail for miss in found.misses if miss.reason is reason}) > 1
    assert said.count(reason.remedy) == 1 == said.count(reason.explanation)
    assert all(said.count(miss.detail) == 1 for miss in found.misses)


def test_nothing_is_called_by_the_name_of_a_node(report: Report, shared: Report) -> None:
    for one in (report, shared):
        names = {t.name for r in one.regions for t in (*r.inputs, *r.outputs)}
        names |= {node.name for r in one.regions for node in (*r.inner, *r.outer)}
        text = re.sub(r"<details>.*?</details>", "", page(one), flags=re.DOTALL)  # loops and kernels
        assert not {name for name in names if re.search(rf"\b{name}\b", text)} - {"view", "sum"}


def test_totals_say_what_a_step_saves(report: Report) -> None:
    saved = sum(r.expected.apart_us - r.expected.fused_us for r in report.regions)
    assert report.totals.saved_us == pytest.approx(saved)
    assert saved > table.SHOWN_US and str(report).startswith(table.step_of(report))


@pytest.mark.parametrize(
    ("saved_us", "said"),
    [
        (354.6, "0.355 ms less."),
        (3.54, "3.5 us less."),
        (0.04, "as long as without mixorder."),
        (-0.04, "as long as without mixorder."),
        (-1.0, "1.0 us more."),
    ],
)
def test_no_saving_is_printed_as_zero_or_less(report: Report, saved_us: float, said: str) -> None:
    region = report.regions[0]
    takes = dataclasses.replace(region.expected, apart_us=region.expected.ours_us + saved_us)
    graph = dataclasses.replace(report.graphs[0], records=(dataclasses.replace(region, expected=takes),))
    found = dataclasses.replace(report, graphs=(graph,))
    assert table.step_of(found).startswith(f"Predicted: a step takes {said}")


@pytest.mark.parametrize(
    ("axes", "shape", "said"),
    [
        ((4, 32, 4, 256, 256), (4, 128, 256, 256), "4 samples x 32 groups x 4 channels x 256x256 pixels"),
        ((4, 32, 4, 65536), (4, 128, 256, 256), "4 samples x 32 groups x 4 channels x 256x256 pixels"),
        ((8, 64, 14, 14), (8, 64, 14, 14), "8 samples x 64 channels x 14x14 pixels"),
        ((2, 32, 8, 8, 8), (2, 32, 8, 8, 8), "2 samples x 32 channels x 8x8x8 voxels"),
        ((64, 256, 3136), (64, 256, 3136), "64 samples x 256 channels x 3136 positions"),
        ((64, 256), (64, 256), ""),
        ((300, 4, 64), (300, 2, 64), ""),
    ],
)
def test_sizes_of_pictures_have_names(
    report: Report, axes: tuple[int, ...], shape: tuple[int, ...], said: str
) -> None:
    text = " x ".join(f"row {n}" for n in axes)
    tensor = TensorRecord("x", "bf16", shape)
    space = dataclasses.replace(report.regions[0].space, axes=text)
    region = dataclasses.replace(report.regions[0], space=space, inputs=(tensor,), outputs=(tensor,))
    assert table.in_words(region) == (said or text)


def test_a_last_column_without_room_stands_below() -> None:
    rows = [["a", "b"], ["x" * 60, "name"], ["y", "other, " * 12]]
    shown = table.table(rows, 80).splitlines()
    assert shown[1:3] == ["  " + "x" * 60, "      name"] and max(map(len, shown)) <= 80


def test_what_saves_most_of_a_step_comes_first(report: Report) -> None:
    saved = [sum(report.regions[i].expected.saved_us for i in kind) for kind in table.by_saving(report)]
    assert saved == sorted(saved, reverse=True) and len(saved) == len(report.regions) == 2
    often = dataclasses.replace(report.graphs[1], runs=9)
    assert [g.kind for g in report.graphs] == ["forward", "backward"]
    more = dataclasses.replace(report, graphs=(report.graphs[0], often))
    assert {more.graph_of(i).runs for i in range(2)} == {9}


def test_a_share_of_the_step_is_a_roofline_of_the_card() -> None:
    """Two products of the forward's size for each of three, and one pass over inputs and results."""
    rows, width = 8192, 4096
    with torch.device("meta"):
        x = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
        model = nn.Sequential(nn.Linear(width, width, bias=False), nn.RMSNorm(width)).bfloat16()
    found = mixorder.explain(model)(x)
    (forward, backward) = (graph.work for graph in found.graphs)
    assert forward is not None and backward is not None
    product = 2 * rows * width * width
    assert [flops for flops, *_ in (*forward.products, *backward.products)] == 3 * [product]
    compute = 1e6 * 3 * product / 989.4e12
    moved = 2 * rows * width
    assert compute + 1e6 * 2 * moved / 4.8e12 < found.roofline_us < compute + 1e6 * 8 * moved / 4.8e12
    share = found.totals.saved_us / found.roofline_us
    assert f"At most {share:.1%} of a step, which" in str(found)
    unknown = dataclasses.replace(found, device=dataclasses.replace(found.device, name="another"))
    assert not unknown.roofline_us and "At most" not in str(unknown)


@pytest.mark.parametrize("length", (60, 70, 76, 80, 90))
def test_columns_may_be_as_wide_as_the_page(length: int) -> None:
    """The sizes of the regions of an autoencoder (five axes) take 80 columns."""
    space = "column 4 x column 32 x row 16 x row 256 x row 256 " * 2
    lines = table.table(
        [["space", "from"], [space[:length], "group_norm in decoder.up_blocks.3"]], 80
    ).splitlines()
    assert lines[0].split() == ["space", "from"]
    assert (
        " ".join(" ".join(lines[1:]).split()) == f"{space[:length].strip()} group_norm in decoder.up_blocks.3"
    )
