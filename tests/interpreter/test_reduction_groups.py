"""Norms whose sums span reduction groups: a channel's elements, a group's or a sample's. Their gradients."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from unittest import mock

import pytest
import torch
from graphs import bf16, f32, randomised
from grids import crossed
from running import (
    OFF,
    ON,
    Counting,
    Tensors,
    check,
    compiled,
    exact_gradients,
    gradients,
    run_fused,
    unfused,
)
from support.effects import watched
from support.inputs import poisoned
from support.over_reduction_groups import OVER_REDUCTION_GROUPS, Responses, Shifted, Stored
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as fx_config
from torch.utils._pytree import tree_leaves

from mixorder import planning
from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import BufferRole, Load, Store
from mixorder.report import RegionRecord, collect
from mixorder.schedule import reduction_groups, whole_groups
from mixorder.schedule.device import MEASURED as H200
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.strategies.reduction_groups import TWO_PASS
from mixorder.strategies.whole_groups import WHOLE_GROUPS

Make = Callable[[], nn.Module]
OVER = (TWO_PASS.name, WHOLE_GROUPS.name)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[Strategy]:
    """The one strategy for reduction groups that compiles have. All of these fit a program, and suffice."""
    one = getattr(request, "param", TWO_PASS)
    others = tuple(s for s in STRATEGIES if not s.over_reduction_groups)
    with (
        planning.planning_with(
            strategies=(*others, one),
            device=dataclasses.replace(H200, num_sm=1) if one is WHOLE_GROUPS else None,
        ),
        mock.patch.object(whole_groups, "resident", lambda *_: 48 << 10),
    ):
        yield one


with_both_strategies = pytest.mark.parametrize(
    "way", [TWO_PASS, WHOLE_GROUPS], ids=["two passes", "one"], indirect=True
)


class Blocks(nn.Module):
    """Two residual blocks. The gradient of the sum in each goes on to the block before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        make = functools.partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        self.convolutions = nn.ModuleList(make() for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = torch.relu(norm(convolution(x)) + x)
        return x


# `support/over_reduction_groups.py` has the norms in their usual forms.
NORMS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "batch of one": (lambda: nn.BatchNorm2d(16), (1, 16, 40, 30)),
    "batch, no running statistics": (lambda: nn.BatchNorm2d(16, track_running_stats=False), (4, 16, 20, 16)),
    "batch, no statistics in evaluation": (
        lambda: nn.BatchNorm2d(16, track_running_stats=False).eval(),
        (4, 16, 20, 16),
    ),
    "batch, no parameters": (lambda: nn.BatchNorm2d(16, affine=False), (4, 16, 20, 16)),
    "group, no parameters": (lambda: nn.GroupNorm(4, 32, affine=False), (3, 32, 12, 8)),
    "instance": (
        lambda: nn.Sequential(nn.InstanceNorm2d(17, affine=True), nn.LeakyReLU()),
        (2, 17, 40, 30),
    ),
    "instance, running statistics": (
        lambda: nn.InstanceNorm2d(16, track_running_stats=True),
        (2, 16, 40, 30),
    ),
}


