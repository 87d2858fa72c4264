"""`mixorder.explain`, as a user without a GPU calls it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import traceback
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mixorder
from mixorder.errors import CannotExplain, Decline, DeclineReason
from mixorder.inspection.explanation import Report
from mixorder.inspection.table import source
from mixorder.ir.program import BufferRole
from mixorder.record import RegionRecord
from mixorder.region import find

ANY_SIZE = {"mixorder_min_numel": 0, "mixorder_strict": True}


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(dim), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x))


class Output(NamedTuple):
    loss: Tensor
    logits: Tensor


class Model(nn.Module):
    """A norm without a weight, four blocks, a norm, and a loss; it updates the buffer `calls`."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.plain, self.mix = nn.LayerNorm(dim, elementwise_affine=False), nn.Linear(dim, dim, bias=False)
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(4)))
        self.last = nn.RMSNorm(dim)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Output:
        self.calls.add_(1)
        y = self.last(self.blocks(self.mix(self.plain(x))))
        return Output(y.sin().sum(), y)


@functools.cache
def report() -> Report:
    return mixorder.explain(Model(), options=ANY_SIZE)(torch.randn(300, 32, requires_grad=True))


def test_regions_say_where_they_come_from() -> None:
    found = {path for region in report().regions for path, _ in region.provenance.modules}
    assert {*(f"blocks.{i}.norm" for i in range(4)), "last"} <= found
    assert [g.kind for g in report().graphs] == ["forward", "backward"]
    layer_norms = [r for r in report().regions if ("blocks.1.norm", "LayerNorm") in r.provenance.modules]
    (region,) = layer_norms
    assert [one.op for one in (*region.inner, *region.outer)] == 4 * ["sum"]
    assert region.strategy == "persistent" and (region.space.rows, region.space.cols) == (300, 32)
    assert "f32[300, 32]" in map(str, region.inputs) and "f32[32]" in map(str, region.outputs)
    assert any("self.mix(self.norm(x))" in line for line in region.provenance.lines)


def test_the_table_puts_equal_regions_on_a_line_and_adds_up() -> None:
    text = str(report())
    (line,) = (line for line in text.splitlines() if line.split()[:2] == ["2,", "3"])
    assert "300x32" in line and line.endswith("  blocks.*.norm")
    assert report().kernel(2) == report().kernel(3) != report().kernel(4)
    layers = report().regions[2:]
    assert source(layers) == "blocks.*.norm" and source(layers[:1]) == "blocks.3.norm"
    assert f"planned for {report().device.name}: no tensor is on a GPU" in " ".join(text.split())
    totals = report().totals
    assert totals.regions == len(report().regions) and totals.launches < totals.launches_apart
    assert f"{totals.launches_apart} -> {totals.launches} launches" in text
    assert (
        repr(report()) == f"<mixorder Report: fused regions: {totals.regions}, near misses: {totals.misses}>"
    )


def test_a_line_says_how_the_peak_of_memory_changes() -> None:
    """Not for a graph whose tensors are smaller than what the allocator hands out at a time."""
    peaks = [r.planning.peak for r in report().regions]
    assert peaks and "peak memory" not in str(report())
    assert all(before <= after for (_, after), (before, _) in itertools.pairwise(peaks))
    forward, backward = report().graphs
    large = [(300_000_000, 290_000_000), (290_000_000, 270_000_000)]
    records = tuple(
        dataclasses.replace(r, planning=dataclasses.replace(r.planning, peak=p))
        for r, p in zip(report().regions[:2], large, strict=True)
    )
    found = dataclasses.replace(report(), graphs=(forward, dataclasses.replace(backward, records=records)))
    assert "\nEstimated peak memory of the backward: 300.0 -> 270.0 MB, 10.0% less.\n" in str(found)


def test_every_norm_is_counted_and_those_without_a_region_have_a_reason() -> None:
    reasons = {norm.path: norm.reason for norm in report().norms}
    assert len(reasons) == 6
    assert [path for path, reason in reasons.items() if not reason] == [
        *(f"blocks.{i}.norm" for i in range(4)), "last",
    ]  # fmt: skip
    assert "no trainable weight or bias" in reasons["plain"]
    assert "Norm modules in a region: 5 of 6" in str(report())
    assert "LayerNorm (plain): it has no trainable weight or bias" in str(report())


