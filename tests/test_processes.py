"""Without a GPU: what a second process finds in the caches, two processes at once, and threads.

Inductor's wrapper code is loaded and called as on a GPU; launches of our kernels are noted, and nothing runs
(tests/inductor/test_layouts.py and tests/gpu run them).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
import torch._inductor.config as config
from fresh_process import HANG_S
from recorder import Lowered, Recorder

import mixorder
from mixorder import pipeline
from mixorder.report import RegionRecord, collect

HERE = Path(__file__).parent
SCRIPT = """
import json, os, sys, types
import torch, wrapped
from graphs import pair
from torch._dynamo.utils import counters

wrapped._Interpreter = lambda: types.SimpleNamespace(run=lambda *args: None)
wrapped.install()

def masked(x, w):
    z = torch.nn.functional.batch_norm(x @ w, None, None, w[0], w[1], training=True)
    return torch.nn.functional.linear(torch.relu(z), w)

def found(options):
    for changed in options:
        torch._dynamo.reset()
        counters.clear()
        wrapped.launches.clear()
        trains = changed.pop("trains", False)
        options = wrapped.OPTIONS | changed
        function = torch.compile(masked if trains else pair, options=options, dynamic=False)
        x, w = torch.randn(37, 20), torch.randn(20 if trains else 37, 20, requires_grad=trains)
        result = function(x, w)
        if trains:
            result.sum().backward()
        yield {
            "fused": counters["mixorder"]["fused_regions"],
            "graph_hits": counters["inductor"]["fxgraph_cache_hit"],
            "autograd_hits": counters["aot_autograd"]["autograd_cache_hit"],
            "launches": [name for name, _ in wrapped.launches],
            "full": str(wrapped.launches).count("((37, 20),"),
        }

for cache, turns in json.loads(sys.argv[1]).items():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    for at_once in turns:
        children = []
        for options in at_once:
            if (child := os.fork()) == 0:
                os.write(1, (json.dumps([cache, list(found(options))]) + "\\n").encode())  # a line at once
                os._exit(0)
            children.append(child)
        if any([os.waitpid(child, 0)[1] for child in children]):
            sys.exit("a process failed")
"""


# By cache: what is compiled, by the processes of each list at once, and one list after the other.
PAIRS = {"pairs": ([[{}], [{}]], [[{}, {"mixorder_split_size": 3}]])}
OURS, STOCK, STORED = (
    options | {"trains": True} for options in ({}, {"mixorder": False}, {"emulate_precision_casts": True})
)
MASKS = {"masks": ([[OURS, STOCK, STORED, OURS]], [[STOCK], [STORED], [OURS]])}


def found(folder: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """By cache: what each process finds, of all that it compiles. They are forks of one that has imported
    what they need, and compiled nothing."""
    package = Path(mixorder.__file__).parents[1]
    paths = [str(package), str(HERE), os.environ.get("PYTHONPATH", "")]
    turns = {str(folder / cache): lists for cache, lists in (PAIRS | MASKS).items()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(turns)],
        cwd=package,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
        },
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {cache.name: [one for at, one in lines if at == str(cache)] for cache in map(Path, turns)}


def test_caches_of_processes(tmp_path: Path) -> None:
    """Pairs: two at once fill an empty cache; a third finds what they made, but not for other options. (Of
    another source: tests/inductor/test_hooks.py, in one process.) Masks, of one model: compiled by mixorder,
    which computes the mask of a ReLU, by Inductor alone, and by mixorder without that mask; again in that
    process, and in others."""
    all_found = found(tmp_path)
    (first,), (second,), (again, other) = all_found["pairs"]
    assert first["launches"] == second["launches"] and len(first["launches"]) == 2
    assert first["fused"] + second["fused"] >= 1
    assert again == first | {"fused": 0, "graph_hits": 1, "autograd_hits": 1}
    assert (other["fused"], other["graph_hits"], other["autograd_hits"]) == (1, 0, 0)

    made, *others = all_found["masks"]
    assert [one["fused"] for one in made] == [1, 0, 1, 0]
    assert made[0]["full"] + 1 == made[2]["full"] and not made[1]["launches"]
    hits = [one | {"fused": 0, "graph_hits": 2, "autograd_hits": 1} for one in made[:3]]
    assert made[3] == hits[0]
    assert sorted((one for (one,) in others), key=str) == sorted(hits, key=str)


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """What functions return that run in a thread each, started together; what one raises is raised."""
    barrier, results = threading.Barrier(len(functions)), dict[int, Any]()

    def call(i: int, function: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[i] = function()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in results.values():
        if isinstance(value, BaseException):
            raise value
    return [results[i] for i in range(len(functions))]


def test_threads_run_the_pass_at_once() -> None:
    """On graphs of their own, traced before; with the records of each that it gives alone."""
    seeds = (5, 9, 20, 50)
    alone = []
    for seed in seeds:
        with collect() as records:
            pipeline.run(graph := graphs.random_graph(seed), graphs.ALWAYS)
        alone.append((kernels(records), launched(graph)))
    together = [graphs.random_graph(seed) for seed in seeds]
    with collect() as records:
        at_once(*(lambda graph=graph: pipeline.run(graph, graphs.ALWAYS) for graph in together))
    assert kernels(records) == sorted(name for names, _ in alone for name in names)
    assert [launched(graph) for graph in together] == [grids for _, grids in alone]


def kernels(records: list[Any]) -> list[str]:
    return sorted(k.name for r in records if isinstance(r, RegionRecord) for k in r.kernels)


def launched(graph: torch.fx.Graph) -> list[tuple[Any, tuple[str, ...]]]:
    nodes = [n for n in graph.nodes if "kernel_idx" in n.kwargs]
    return [(n.kwargs["grid"], tuple(n.kwargs["kwargs"])) for n in nodes]


@pytest.mark.parametrize("round", range(3))
def test_threads_with_and_without_the_option(runs: Recorder, lowered: Lowered, round: int) -> None:
    """Each compile has the options that it was given; nothing is left in the config."""
    x = torch.randn(4 + round, 4 + round)

    def compile_one(split_size: int) -> Callable[[], Any]:
        options = {"mixorder": bool(split_size), "mixorder_split_size": split_size}
        function = torch.compile(lambda x: (x @ x, split_size), options=options, dynamic=False)
        return lambda: torch.testing.assert_close(function(x)[0], x @ x)

    with torch.no_grad():
        at_once(*map(compile_one, (0, 1, 0, 2, 0, 3)))
    assert sorted(options.split_size for _, options, _ in runs) == [1, 2, 3]
    on, off = (True, False, True), (False, True, False)
    assert lowered.count(on) == 3 and {*lowered} == {on, off}
    assert config.post_grad_custom_post_pass is None and config.triton.mix_order_reduction
