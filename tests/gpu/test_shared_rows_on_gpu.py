"""Rows that several programs share, on a GPU: exact, the same bits every time, and never stuck."""

import copy
import time

import gradients
import pytest
import torch
import triton
import triton.language as tl
from gradients import as_exact, case, errors, exact, grads, same
from support.compilers import STRICT
from torch import nn

from mixorder.codegen import cooperative as shared
from mixorder.codegen import exchange
from mixorder.report import collect

BF16, F32 = torch.bfloat16, torch.float32


class Residual(nn.Module):
    """The gradient around the norm is added to the one through it."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x):
        return x + self.norm(x)


NORMS = {"layer": nn.LayerNorm, "rms": gradients.NORMS["rms"], "residual": Residual}


def compiled(module, **options):
    torch._dynamo.reset()
    return torch.compile(module, options=STRICT | options, dynamic=False)


@pytest.mark.parametrize("words", [20000, 32000])
def test_a_head_with_a_bias_under_cross_entropy(words):
    """The place of its label alone decides a row's sum: it is loaded, and no row is shared."""
    head = nn.Linear(256, words, dtype=BF16).cuda()
    x, labels = (
        torch.randn(1500, 256, device="cuda", dtype=BF16),
        torch.randint(words, (1500,), device="cuda"),
    )
    labels[::7] = -100  # left out

    def loss(module):
        return lambda x: nn.functional.cross_entropy(module(x).to(torch.promote_types(x.dtype, F32)), labels)

    with collect() as records:
        ours = grads(compiled(loss(head)), head, x, None)
    assert [r.schedule.group for r in records] == [1], records
    stock = grads(compiled(loss(head), mixorder=False), head, x, None)
    wide = copy.deepcopy(head).double()
    as_exact(ours, stock, grads(loss(wide), wide, x.double(), None), 1.05, 4 * torch.finfo(F32).eps)


@pytest.mark.parametrize("rows", [2, 77, 4096])
def test_symbolic_rows(rows):
    module, x, dy = case(NORMS["rms"], (1000, 16400), BF16)
    function = torch.compile(module, options=STRICT)
    with collect() as records:
        grads_of_dynamic(function, module, x, dy)
        x, dy = (torch.randn(rows, 16400, device="cuda", dtype=BF16) for _ in range(2))
        ours = grads_of_dynamic(function, module, x, dy)
    assert [r.schedule.group > 1 for r in records] == [True]
    assert max(errors(ours, exact(module, x, dy))) < 0.01


def grads_of_dynamic(function, module, x, dy):
    x.requires_grad_()
    torch._dynamo.mark_dynamic(x, 0)
    return torch.autograd.grad(function(x), [x, *module.parameters()], dy)


def left_alone(monkeypatch):
    """No program sees a word in its first turn: each tells all parts' words itself, and runs once more."""
    peek = exchange.Record.peek
    monkeypatch.setattr(shared, "POLLS", f"tl.where(turn > 0, {exchange.POLLS}, 0)")
    monkeypatch.setattr(
        exchange.Record, "peek", lambda self, pointer: f"tl.where(turn > 0, {peek(self, pointer)}, -1)"
    )


def layer_backward(x, dy, w, mean, rstd):
    back = torch.ops.aten.native_layer_norm_backward
    return back(dy, x, [x.shape[-1]], mean, rstd, w, w, [True] * 3)


def rms_backward(x, dy, w, mean, rstd):
    x_hat, wdy = x.float() * rstd, dy.float() * w.float()
    dx = (wdy - x_hat * (wdy * x_hat).mean(-1, keepdim=True)) * rstd
    return dx.to(x.dtype), (dy.float() * x_hat).sum(0).to(w.dtype)


def shared_backward(function, *args):
    """A backward alone: from compile to compile, Inductor may choose other kernels for a forward."""
    torch._dynamo.reset()
    with torch.no_grad(), collect() as records:
        found = torch.compile(function, options=STRICT, dynamic=False)(*args)
    assert [r.schedule.group > 1 for r in records] == [True], records
    return found


def head_backward(x, dy, w, mean, rstd):
    """Cross-entropy's backward behind a biased head: the place of a label alone decides the row's sum."""
    labels = (mean.abs() * 1000).long() % x.shape[1]
    scaled = torch.where(labels == torch.arange(x.shape[1], device=x.device), -rstd, 0.0)
    dx = scaled - torch.exp(x.float() - 20) * scaled.sum(1, keepdim=True)
    return dx.to(x.dtype), dx.sum(0)


BACKWARDS = [layer_backward, rms_backward, head_backward]
# The last three: rows that do not begin at a boundary of wide accesses, and a last tile that is not full.
TURNS = [(2048, 16384), (1000, 20000), (301, 65536), (300, 16391), (2048, 20001), (517, 33000)]
# Behind a head, rows that begin at such a boundary are not shared: their sums are loaded.
SHARED = [(f, *shape) for f in BACKWARDS for shape in TURNS if f is not head_backward or shape[1] % 8]


def arguments(rows, cols, dtype):
    x, dy = (torch.randn(rows, cols, device="cuda", dtype=dtype) for _ in range(2))
    w = torch.randn(cols, device="cuda", dtype=dtype)
    return x, dy, w, torch.randn(rows, 1, device="cuda") * 0.1, torch.rand(rows, 1, device="cuda") + 0.5


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("backward", "rows", "cols"), SHARED)
def test_more_turns_give_the_same_bits(backward, rows, cols, dtype, monkeypatch):
    args = arguments(rows, cols, dtype)
    usual = shared_backward(backward, *args)
    with monkeypatch.context() as patch:
        patch.setattr(shared, "POLLS", 0)  # some words are there in time, others are not
        hasty = shared_backward(backward, *args)
    left_alone(monkeypatch)
    alone = shared_backward(backward, *args)
    assert same(usual, hasty) and same(usual, alone)