def test_kernel_and_graph_of_a_region() -> None:
    assert report().kernel(0).count("def triton_mixorder") == 2
    before, after = report().graph(0).split("\n\nafter\n")
    assert before.startswith("before\n") and "partial_accumulate" not in before
    assert "partial_accumulate" in after and "for s in split" in after
    with pytest.raises(IndexError):
        report().kernel(len(report().regions))


def test_json_has_everything() -> None:
    data = json.loads(report().to_json())
    records = [record for graph in data["graphs"] for record in graph["records"]]
    assert len(records) == data["totals"]["regions"] + data["totals"]["misses"] > 0
    first = records[0]
    assert first["kernels"][0]["text"] in report().kernel(0) and first["loops"] in report().graph(0)
    assert first["traffic"]["total"] == report().regions[0].traffic.total
    assert first["provenance"]["modules"] and 0 < first["expected"]["share"] < 1
    assert data["versions"]["torch"] and len(data["norms"]) == 6


def test_a_miss_says_what_to_change() -> None:
    small = mixorder.explain(Block(32))(torch.randn(8, 32, requires_grad=True))
    assert not small.regions and "Nothing was fused: the reasons are below." in str(small)
    (miss,) = small.misses
    assert isinstance(miss, Decline) and miss.reason is DeclineReason.TOO_SMALL
    assert miss.provenance.modules == (("norm", "LayerNorm"),)
    unwrapped = " ".join(str(small).split())
    assert f"too-small: {DeclineReason.TOO_SMALL.explanation} {DeclineReason.TOO_SMALL.remedy}" in unwrapped
    assert "norm: reductions of 256 elements" in unwrapped
    (record,) = json.loads(small.to_json())["graphs"][1]["records"]
    assert record["remedy"] == miss.reason.remedy and record["provenance"]["modules"] == [
        ["norm", "LayerNorm"]
    ]
    assert "too-small" in small.norms[0].reason


