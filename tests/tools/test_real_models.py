"""Whole models by stock and mixorder: one of each recipe in the interpreter, and a made-up report."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lab import matches, whole
from lab.launches import is_library
from lab.matches import Match, Side
from torch import nn

TOOLS = Path(__file__).resolve().parents[2] / "tools"

SCRIPT = """
import dataclasses, json, sys
import torch
from torch import nn
from lab import families, whole

class Model(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Dropout(dropout)) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, 50, bias=False)

    def forward(self, input_ids, labels):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

def build(name, device):
    if name == "missing":
        raise KeyError(name)
    ids = {key: torch.zeros(4, 16, dtype=torch.long) for key in ("input_ids", "labels")}
    return Model(0.1 if name == "random" else 0.0), ids

families.build = build
turn = sys.argv[1]
for task in json.loads(sys.argv[2]):
    print("MATCH", json.dumps(dataclasses.asdict(whole.work(whole.Task(*task, "cpu", turn)).match)))
"""


def test_models_from_end_to_end(tmp_path: Path) -> None:
    tasks = [["plain", "checkpoint"], ["random", "fp32"], ["missing", "bf16"]]
    paths = os.pathsep.join([str(TOOLS), str(TOOLS.parent), os.environ["PYTHONPATH"]])
    env = {**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "turn"), json.dumps(tasks)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("MATCH ") for line in done.stdout.splitlines() if line.startswith("MATCH ")]
    found = [matches.parse(json.loads(line)) for line in lines]
    assert [(m.status, m.recipe) for m in found] == [
        ("ok", "checkpoint"),
        ("ok", "fp32"),
        ("absent", "bf16"),
    ], [m.message for m in found]
    plain, random, _ = found
    assert plain.timed and plain.ours.fused >= 1 and plain.stock.fused == 0
    assert plain.stock.graphs == plain.ours.graphs == 1
    assert plain.reference == "float32" and 1e-4 < plain.ours.errors[0] <= plain.ours.errors[1] < 0.1
    assert not plain.less_exact
    # The same numbers are drawn by both ways, which differ by rounding.
    assert random.reference.startswith("stock") and random.ours.errors[1] < 1e-4


def test_the_reference_leaves_the_precision_of_products_as_it_was() -> None:
    """The ways run behind it: what is compiled for TF32 looks at this when it runs."""
    before, seen = torch.get_float32_matmul_precision(), list[str]()
    example: Any = object.__new__(whole.Example)
    example.task = whole.Task("a/b", "fp32", "cpu", "turn")
    example.model, example.plain, example.inputs = (
        nn.Linear(2, 2),
        nn.Linear(2, 2),
        {"input": torch.ones(1, 2)},
    )
    example.plain.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    try:
        torch.set_float32_matmul_precision("high")
        assert len(example.exact()) == 2 and seen == ["highest"]
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def match(family: str, stock: float, ours: float, **changes: Any) -> Match:
    def side(gpu: float) -> Side:
        return Side(
            step_ms=gpu + 1, gpu_ms=gpu, library_ms=5.0, peak=1 << 30, launches=9, compile_s=2.0,
            rounds=[gpu, gpu * 1.001], errors=[1e-3, 2e-3],
        )  # fmt: skip

    return dataclasses.replace(
        Match(family, "autocast", reference="float32", stock=side(stock), ours=side(ours)), **changes
    )


def test_figures_of_made_up_results(tmp_path: Path) -> None:
    fast, slow = match("fast", 10.0, 9.0), match("slow", 10.0, 10.5, recipe="bf16")
    slow.ours.peak, slow.ours.errors = (1 << 30) + (1 << 26), [1e-3, 3e-3]
    slow.ours.declined = {"cycle": 3}
    kernels: dict[str, list[float]] = {"nvjet": [9, 9.0], "triton_red_7": [1, 0.2], "triton_poi_3": [2, 0.3]}
    for one, extra in ((fast, 0.24), (slow, 0.26)):
        one.stock.kernels = kernels
        one.ours.kernels = {"nvjet": [9, 9.9], "triton_poi_2": [2, 0.3], "triton_mixorder": [1, extra]}
    fast.stock.rounds, slow.stock.rounds = [10.0, 10.01], [10.0, 10.03]  # ours: 0.1% apart
    broken = Match("broken", "bf16", "hung", "exit code None")
    path = tmp_path / "models.jsonl"
    lines = [json.dumps(dataclasses.asdict(m)) for m in (fast, slow, broken)]
    path.write_text("\n".join([*lines, lines[0][:50]]))
    text = matches.report(matches.load([path]))
    rows = [re.sub(" +", " ", row) for row in text.splitlines()]
    found = dict(row.removeprefix("| ").split(" | ")[:2] for row in rows if row.count("|") == 4)
    assert found["models"] == "2, 50.0% under autocast"
    assert found["GPU time above stock's by 0.5%"] == "1: slow bf16"
    assert fast.different == (0.2, 0.24) and found["... in kernels that differ"] == "1: slow bf16"
    assert found["standard error of a ratio, median and largest"] == "0.05%, 0.10%"
    assert found["geometric mean, outside library kernels"] == f"{(5 / 4 * 5 / 5.5) ** 0.5:.3f}"
    assert found["peak memory above stock's by 0.5%"] == found["less exact than stock"] == "1: slow bf16"
    assert rows[-1] == "- broken bf16: hung, exit code None"


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", True),
        ("void at::native::conv_depthwise2d_forward_kernel<3>", True),
        ("triton_poi_fused_convolution_0", False),
        ("triton_mixorder_mean_sum_8b86ca4d", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::convert_kernel>", False),
    ],
)
def test_library_kernels_by_their_names(name: str, library: bool) -> None:
    assert is_library(name) == library


@pytest.mark.parametrize("noisy", [False, True])
def test_profiles_come_in_alternating_order_behind_steps_of_the_same_way(noisy: bool) -> None:
    match, called = Match("a/b", "bf16"), list[str]()

    class Trainer:
        def __init__(self, name: str) -> None:
            self.name, self.side = name, getattr(match, name)

        def __call__(self) -> None:
            called.append(self.name)

    class Watch:
        def steps(self, trainers: dict[str, Trainer], count: int) -> dict[str, list[float]]:
            return {name: [1.0] * count for name in trainers}

        def peak(self, trainer: Trainer) -> None: ...

        def wait(self) -> None: ...

        def launched(self, trainer: Trainer) -> list[tuple[str, float]]:
            called.append(f"profile {trainer.name}")
            done = called.count(called[-1])
            slow = 50.0 if done == 1 else 1.0  # the first of each
            if noisy and trainer.name == "ours":
                slow *= 1 + 0.2 * (done % 2)
            return [("triton_poi_0", 2.0), ("nvjet_tst", 3.0 * slow)]

    trainers: Any = {name: Trainer(name) for name in ("stock", "ours")}
    watch: Any = Watch()
    whole._measured(match, trainers, watch)
    each = {name: [name] * whole.SETTLING + [f"profile {name}"] for name in trainers}
    in_turns = each["stock"] + each["ours"] + each["ours"] + each["stock"]
    assert called == in_turns * (whole.MOST_PROFILES // 2 if noisy else 2)
    if noisy:
        assert match.uncertainty is not None and 0.005 < match.uncertainty < 0.015
        assert match.ours.kernels["triton_poi_0"] == [1, 2.0]
        assert match.stock.kernels["nvjet_tst"][1] == pytest.approx(
            3 * (1 + 49 / whole.MOST_PROFILES), abs=1e-3
        )
        return
    assert match.uncertainty == 0
    assert (match.ours.gpu_ms, match.ours.library_ms, match.ours.other_ms) == (5.0, 3.0, 2.0)
    assert match.ours.rounds == [152.0, 5.0, 5.0, 5.0] and match.ours.launches == 2
