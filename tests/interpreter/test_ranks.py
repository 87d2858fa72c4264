"""Ranks of different sizes: a compiled graph calls its collectives in the order in which they are written.

Which regions are fused depends on sizes, so one rank may fuse what another one leaves. If fusing changed the
order of collectives, ranks would pair different ones: other numbers, an error, or a hang. Programs and their
truth are those of tests/support/ranks.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from graphs import f32, traced
from running import OFF, ON, with_options
from support.ranks import PROGRAMS, RANKS, ROWS, Called, Group, Program, interpreted_calls, off

from mixorder import pipeline, planning
from mixorder.errors import Decline
from mixorder.options import Options
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.report import collect
from mixorder.schedule.device import MEASURED as H200

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")

STUCK = 40  # seconds after which a collective that no other rank joins is an error
LIMIT = 120  # seconds after which the processes are ended
ROUNDING = 5e-6


def compiled(program: Program, arguments: Any, options: Options) -> tuple[Any, list[Called], list[Any]]:
    """What a program gives on this rank, the collectives that it called, and the records of its compile."""
    torch._dynamo.reset()
    backend = compile_for_interpreter(options)
    with interpreted_calls() as calls, collect() as records:
        results = program.run(
            Group(dist.group.WORLD.group_name),
            arguments,
            lambda function: torch.compile(function, backend=backend, dynamic=False, fullgraph=True),
        )
    return results, calls, records


def reasons(records: list[Any]) -> set[str]:
    """`fused`, and why regions were declined."""
    return {r.reason.value if isinstance(r, Decline) else "fused" for r in records}


# Two processes.


def rank_main(rank: int, folder: Path, names: Sequence[str]) -> None:
    """Run programs on one rank, each in a process group of its own, and save what they gave."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    planning._in_force[0] = planning.Setting(dataclasses.replace(H200, num_sm=5))  # as conftest.py does here
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # memory that nothing has written is NaN
    timeout = datetime.timedelta(seconds=STUCK)
    for name in names:
        program = PROGRAMS[name]
        store = dist.FileStore(str(folder / f"{name}-store"), RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
        try:
            options = with_options(min_numel=program.min_numel(rank))
            results, _, records = compiled(program, program.arguments(rank), options)
            found: Any = results, reasons(records)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        torch.save(found, folder / f"{name}-{rank}")
        dist.destroy_process_group()


def run_ranks(folder: Path, names: Sequence[str]) -> str:
    """Both ranks, to their end; says how they ended if that was not by themselves."""
    # A process that has used a GPU, or threads of autograd, cannot be forked: one that has only imported is.
    mp.set_forkserver_preload(["torch._inductor.compile_fx", "mixorder.plugin", __name__])
    given: Any = (folder, names)
    ranks = mp.start_processes(rank_main, given, nprocs=RANKS, join=False, start_method="forkserver")
    deadline = time.monotonic() + LIMIT
    try:
        while not ranks.join(timeout=1):
            if time.monotonic() > deadline:
                return f"ended after {LIMIT} s"
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
        return str(error)
    finally:
        for process in ranks.processes:
            process.kill()
    return ""


def wrong(program: Program, folder: Path) -> Iterator[str]:
    """What is wrong with what the ranks gave."""
    for rank, truth in enumerate(program.truth()):
        path = folder / f"{program.name}-{rank}"
        found = torch.load(path, weights_only=False) if path.exists() else "nothing"
        if isinstance(found, str):
            yield f"rank {rank}: {found[:300]}"
            continue
        results, why = found
        if (error := off(results, truth)) > ROUNDING:
            yield f"rank {rank} is off by {error:.1e}"
        expected = [{"too-small", "order"}, {"fused", "order"}][rank]
        if not why & expected or (rank == 0 and "fused" in why):
            yield f"rank {rank} has {why}"


MET = ("same_shape", "three", "tensor_parallel", "experts")  # every kind of collective


def test_ranks_of_different_sizes(tmp_path: Path) -> None:
    """The first leaves its regions, the second fuses them: the numbers are those of one process. The order in
    which the other programs call theirs is compared in one process."""
    end = run_ranks(tmp_path, MET)
    found = {name: list(wrong(PROGRAMS[name], tmp_path)) for name in MET}
    assert not end and not any(found.values()), (end, found)


# One process.


@pytest.fixture
def in_name_only() -> Iterator[None]:
    """Ranks whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", PROGRAMS)
def test_order_of_collectives(name: str, in_name_only: None) -> None:
    """As without mixorder where a region is fused, and the same where none is."""
    program, (few, many) = PROGRAMS[name], ROWS
    fused, left = (with_options(min_numel=program.min_numel(rank)) for rank in (1, 0))
    _, stock, _ = compiled(program, program.arguments(0, many), OFF)
    _, ours, records = compiled(program, program.arguments(0, many), fused)
    _, alone, declines = compiled(program, program.arguments(0, few), left)
    assert reasons(records) & {"fused", "order"}
    assert reasons(declines) & {"too-small", "order"}
    assert ours == stock and len(stock) >= 2
    assert [called[0] for called in ours] == [called[0] for called in alone]


def test_a_write_stays_before_a_read() -> None:
    """Of memory that the region does not read: an operator that makes one of its inputs does."""

    def function(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> Any:
        w.copy_((x * dy).sum(0))
        h = dy @ w.diag()
        return (x - (h + dy) * (x * (h + dy)).mean(1, keepdim=True),)

    args = torch.randn(64, 48), torch.randn(64, 48), torch.randn(48)
    expected = function(*(a.double() for a in args))
    graph = traced(function, *[(tuple(a.shape), f32) for a in args], in_place=True)
    prepare_interpreter()
    pipeline.run(graph, ON)
    graph.lint()
    found = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)
    assert off(found, expected) < ROUNDING