def test_the_model_is_as_it_was() -> None:
    torch.manual_seed(3)
    model, x = Model(), torch.randn(16, 32, requires_grad=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    mixorder.explain(nn.Sequential(Dropped(), model))(x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert x.grad is None and all(p.grad is None for p in model.parameters())


def test_what_is_compiled_already_is_explained_as_well() -> None:
    x = torch.randn(8, 32, requires_grad=True)
    model = nn.Sequential(Block(32))
    model[0].compile(backend="aot_eager")
    compiled = model[0]._compiled_call_impl
    assert compiled is not None
    for target in (model, torch.compile(model, backend="aot_eager")):
        (region,) = mixorder.explain(target, options=ANY_SIZE)(x).regions
        assert region.provenance.modules == (("0.norm", "LayerNorm"),)
    assert model[0]._compiled_call_impl is compiled


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x)


def test_a_function_with_a_graph_break_and_symbolic_rows() -> None:
    weight = torch.ones(64, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        y = F.rms_norm(x, (64,), weight)
        torch._dynamo.graph_break()
        return F.layer_norm(y.sin(), (64,), weight)

    explained = mixorder.explain(function, options=ANY_SIZE, dynamic=True)
    found = explained(torch.randn(700, 64, requires_grad=True))
    assert found.notes == ()  # that a backward is compiled early does not say that it runs
    assert found.graph_breaks == 1 and found.norms == ()
    assert sorted(g.kind for g in found.graphs) == ["backward", "backward", "forward", "forward"]
    assert len(found.regions) == 2 and all(isinstance(r.space.rows, str) for r in found.regions)
    assert "test_explain.py" in str(found) and "y = F.rms_norm(x" in " ".join(str(found).split())
    assert "graph breaks: 1" in str(found)


def test_a_row_that_is_too_wide_says_what_would_fit() -> None:
    with torch.device("meta"):
        x = torch.randn(512, 2**19, dtype=torch.bfloat16, requires_grad=True)
        (miss,) = mixorder.explain(nn.LayerNorm(2**19, dtype=torch.bfloat16))(x).misses
        half = torch.randn(512, 2**18, dtype=torch.bfloat16, requires_grad=True)
        fits = mixorder.explain(nn.LayerNorm(2**18, dtype=torch.bfloat16))(half)
        (in_fp64,) = mixorder.explain(nn.LayerNorm(20000).double())(
            torch.randn(512, 20000, dtype=torch.float64, requires_grad=True)
        ).misses
    assert miss.reason is in_fp64.reason is DeclineReason.ROW_TOO_WIDE
    one = "columns, and one program holds at most 16384"
    assert miss.detail == f"524288 {one}; 32 programs that share a row hold at most 262144 columns"
    assert len(fits.regions) == 1 and fits.regions[0].space.cols == 2**18
    assert in_fp64.detail.startswith(f"20000 {one}; programs cannot share a row that has reductions other")


def test_a_model_without_data_may_be_of_any_size() -> None:
    with torch.device("meta"):
        model = nn.Sequential(Block(8192), nn.LayerNorm(8192)).bfloat16()
        x = torch.randn(2**18, 8192, dtype=torch.bfloat16, requires_grad=True)
    model[1].weight = model[0].norm.weight  # tied
    found = mixorder.explain(model, options=ANY_SIZE)(x)
    assert len(found.regions) == 2 and all(r.space.rows == 2**18 for r in found.regions)
    assert all(p.is_meta for p in model.parameters())
    assert found.totals.limit_us > 1e3


def test_what_was_compiled_before_does_not_hide_the_pass() -> None:
    """A hit in AOTAutograd's cache would run no pass."""
    model, x = Block(32), torch.randn(8, 32, requires_grad=True)
    first, second = (mixorder.explain(model, options=ANY_SIZE)(x) for _ in range(2))
    assert len(first.regions) == len(second.regions) == 1


def test_without_inputs_it_says_what_is_missing() -> None:
    expected = "<mixorder.explain of Block: call it with the inputs, explain(model)(*inputs)>"
    assert repr(mixorder.explain(Block(32))) == expected
    assert "explain of relu: call it" in repr(mixorder.explain(F.relu))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="torch.compile has no option 'mixorder_splt_size'"):
        mixorder.explain(Block(32), options={"mixorder_splt_size": 4})(torch.randn(8, 32))


def test_options_hold() -> None:
    x = torch.randn(300, 32, requires_grad=True)
    options = {**ANY_SIZE, "mixorder_split_size": 10}
    (region,) = mixorder.explain(Block(32), options=options)(x).regions
    assert isinstance(region, RegionRecord) and region.schedule.splits == 30


class Broken(Block):
    """Captured once, for the first of two, with the graph break between."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.norm(x))
        torch._dynamo.graph_break()
        return x.sin()


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.last = nn.Sequential(Broken(32), Broken(32)), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.parts(x))


def test_names_are_whole_after_a_graph_break() -> None:
    found = mixorder.explain(Around(), options=ANY_SIZE)(torch.randn(300, 32, requires_grad=True))
    origins = {path for region in found.regions for path, _ in region.provenance.modules}
    assert origins == {"parts.0.norm", "last"}
    (other,) = (norm for norm in found.norms if norm.reason)
    assert other.path == "parts.1.norm" and "shares the graph of an equal module" in other.reason
    assert "some modules run the same compiled graph" in " ".join(str(found).split())


class Twice(nn.Module):
    """One norm by two names; dynamo knows it by the second, `named_modules` by the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(32)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x)


def test_a_norm_with_two_names_is_one() -> None:
    found = mixorder.explain(Twice(), options=ANY_SIZE)(torch.randn(300, 32, requires_grad=True))
    assert [(norm.path, norm.reason) for norm in found.norms] == [("first", "")]