@triton.jit
def spin(out_ptr, turns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = at.to(tl.float32)
    for _ in range(turns):
        value = value * 0.999 + 0.5
    tl.store(out_ptr + tl.program_id(0) * BLOCK + at, value)


def occupy(programs, turns=3_000_000):
    """Programs of 1024 threads each that take the GPU's multiprocessors for some milliseconds."""
    out = torch.empty(programs * 1024, device="cuda")
    spin[(programs,)](out, turns, BLOCK=1024, num_warps=32)
    return out


class Running:
    """The compiled backward at one shape: call it, and ask whether all results were the first one."""

    def __init__(self, rows, cols):
        self.args = arguments(rows, cols, BF16)
        with collect() as records, torch.no_grad():
            self.function = torch.compile(rms_backward, options=STRICT, dynamic=False)
            self.first = self.function(*self.args)
        assert [r.schedule.group > 1 for r in records] == [True]
        self.stream = torch.cuda.Stream()
        self.differing = torch.zeros((), device="cuda", dtype=torch.int64)
        torch.cuda.synchronize()

    def __call__(self):
        with torch.cuda.stream(self.stream), torch.no_grad():
            for mine, first in zip(self.function(*self.args), self.first, strict=True):
                self.differing += (mine.view(torch.int16) != first.view(torch.int16)).sum()

    def always_the_same(self):
        torch.cuda.synchronize()
        return int(self.differing) == 0


def test_two_streams_at_once():
    """Twice the same kernel, each with words of its own, and two different ones."""
    started = time.perf_counter()
    one, other = Running(2048, 16384), Running(1024, 32768)
    twin = copy.copy(one)
    twin.stream, twin.differing = torch.cuda.Stream(), torch.zeros_like(one.differing)
    torch.cuda.synchronize()
    for _ in range(200):
        one()
        other()
        twin()
    assert one.always_the_same() and other.always_the_same() and twin.always_the_same()
    assert time.perf_counter() - started < 60


@pytest.mark.parametrize("share", [0.3, 0.7, 1.0, 3.0])
def test_beside_a_kernel_that_takes_multiprocessors(share):
    """Not all programs of a group run at the same time then: those that run must not wait for ever."""
    started = time.perf_counter()
    running, aside = Running(2048, 16384), torch.cuda.Stream()
    threads = torch.cuda.get_device_properties(0).multi_processor_count * 2  # of 1024, all that there is
    occupy(1)
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(aside):
            kept = occupy(int(share * threads))
        for _ in range(5):
            running()
    assert running.always_the_same() and kept.isfinite().all()
    assert time.perf_counter() - started < 60


RUNS = 100


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("backward", "rows", "cols"), SHARED)
def test_the_same_bits_beside_load(backward, rows, cols, dtype):
    """Another stream holds most multiprocessors, so that some programs of a group come long after others."""
    args, aside = arguments(rows, cols, dtype), torch.cuda.Stream()
    torch._dynamo.reset()
    with torch.no_grad(), collect() as records:
        function = torch.compile(backward, options=STRICT, dynamic=False)
        first = [t.clone() for t in function(*args)]
    assert [r.schedule.group > 1 for r in records] == [True], records
    threads = torch.cuda.get_device_properties(0).multi_processor_count * 2
    differing = torch.zeros((), device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    for run in range(RUNS):
        if run % 5 == 0:
            with torch.cuda.stream(aside):
                occupy(int((0.5, 0.9, 1.5)[run % 3] * threads), turns=200_000)
        with torch.no_grad():
            for mine, same_as in zip(function(*args), first, strict=True):
                differing += (mine.view(torch.uint8) != same_as.view(torch.uint8)).sum()
    torch.cuda.synchronize()
    assert int(differing) == 0


def test_beside_matrix_products():
    started = time.perf_counter()
    running, aside = Running(2048, 16384), torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda", dtype=BF16)
    torch.cuda.synchronize()
    for _ in range(200):
        with torch.cuda.stream(aside):
            a @ a
        running()
    assert running.always_the_same()
    assert time.perf_counter() - started < 60


def test_cuda_graphs_are_replayed():
    """The first run is none of a graph, but of the same kernels. (Those of another compile may differ: of two
    for this norm's forward, Inductor takes the one that was faster.)"""
    module, x, dy = case(NORMS["layer"], (1024, 16384), BF16)
    function = compiled(module, **{"triton.cudagraphs": True})
    first, *replayed = ([g.clone() for g in stepped(function, module, x, dy)] for _ in range(50))
    assert all(same(first, other) for other in replayed)
    plain, truths = grads(compiled(module), module, x, dy), exact(module, x, dy)
    as_exact(first, plain, truths, 1.001, 0)


def stepped(function, module, x, dy):
    torch.compiler.cudagraph_mark_step_begin()
    return grads(function, module, x, dy)


def test_a_graph_captured_by_hand_is_replayed():
    """The words are emptied within the graph, before each run."""
    running = Running(1024, 16384)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        results = running.function(*running.args)
    for _ in range(50):
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        assert same(running.first, results)