def lying(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> torch.Tensor:
    x = (torch.randn(shape) * 2 + 1).to(dtype)
    return x.to(memory_format=torch.channels_last) if last else x


def strides(tensors: Iterable[torch.Tensor]) -> list[list[int]]:
    """Those of the dims that have several elements."""
    return [[t.stride(d) for d, n in enumerate(t.shape) if n > 1] for t in tensors]


def over_reduction_groups(
    module: nn.Module, x: torch.Tensor, dy: torch.Tensor, channels: int = 0, lies: bool = True
) -> list[RegionRecord]:
    """The regions over reduction groups of gradients that are as exact as the unfused ones, and lie as these.
    With `channels` these are of the compiled graph, else eager; there are as many as the second dim has."""
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    stock = gradients(module, x, dy, OFF) if channels else unfused(module, x, dy)
    if lies and strides(ours) != strides(stock):
        stock = gradients(module, x, dy, OFF)  # torch 2.14: eager's order is not that of the graph
    check(ours, stock, exact_gradients(module, x, dy), x.numel() // (channels or x.shape[1]))
    assert not lies or strides(ours) == strides(stock)
    return [r for r in records if not isinstance(r, Decline) and r.strategy in OVER]


@with_both_strategies
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels last"])
@pytest.mark.parametrize("name", NORMS)
def test_gradients(name: str, last: bool, way: Strategy) -> None:
    make, shape = NORMS[name]
    torch.manual_seed(1)
    module = randomised(make(), f32)
    x, dy = (lying(shape, f32, last) for _ in range(2))
    found = over_reduction_groups(module, x, dy)
    inductors = (name == "batch of one" or "instance" in name) and not last  # it reads a row again from L2
    assert {one.strategy for one in found} == (set() if inductors else {way.name})
    assert all(len(one.kernels) == 3 if way is TWO_PASS else len(one.kernels) <= 2 for one in found)


@pytest.mark.parametrize(("last", "dtype"), [(False, bf16), (True, f32)])
def test_residual_blocks(last: bool, dtype: torch.dtype) -> None:
    """Each block has a region of its own. The first pass stores the gradient that goes on, the second
    reads that, and both write over tensors that nothing reads any longer."""
    torch.manual_seed(7)
    module = Blocks(24).to(dtype)
    if last:
        module = module.to(memory_format=torch.channels_last)
    x, dy = (lying((4, 24, 18, 16), dtype, last) for _ in range(2))
    found = over_reduction_groups(module, x, dy, 24)
    assert len(found) == 2
    for one, (reused, stored) in zip(found, [(1, 1), (2, 1)], strict=True):
        over = [b.over for b in one.loops.buffers if b.over]
        assert len(over) == reused and {n for k in one.kernels for n in k.written}.issuperset(over)
        outputs = {b.name for b in one.loops.role(BufferRole.OUTPUT)}
        again = {s.buffer for s in one.loops.nests[2].body if isinstance(s, Load)} & outputs
        assert len(again) == stored


def test_a_frozen_weight() -> None:
    """Only the gradient of the input is computed."""
    torch.manual_seed(3)
    module = randomised(nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()), f32).requires_grad_(False)
    x, dy = (lying((4, 16, 20, 16), f32, True) for _ in range(2))

    def gradient(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Tensors:
        own = x.detach().to(dtype).requires_grad_()
        return torch.autograd.grad(function(own), own, dy.to(dtype))

    with collect() as records:
        ours = gradient(compiled(ON)(module), f32)
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [TWO_PASS.name]
    stock, exact = gradient(module, f32), gradient(copy.deepcopy(module).double(), torch.float64)
    check(ours, stock, exact, x.numel() // 16)


def of_any_batch(module: nn.Module, batches: Iterable[Sequence[torch.Tensor]]) -> list[RegionRecord]:
    """The records of regions over reduction groups, after one compile for inputs of several batches. The pass
    adds no guard. `backed_size_oblivious` lets a batch of 1 into the graph, where torch has none against it,
    and one of 0 where nothing is divided by it: run node by node, a graph also divides if that is not
    needed."""
    backend, exact = Counting(), copy.deepcopy(module).double()
    torch._dynamo.reset()
    with fx_config.patch(backed_size_oblivious=True), collect() as records, watched(moved := list[str]()):
        function = torch.compile(module, backend=backend, dynamic=False)
        for inputs in batches:
            dy = torch.randn_like(inputs[0])
            for one in inputs:
                torch._dynamo.maybe_mark_dynamic(one.requires_grad_(), 0)
            wide = [t.detach().double().requires_grad_() for t in inputs]
            ours, stock, truth = (
                torch.autograd.grad(f(*given), [*given, *f.parameters()], dy.to(given[0].dtype))
                for f, given in ((function, inputs), (module, inputs), (exact, wide))
            )
            check(ours, stock, truth, dy.numel() // dy.shape[1])
    assert backend.compiles == 1 and not moved
    return [r for r in records if isinstance(r, RegionRecord) and r.strategy in OVER]


# Samples of the smallest batch, where it is not 1.
LEAST = {"BatchNorm1d, ReLU": 2, "Dice": 2, "GroupNorm, SiLU": 0, "GRN of ConvNeXt-V2": 2}
LEAST |= {name: 2 for name, case in OVER_REDUCTION_GROUPS.items() if case.forward(*case.shapes.small)}
# Some have a parameter for each sample; the last one takes the interpreter long.
NOT_ANY_BATCH = [
    name for name in OVER_REDUCTION_GROUPS if any(t in name for t in ("gate", "of samples", "of all"))
]
NOT_ANY_BATCH += ["InstanceNorm3d, LeakyReLU"]


@with_both_strategies
@pytest.mark.parametrize("name", [name for name in OVER_REDUCTION_GROUPS if name not in NOT_ANY_BATCH])
def test_one_compile_for_all_batches(name: str, way: Strategy) -> None:
    """Also where a program has no element, or the second kernel has several tiles of samples."""
    torch.manual_seed(9)
    case, (first, *sizes) = OVER_REDUCTION_GROUPS[name], OVER_REDUCTION_GROUPS[name].shapes.small
    batches = (
        [
            torch.randn(batch, *sizes).mul(2).add(1).contiguous(memory_format=case.memory_format)
            for _ in case.inputs
        ]
        for batch in (first, 2 * first + 3, LEAST.get(name, 1))
    )
    fused = [space for space, *_ in case.fused(first, *sizes)]
    if way is WHOLE_GROUPS:  # a channel's elements of all samples are as many as there are samples
        fused = [space for space in fused if space.startswith("column")]
    assert len(of_any_batch(case.make(first, *sizes), batches)) == len(fused)


LEFT: dict[str, tuple[Make, tuple[int, ...]]] = {
    "in evaluation": (lambda: nn.BatchNorm2d(16).eval(), (4, 16, 20, 16)),
    "a momentum that Dynamo does not trace": (lambda: nn.BatchNorm2d(16, momentum=None), (4, 16, 20, 16)),
    "no elements": (lambda: nn.GroupNorm(4, 16), (0, 16, 20, 16)),
    "one element for each channel": (lambda: nn.BatchNorm2d(64), (16, 64, 1, 1)),
    "a short column": (lambda: nn.Softmax(1), (4, 64, 8, 8)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_inductor(name: str) -> None:
    """Nothing is summed before elements are computed, or one of Inductor's kernels does it all."""
    make, shape = LEFT[name]
    torch.manual_seed(4)
    module = make()
    x, dy = (lying(shape, f32, True) for _ in range(2))
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    assert not any(isinstance(r, RegionRecord) and r.strategy == TWO_PASS.name for r in records)
    for mine, eager in zip(ours, unfused(module, x, dy), strict=True):
        assert torch.allclose(mine, eager, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("shape", "of_x", "of_dy"), crossed([(3, 64, 12, 8), (1, 40, 13, 7)], [False, True], [False, True])
)
def test_tensors_that_lie_in_two_orders(shape: tuple[int, ...], of_x: bool, of_dy: bool) -> None:
    """Of a channels-last x and a contiguous dy, a tile is read along its rows and along its columns."""
    torch.manual_seed(5)
    module = Stored(shape[1], 8, torch.channels_last if of_dy else torch.contiguous_format)
    x, dy = lying(shape, bf16, of_x), lying(shape, bf16, of_dy)
    assert len(over_reduction_groups(randomised(module, bf16), x, dy)) == 1


class Between(nn.Module):
    """A group norm between convolutions, as a GPU has it: contiguous, whatever the convolutions' order. The
    gradient of the bias is a sum, as it is there."""

    def __init__(self, channels: int, groups: int, active: bool, affine: bool) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(channels, channels, 1, bias=False) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.norm = nn.GroupNorm(groups, channels, affine=affine)
        self.then = nn.SiLU() if active else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.then(self.norm((self.first(x) + self.bias[:, None, None]).contiguous())))


BETWEEN = [
    ((3, 40, 7, 9), 4, True, True),
    ((1, 26, 23, 11), 2, False, True),
    ((2, 64, 12, 8), 16, True, False),
    ((4, 32, 1, 40), 8, True, True),
]


@pytest.mark.parametrize(("shape", "groups", "active", "affine"), BETWEEN)
def test_a_gradient_lies_as_what_it_is_computed_from(
    shape: tuple[int, ...], groups: int, active: bool, affine: bool
) -> None:
    """It is stated to be contiguous. A convolution takes it, whose own order is that of the others."""
    torch.manual_seed(7)
    module = randomised(Between(shape[1], groups, active, affine), f32).to(memory_format=torch.channels_last)
    x, dy = (lying(shape, f32, True) for _ in range(2))
    *_, one = over_reduction_groups(module, x, dy)  # the forward of small groups is one, too
    assert len(one.kernels) == 4  # the last one adds up the gradient of the bias
    full = [b for b in one.loops.buffers if b.numel == x.numel()]
    assert len(full) == 3
    assert all(b.stride[1] == 1 or b.stride[2] == 1 for b in full), [b.stride for b in full]


class Skip(nn.Module):
    """A skip behind a convolution, in front of a group norm and another one, as in a U-Net."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(channels, 2 * channels, 1), nn.Conv2d(3 * channels, channels, 1)
        self.norm = nn.GroupNorm(8, 3 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.first(x), x], 1)
        return self.last(nn.functional.silu(self.norm(y.contiguous())))


def test_a_gradient_of_which_parts_are_read_lies_as_what_it_is_computed_from() -> None:
    torch.manual_seed(7)
    module = randomised(Skip(16), f32).to(memory_format=torch.channels_last)
    x, dy = (lying((3, 16, 12, 9), f32, True) for _ in range(2))
    (one,) = over_reduction_groups(module, x, dy, lies=False)
    full = [b for b in one.loops.buffers if b.numel == 3 * x.numel()]
    assert len(full) == 3 and all(1 in b.stride[1:3] for b in full), [b.stride for b in full]


@pytest.mark.parametrize(
    ("shape", "active", "dtype"), [((2, 20, 7, 24), True, bf16), ((1, 9, 31, 10), False, f32)]
)
def test_sums_over_more_axes(shape: tuple[int, ...], active: bool, dtype: torch.dtype) -> None:
    """The third kernel adds them up beside the gradient of a bias, and a fourth one has their totals. Of one
    sample, all sums but that are over the same axes."""
    torch.manual_seed(10)
    channels = shape[-1]
    before = [nn.Linear(channels, channels), nn.GELU()] if active else []
    module = randomised(nn.Sequential(*before, Responses(channels)), dtype)
    x, dy = (lying(shape, dtype, False) for _ in range(2))
    *_, last = over_reduction_groups(module, x, dy, channels)
    assert (len(last.outer), len(last.kernels)) == (4 + active, 4 if shape[0] > 1 else 3)


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels last"])
def test_a_norm_behind_another(last: bool) -> None:
    """The sums of the first are parts in the third kernel of the second. Elements that need their totals are
    none of that kernel's."""
    torch.manual_seed(14)
    module = randomised(nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16)), f32)
    x, dy = (lying((4, 16, 20, 16), f32, last) for _ in range(2))
    (one,) = over_reduction_groups(module, x, dy)
    assert (len(one.outer), len(one.kernels)) == (4, 4)


PAIRS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "an outer product": torch.outer,
    "one sum by itself": lambda a, _: a[:, None] * a[None],
    "a matrix product over one element": lambda a, b: a[:, None] @ b[None],
    "comparisons": lambda a, b: (a[:, None] > b[None]).to(a.dtype),
    "a choice": lambda a, b: torch.where(a[:, None] > 0, b[None], a[:, None]),
    "a matrix and its transpose": lambda a, b: (a[:, None] + b) + (a[:, None] + b).T,
    "a triangle": lambda a, b: torch.outer(a, b).triu(),
    "summed again": lambda a, b: torch.outer(a, b).abs().sum(0),
    "distances": lambda a, b: (a[:, None] - b[None]).abs().sum(-1),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_what_channels_have(name: str, last: bool) -> None:
    """A tensor with the same axis twice has elements at places that the region does not have."""

    def function(dy: torch.Tensor, h: torch.Tensor) -> Tensors:
        dims = (0, 2, 3)
        normed = (h - h.mean(dims, keepdim=True)) * torch.rsqrt(h.var(dims, keepdim=True) + 1e-5)
        both = dy.sum(dims), (dy * normed).sum(dims)
        shift, slope = (s[None, :, None, None] / (dy.numel() // dy.shape[1]) for s in both)
        return dy - shift - normed * slope, PAIRS[name](*both)

    xs = tuple(lying((4, 16, 20, 16), f32, last) for _ in range(2))
    with collect() as records:
        ours = compiled(ON)(function)(*xs)
    assert TWO_PASS.name in [r.strategy for r in records if isinstance(r, RegionRecord)]
    check(ours, function(*xs), function(*(x.double() for x in xs)), xs[0].numel())


class BehindResponses(nn.Module):
    """A norm behind a global response norm, whose result is stored for a product."""

    def __init__(self, channels: int, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.other = Responses(channels), norm, nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        return self.norm(y.movedim(-1, 1)).movedim(1, -1) + self.other(y)


BEHIND_RESPONSES = {
    "batch": nn.BatchNorm2d(24),
    "instance": nn.InstanceNorm2d(24),
    "group": nn.GroupNorm(4, 24),
    "layer": nn.LayerNorm((24, 12, 20)),
}


@pytest.mark.parametrize("name", BEHIND_RESPONSES)
def test_a_variance_of_what_is_computed_from_sums(name: str) -> None:
    """Its mean has a total only behind the third kernel, so that it is left to Inductor."""
    torch.manual_seed(16)
    module = randomised(BehindResponses(24, BEHIND_RESPONSES[name]), f32)
    x, dy = (torch.randn(3, 12, 20, 24) for _ in range(2))
    forward, *_ = over_reduction_groups(module, x, dy, 24, lies=False)
    assert [one.op for one in forward.outer] == ["sum", "mean"] and len(forward.kernels) == 3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_stored_and_reread(dtype: torch.dtype) -> None:
    """A tile of the third kernel has elements beyond the last one."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        stored = (x + y).to(dtype)
        z = stored.float()
        factor = torch.rsqrt(z.square().mean((0, 2, 3), keepdim=True) + 1e-5)
        return stored.view(torch.uint8), (z - z.mean((0, 2, 3), keepdim=True)) * factor

    torch.manual_seed(17)
    args = torch.randn(4, 16, 20, 21), torch.randn(4, 16, 20, 21)
    with collect() as records:
        (bytes_, ours), (same, eager) = run_fused(function, args), function(*args)
    assert torch.equal(bytes_, same) and torch.allclose(ours, eager, 1e-5, 1e-5)
    (one,) = (r for r in records if isinstance(r, RegionRecord))
    stored = {b.name for b in one.loops.role(BufferRole.OUTPUT) if b.dtype == dtype}
    assert stored & {s.buffer for s in one.loops.nests[2].body if isinstance(s, Load)}


class Conditioned(nn.Module):
    """A group norm behind what is computed for each channel of a sample, such as of a time step."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: torch.Tensor, of_samples: torch.Tensor) -> torch.Tensor:
        return self.norm(x + of_samples[..., None, None])


def test_a_sum_for_each_sample_of_any_batch() -> None:
    """The fourth kernel adds up more parts than the second."""
    torch.manual_seed(11)
    batches = ([lying((batch, 24, 40, 30), f32, True), torch.randn(batch, 24)] for batch in (3, 8, 2))
    found = of_any_batch(randomised(Conditioned(24), f32), batches)
    assert len(found[-1].kernels) == 4


def test_a_small_tensor_whose_innermost_dim_has_any_size() -> None:
    """No tile knows how far apart its elements are."""

    def function(x: torch.Tensor, of_samples: torch.Tensor) -> torch.Tensor:
        return x * (x.sum(1, keepdim=True) + of_samples.transpose(0, 2))

    x, of_samples = torch.randn(3, 1040, 5), torch.randn(5, 1, 3)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(of_samples, 2)
    with collect() as records:
        ours = torch.compile(function, backend=Counting(), dynamic=False)(x, of_samples)
    assert [r.reason for r in records if isinstance(r, Decline)] == [DeclineReason.DYNAMIC_SHAPE]
    assert torch.allclose(ours, function(x, of_samples), 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("of_samples", "sizes", "last"),
    crossed([False, True], [((2, 24, 30, 20), 8), ((5, 40, 13, 9), 4)], [False, True]),
)
def test_a_fourth_kernel_adds_up_what_the_third_has_computed(
    of_samples: bool, sizes: tuple[tuple[int, ...], int], last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several parts at a time."""
    shape, groups = sizes
    monkeypatch.setattr(reduction_groups, "MOST_PARTIALS", 128)
    torch.manual_seed(8)
    module = randomised(Shifted(shape[1], groups, shape[0] if of_samples else 0), bf16)
    x, dy = (lying(shape, bf16, last) for _ in range(2))
    (one,) = over_reduction_groups(module, x, dy)
    assert len(one.kernels) == 4


@pytest.mark.parametrize("rows", [2, 300])
@pytest.mark.parametrize("make", [nn.RMSNorm, nn.LayerNorm])
def test_a_statistic_of_a_row_is_no_reduction_group(make: Callable[[int], nn.Module], rows: int) -> None:
    """Whatever the row's length. The strategies for rows have the backward of such a norm."""
    torch.manual_seed(6)
    module = make(131072)
    with collect() as records, FakeTensorMode(allow_non_fake_inputs=True):
        x, dy = (lying((rows, 131072), f32, False) for _ in range(2))
        gradients(module, x, dy, ON)
    found = [r.strategy for r in records if isinstance(r, RegionRecord)]
    assert found == ["cooperative, 32 programs to a row"]


class AsOnGPU(nn.Module):
    """A group norm in the operators that it consists of on a GPU, with its statistics."""

    def __init__(self, channels: int, groups: int, then: nn.Module | None = None) -> None:
        super().__init__()
        self.groups, self.then = groups, then or nn.Identity()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> Tensors:
        wide = x.to(torch.promote_types(x.dtype, f32)).contiguous()
        wide = wide.view(x.shape[0], self.groups, x.shape[1] // self.groups, x.shape[2] * x.shape[3])
        var, mean = torch.var_mean(wide, (2, 3), correction=0, keepdim=True)
        rstd = torch.rsqrt(var + 1e-5)
        y = ((wide - mean) * rstd).view(x.shape) * self.weight[:, None, None] + self.bias[:, None, None]
        return self.then(y).to(x.dtype), mean, rstd


STATISTICS: dict[str, tuple[tuple[int, int, int, int], int]] = {
    "groups of 8": ((2, 64, 24, 16), 8),
    "groups of 10": ((3, 40, 17, 19), 4),
    "groups of 3, many parts": ((1, 6, 61, 53), 2),
    "groups of 96": ((2, 192, 9, 11), 2),
    "one group": ((2, 24, 30, 20), 1),
}


@with_both_strategies
@pytest.mark.parametrize(("name", "offset", "dtype"), crossed(STATISTICS, [1, 1000], [f32, bf16]))
def test_statistics_and_what_follows(name: str, offset: float, dtype: torch.dtype, way: Strategy) -> None:
    """In channels-last, where a group's elements are of several rows of memory."""
    shape, groups = STATISTICS[name]
    torch.manual_seed(9)
    module = randomised(AsOnGPU(shape[1], groups, nn.SiLU()), dtype)
    x = lying(shape, dtype, True) + offset
    with collect() as records, poisoned("cpu"), torch.no_grad():
        function = compiled(ON)(module)
        ours, again = function(x), function(x)
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [way.name]
    stock, exact = compiled(OFF)(module)(x), copy.deepcopy(module).double()(x.double())
    check(ours, stock, exact, 1, offset * x.numel() ** 0.5)
    for mine, same, theirs in zip(ours, again, stock, strict=True):
        assert torch.equal(mine, same)
        assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("groups", [4, 1])
def test_statistics_with_a_batch_of_any_size(groups: int) -> None:
    """One compile for several."""
    torch.manual_seed(13)
    torch._dynamo.reset()
    module, counting = AsOnGPU(40, groups, nn.SiLU()), Counting()
    function = torch.compile(module, backend=counting, dynamic=False)
    with collect() as records, torch.no_grad():
        for samples in (3, 5, 2):
            x = lying((samples, 40, 17, 19), f32, True)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            check(function(x), module(x), copy.deepcopy(module).double()(x.double()), 1)
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [TWO_PASS.name]


class Layers(nn.Module):
    """Convolutions of a sum, and of its norm."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        make = functools.partial(nn.Conv2d, channels, channels, 1, bias=False)
        self.first, self.other, self.last = (make() for _ in range(3))
        self.norm = AsOnGPU(channels, groups, nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x) + x
        return self.last(self.norm(h)[0]) + self.other(h)


@pytest.mark.parametrize(("shape", "groups"), [((2, 64, 24, 16), 8), ((3, 40, 17, 19), 4)])
def test_an_activation_lies_as_what_it_is_computed_from(shape: tuple[int, ...], groups: int) -> None:
    """It is stated to be contiguous; a convolution and its backward take it in the order of the others. The
    first pass stores the sum, and the second one reads that."""
    torch.manual_seed(10)
    module = randomised(Layers(shape[1], groups), f32).to(memory_format=torch.channels_last)
    x, dy = (lying(shape, f32, True) for _ in range(2))
    forward, *_ = over_reduction_groups(module, x, dy)  # from torch 2.15 on, the backward has one as well
    full = [b for b in forward.loops.buffers if b.numel == x.numel()]
    assert len(full) == 4 and all(b.stride == (x.stride(0), 1, *x.stride()[2:]) for b in full)
    (stored,) = [s for s in forward.loops.nests[0].body if isinstance(s, Store)]
    assert stored.buffer in {s.buffer for s in forward.loops.nests[2].body if isinstance(s, Load)}


STATISTICS_LEFT: dict[str, tuple[Make, tuple[int, ...]]] = {
    "batch": (lambda: nn.BatchNorm2d(16), (4, 16, 20, 16)),
    "batch, averages of all": (lambda: nn.BatchNorm2d(16, momentum=None), (4, 16, 20, 16)),
    "batch, no running statistics": (lambda: nn.BatchNorm2d(16, track_running_stats=False), (4, 16, 20, 16)),
    "instance": (lambda: nn.InstanceNorm2d(16, affine=True), (2, 16, 40, 30)),
    "no elements": (lambda: AsOnGPU(16, 4), (0, 16, 20, 16)),
    "few elements": (lambda: AsOnGPU(16, 4), (4, 16, 5, 3)),
    "one element for each channel": (lambda: AsOnGPU(64, 4), (16, 64, 1, 1)),
}


@pytest.mark.parametrize("name", STATISTICS_LEFT)
def test_statistics_that_are_left_to_inductor(name: str) -> None:
    """It reads them in the order of memory, or there are few elements."""
    make, shape = STATISTICS_LEFT[name]
    torch.manual_seed(11)
    module = make()
    x, other = lying(shape, f32, True), copy.deepcopy(module)
    with collect() as records, torch.no_grad():
        ours, stock = compiled(ON)(module)(x), other(x)
    assert not any(isinstance(r, RegionRecord) for r in records)
    for mine, theirs in zip(tree_leaves((ours, module)), tree_leaves((stock, other)), strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.allclose(mine, theirs, 1e-4, 1e-4, equal_nan=True)
    for mine, theirs in zip(module.buffers(), other.buffers(), strict=True):
        assert torch.allclose(mine, theirs)


def test_statistics_in_the_order_of_the_dims_are_left_to_inductor() -> None:
    torch.manual_seed(12)
    module, x = AsOnGPU(64, 8), lying((2, 64, 24, 16), f32, False)
    with collect() as records, torch.no_grad():
        compiled(ON)(module)(x)
    assert not records


def test_samples_that_share_their_elements() -> None:
    """Each has its own sums all the same, of which a response norm makes the factor of its elements."""

    def function(x: torch.Tensor) -> Tensors:
        size = (x.square().mean((1, 2), keepdim=True) + 0.1).sqrt()
        y = x * (size / (size.mean(-1, keepdim=True) + 0.1))
        return x.mean((1, 2)), y, (x * y).sum((1, 2))

    x = torch.randn(1, 64, 32).expand(4, 64, 32)
    with torch.no_grad(), collect() as records:
        ours = compiled(ON)(function)(x)
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [TWO_PASS.name]
    for mine, exact in zip(ours, function(x.double()), strict=True):
        assert torch.allclose(mine.double(), exact, 1e-5, 1e-6)