class Choice(nn.Module):
    """Four norms: one that trains, one that does not run, one with gradients off, one that is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(32, 32)
        self.used, self.idle, self.off, self.cut = (nn.LayerNorm(32) for _ in range(4))

    def forward(self, x: Tensor, other: bool = False) -> Tensor:
        if other:
            return self.idle(x)
        with torch.no_grad():
            y = self.off(x)
        return self.used(self.mix(x)) + y + self.cut(x).detach()


def test_a_norm_without_a_region_says_why_not() -> None:
    x = torch.randn(300, 32, requires_grad=True)
    found = {norm.path: norm.reason for norm in mixorder.explain(Choice(), options=ANY_SIZE)(x).norms}
    assert found["used"] == ""
    assert "did not run" in found["idle"]
    assert "its result needs no gradient" in found["off"] == found["cut"]
    (plain,) = mixorder.explain(nn.LayerNorm(32), options=ANY_SIZE)(x.detach()).norms
    assert plain.reason == found["off"]
    with torch.no_grad():
        none = mixorder.explain(nn.LayerNorm(32), options=ANY_SIZE)(x)
    assert none.norms[0].reason == plain.reason
    assert none.notes == ("no backward ran: gradients are off (no_grad or inference_mode)",)
    with torch.inference_mode():
        none = mixorder.explain(nn.LayerNorm(32), options=ANY_SIZE)(torch.randn(300, 32))
    assert none.norms[0].reason == plain.reason and not none.regions
    assert none.notes[0] in " ".join(str(none).split()) and json.loads(none.to_json())["notes"] == list(
        none.notes
    )


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return y.sin() if y.mean() > 0 else y.cos()


def test_a_branch_on_a_value_is_a_graph_break_and_impossible_without_data() -> None:
    x = torch.randn(300, 32, requires_grad=True)
    found = mixorder.explain(Branch(), options=ANY_SIZE)(x)
    assert found.graph_breaks == 1 and len(found.graphs) == 4 and len(found.regions) == 1
    with torch.device("meta"):
        model, x = Branch(), torch.randn(300, 32, requires_grad=True)
    told = r"value of a tensor at .*test_explain.py:\d+, .* on the CPU"
    with pytest.raises(CannotExplain, match=told) as raised:
        mixorder.explain(model)(x)
    assert len(traceback.format_exception(raised.value)) < 15


def test_a_training_step_runs_its_own_backward() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[1].weight.grad = torch.full((32,), 3.0)

    def step(x: Tensor, update: bool) -> Tensor:
        loss = model(x).sin().sum()
        loss.backward()
        if update:
            optimizer.step()
        return loss

    x = torch.randn(300, 32, requires_grad=True)
    found = mixorder.explain(step, options=ANY_SIZE)(x, False)
    assert [norm.path for norm in found.norms if not norm.reason] == ["model.1"]
    assert len(found.regions) == 2  # the norm's, and that of the loss, which is a sum of all elements
    assert found.notes == ("the function runs its own backward, and that backward was analysed",)
    assert model[0].weight.grad is None and torch.equal(model[1].weight.grad, torch.full((32,), 3.0))
    assert any("changed its parameters" in n for n in mixorder.explain(step)(x, True).notes)


def test_a_function_under_no_grad_still_knows_its_norms() -> None:
    model = nn.LayerNorm(32)

    @torch.no_grad()
    def function(x: Tensor) -> Tensor:
        return model(x)

    found = mixorder.explain(function)(torch.randn(300, 32, requires_grad=True))
    assert [norm.path for norm in found.norms] == ["model"] and found.norms[0].reason
    assert "no result of the model needs a gradient" in " ".join(str(found).split())


def test_a_function_with_a_model_without_data_cannot_be_analysed() -> None:
    with torch.device("meta"):
        model, x = nn.LayerNorm(32), torch.randn(300, 32, requires_grad=True)
    with pytest.raises(CannotExplain, match="pass the model and its inputs"):
        mixorder.explain(lambda x: model(x).sin())(x)


def test_a_bug_is_not_told_as_a_reason_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("mixorder.pipeline.check_time", broken)
    with pytest.warns(UserWarning, match="mixorder failed in stage 'gate'"):
        found = mixorder.explain(Block(32), options={"mixorder_min_numel": 0, "mixorder_strict": False})(
            torch.randn(300, 32, requires_grad=True)
        )
    (note,) = found.notes
    failed = "mixorder failed in stage 'gate' on region0: ZeroDivisionError: a bug"
    assert note == f"not fused because of a bug: {failed}" and note in " ".join(str(found).split())
    assert [norm.reason for norm in found.norms] == [
        "mixorder failed on a pair, which may be this norm's (see the note)"
    ]


def test_activations_that_the_forward_pads() -> None:
    """A head's logits lie with gaps between their rows, and their gradient is written over them."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 3001)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.last(F.gelu(self.first(x))).float(), labels)

    report = mixorder.explain(Head().bfloat16(), options={"mixorder_min_numel": 0})(
        torch.randn(2048, 64, dtype=torch.bfloat16), torch.zeros(2048, dtype=torch.long)
    )
    (region,) = (r for r in report.regions if r.space.cols == 3001)
    strides = {b.name: b.stride[0] for b in region.loops.buffers if b.shape == (2048, 3001)}
    (gradient,) = region.loops.role(BufferRole.OUTPUT)[:1]
    assert set(strides.values()) == {3008} and gradient.over in strides
    before, after = region.planning.peak
    assert after - region.traffic.workspace <= before


