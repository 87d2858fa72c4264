"""Whole models by stock and mixorder: one of each recipe in the interpreter, and a made-up report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import HANG_S
from lab import matches, whole
from torch import nn

from mixorder import report
from mixorder.errors import MixorderError

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
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_S)
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


def test_a_fault_that_users_see_as_a_warning_fails_a_model() -> None:
    class Faulty(whole.Trainer):
        def __init__(self) -> None:
            self.side = matches.Side()

        def __call__(self) -> list[torch.Tensor | None]:
            report.failed(MixorderError("find", None, KeyError("node")))
            return []

    with pytest.raises(MixorderError, match="KeyError: 'node'"):
        Faulty().first()