class Repeated(nn.Module):
    """Dynamo compiles it once for all modules that are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.linear(self.norm(x))
        torch._dynamo.graph_break()
        return y


def test_a_graph_that_runs_for_several_modules_counts_as_often() -> None:
    x = torch.randn(512, 256, requires_grad=True)
    one, three = (mixorder.explain(nn.Sequential(*(Repeated() for _ in range(n))))(x) for n in (1, 3))
    assert len(three.regions) == len(one.regions) == 1 and (one.totals.runs, three.totals.runs) == (1, 3)
    assert three.totals.saved_us == pytest.approx(3 * one.totals.saved_us)
    assert three.totals.launches == 3 * one.totals.launches
    assert "1 region, run 3 times: " in str(three) and ", run " not in str(one)
    assert any("for each run" in note for note in three.notes)


class Grouped(nn.Module):
    """Group norms of pictures whose backward ends in small sums, and no graph of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix = nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 1)
        self.last = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mix(self.first(x)).permute(0, 2, 3, 1))


def test_a_norm_is_not_judged_by_sums_that_its_backward_has_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason, or a region, that is about less than the norm's input is not the norm's."""
    monkeypatch.setattr(find, "may_be_over_reduction_group", lambda node: False)
    x = torch.empty(64, 32, 32, 32, requires_grad=True, device="meta")
    for options in ({}, ANY_SIZE):
        found = mixorder.explain(Grouped().to("meta"), options=options)(x)
        about = [r for graph in found.graphs for r in graph.records if "first" in str(r.provenance)]
        assert all(r.provenance.numel < x.numel() for r in about) and about
        first, last = (norm.reason for norm in found.norms)
        assert "no sums that mixorder would fuse" in first and not last


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_graphs_are_those_that_a_gpu_has(device: str) -> None:
    """On a CPU torch decomposes a group norm otherwise, keeps statistics in half precision, and computes the
    gradient of a bias within the convolution's backward."""
    norms = nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 8, 1), nn.BatchNorm2d(8), nn.ReLU()
    model = nn.Sequential(nn.Conv2d(8, 32, 1), *norms, nn.Conv2d(8, 8, 1)).bfloat16()
    x = torch.zeros(2, 8, 64, 64, dtype=torch.bfloat16, device=device)
    lies = {"memory_format": torch.channels_last}
    found = mixorder.explain(model.to(device, **lies), options=ANY_SIZE)(x.to(**lies))
    forward, backward = ([r for r in g.records if isinstance(r, RegionRecord)] for g in found.graphs)
    assert any(("1", "GroupNorm") in r.provenance.modules for r in forward)
    (group,) = (r for r in backward if ("1", "GroupNorm") in r.provenance.modules)
    assert ("0", "Conv2d") in group.provenance.modules
    (batch,) = (r for r in backward if ("4", "BatchNorm2d") in r.provenance.modules)
    statistics = [t.dtype for t in batch.inputs if len(t.shape) == 4 and t.shape[0] == 1]
    assert statistics and set(statistics) == {"f32"}


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm, self.last = nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.last(self.norm(self.mix(x))).softmax(-1)


@pytest.mark.filterwarnings("error:CUDA is not available")
def test_autocast_casts_as_on_a_gpu() -> None:
    """A CPU's computes the softmax in bfloat16, as it does again afterwards."""
    with torch.device("meta"):
        model, x = Cast(), torch.randn(512, 256, requires_grad=True)
    found = mixorder.explain(model, options=ANY_SIZE)(x)
    (last,) = (r for r in found.regions if ("last", "Linear") in r.provenance.modules)
    (norm,) = (r for r in found.regions if ("norm", "LayerNorm") in r.provenance.modules)
    assert list(map(str, last.inputs)) == 2 * ["f32[512, 256]"]
    assert "f32[512, 1]" in map(str, norm.inputs) and "bf16[512, 256]" in map(str, norm.outputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ones(2, 2, dtype=torch.bfloat16).softmax(-1).dtype == torch.bfloat16


class Captured(nn.Module):
    """A graph break in a loop, of which torch.compile then captures nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x)
            torch._dynamo.graph_break()
        return x


def test_a_model_of_which_nothing_is_captured_says_so() -> None:
    found = mixorder.explain(Captured())(torch.randn(8, 32))
    assert found.graphs == () and "torch.compile captured no graph." in str(found)
    assert all("captured nothing of it" in norm.reason for norm in found.norms)
