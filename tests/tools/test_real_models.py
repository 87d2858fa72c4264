"""Whole models by stock and mixorder: one of each recipe in the interpreter, and a made-up report."""

import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import real_models
import torch
from fresh_process import HANG_S
from lab import families, launches, matches, whole
from lab.tables import line
from torch import nn
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from mixorder import report
from mixorder.errors import MixorderError

TOOLS = Path(__file__).resolve().parents[2] / "tools"
DOCS = TOOLS.parent / "docs"

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
whole.WARM_UP = whole.LEAST_PROFILES = whole.SETTLING = 1
turn = sys.argv[1]
for task in json.loads(sys.argv[2]):
    train = task[0] == "trained"
    outcome = whole.work(whole.Task(*task, "cpu", turn, exact=not train, train=train))
    print("MATCH", json.dumps(dataclasses.asdict(outcome.match)))
"""


def test_models_from_end_to_end(tmp_path: Path) -> None:
    tasks = [["plain", "checkpoint"], ["random", "fp32"], ["trained", "checkpoint"], ["missing", "bf16"]]
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
        ("ok", "checkpoint"),
        ("absent", "bf16"),
    ], [m.message for m in found]
    plain, random, trained, _ = found
    assert plain.timed and plain.ours.fused >= 1 and plain.stock.fused == 0
    assert plain.stock.graphs == plain.ours.graphs == 1
    assert plain.reference == "float32" and 1e-4 < plain.ours.errors[0] <= plain.ours.errors[1] < 0.1
    assert not plain.less_exact
    # The same numbers are drawn by both ways, which differ by rounding.
    assert random.reference.startswith("stock") and random.ours.errors[1] < 1e-4

    # Both ways start from the same weights, and each changes its own.
    stock, ours = trained.stock, trained.ours
    assert (trained.items, trained.unit) == (64, "tokens") and ours.fused >= 1
    assert len(stock.losses) > 3 and stock.losses == pytest.approx(ours.losses, rel=1e-4)
    assert stock.losses[-1] < stock.losses[0] * (1 - 1e-3)
    assert stock.first_s > 0 and ours.first_s > 0 and not stock.errors
    text = matches.report(found)
    head, _, row = text.splitlines()[:3]
    told = dict(zip(*([cell.strip() for cell in line.split("|")] for line in (head, row)), strict=True))
    assert (told["model"], told["a step"], told["steps"]) == ("trained", "64 tokens", str(len(ours.losses)))
    assert told["loss, last"] == f"{stock.losses[-1]:.4f} -> {ours.losses[-1]:.4f}"
    kept = [match.brief("abc123") for match in found]
    assert matches.report(kept) == text and trained.on.split(", ")[1] == "CPU"
    assert kept[2].on == re.sub(r"\+\w+", "", trained.on) + ", abc123"
    assert len(kept[2].stock.kernels) == len(stock.kernels) == 0


def test_what_is_kept_of_kernels_is_what_differs() -> None:
    match = matches.Match("a", "bf16", on="today", items=1, stock=matches.Side(3.0), ours=matches.Side(2.0))
    match.stock.gpu_ms = match.ours.gpu_ms = 2.0
    match.stock.kernels = {"sum_1": [1, 0.5], "sum_2": [1, 0.25], "product": [3, 1.0]}
    match.ours.kernels = {"sum_7": [1, 0.5], "product": [3, 1.5]}
    match.ours.moved = {"sum_7": 8}
    kept = match.brief("abc123")
    assert kept.stock.kernels == {"sum": [2, 0.75]} and kept.ours.kernels == {"sum": [1, 0.5]}
    assert kept.different == match.different == (0.75, 0.5) and not kept.ours.moved


def test_pages_have_the_kept_records() -> None:
    """The lab's table is their report, with its day, card, versions and commits, and so has the README."""
    kept = [match for match in matches.load([real_models.KEPT]) if match.items]
    of = {match.family: match.on.rpartition(", ") for match in kept}
    *_, unet = of.pop("whole/stable_diffusion_1.5")
    ((on, _, commit),) = set(of.values())
    once = f"each run once; {commit}, the UNet {unet})"
    page = (DOCS / "lab" / "duels.md").read_text()
    assert matches.report(kept) in page and f"({on}, {once}" in page
    (liger,) = (match for match in kept if "liger" in match.name)
    ratios = [match.ratio(matches.gpu) or 1 for match in kept if match is not liger]
    less = 1 - 1 / statistics.geometric_mean(ratios)
    assert f"of the seven models (without Liger's) is {less:.0%} shorter (geometric mean)" in page
    first, second, *longer = sorted(m.ours.first_s / m.stock.first_s - 1 for m in kept if m is not liger)
    told = f"{longer[0]:.0%} to {longer[-1]:.0%}".replace("%", "", 1) + " longer in five of the seven models"
    assert told in page and f"and {-second:.0%} less in GPT-2. In the UNet it takes {-first:.0%} less" in page
    who, _, _ = (TOOLS.parent / "README.md").read_text().partition("## Install")
    assert once in who and all(part in who for part in on.split(", "))
    assert f"| {on.split(', ')[0]} |" in (DOCS / "supported.md").read_text()


def _untrained() -> list[matches.Match]:
    return [match for match in matches.load([real_models.KEPT]) if not match.items]


def test_convolutional_nets_are_the_kept_records() -> None:
    """The table of the page, and README's row of the autoencoder, with day, card, versions and commit."""
    kept = [match for match in _untrained() if match.family.startswith(("diffusers/", "timm/", "loops/"))]
    (on,) = {match.on for match in kept}
    page, readme = (path.read_text() for path in (DOCS / "lab" / "family.md", DOCS.parent / "README.md"))
    nets, _, _ = matches.report(kept).partition("\n\n")
    assert len(kept) == 7 and nets in page and f"({on}, each run once;" in page
    (vae,) = (match for match in kept if match.family == "diffusers/vae")
    _, _, step, gpu, _, _, _, _, peak, *_ = matches.cells(vae)
    assert f"| AutoencoderKL (diffusers), 4 x 256 x 256 | channels-last | {step} | | {gpu} |" in readme
    assert f"| {peak} |" in readme and f"{on.split(', ')[0]}, {on.split(', ')[-1]}; FP8" in readme


def test_steps_in_float8_are_the_kept_records() -> None:
    """The rows of the page's table, and that of the README, with their day, card, versions and commit."""
    page, readme = (path.read_text() for path in (DOCS / "quantise.md", DOCS.parent / "README.md"))
    kept = [match for match in _untrained() if match.family.startswith(("torchao/", "float8/"))]
    (on,) = {match.on for match in kept}
    assert len(kept) == 6 and f"({on}, each run once;" in page
    for match in kept:
        name, _, sizes = match.family.partition("/")[2].partition("@")
        size = ", {2} wide, {0} x {1} tokens".format(*sizes.split("x")) if sizes else ""
        _, _, step, gpu, _, outside, _, _, peak, _, launches, *_ = matches.cells(match)
        compiled = matches.both(match, lambda side: side.compile_s, ".0f")
        outside += f" ({match.ratio(matches.outside):.2f})"
        assert line([f"`{name}`{size}", step, gpu, outside, peak, launches, compiled]) in page
        less = f"-{1 - 1 / (match.ratio(matches.gpu) or 1):.1%}"
        if name == "rowwise":
            assert f"| FP8 `rowwise` | {step} | | {gpu} | {less} | {peak} |" in readme
    day, *_, commit = on.split(", ")
    assert f"FP8 {day}, {commit})" in readme


def test_what_training_holds_between_steps() -> None:
    """The peak of a way counts its weights, both moments, the steps of AdamW, and the batch."""
    training: Any = object.__new__(whole.Training)
    model, batch = nn.Linear(10, 10, bias=False), {"x": torch.ones(5, 10), "n": 3}
    training.example = SimpleNamespace(model=model, inputs=batch)
    training.optimizer = torch.optim.AdamW(model.parameters())
    assert training.held == 4 * (100 + 50)
    model(batch["x"]).sum().backward()
    training.optimizer.step()
    assert training.held == 4 * (3 * 100 + 1 + 50)


def test_whole_models_train_in_their_own_recipes() -> None:
    def chosen(*argv: str) -> list[tuple[str, str]]:
        return real_models.chosen(real_models.parsed(["--train", *argv]))

    assert chosen() == families.whole() and ("whole/llama_1b", "checkpoint") in chosen()
    assert chosen("--families", "whole/gpt2", "whole/vit_b", "--limit", "1") == [("whole/gpt2", "autocast")]
    assert chosen("--families", "whole/gpt2", "--recipes", "bf16") == [("whole/gpt2", "bf16")]
    two = chosen("--families", "loops/tiny", "loops/dit", "--recipes", "bf16", "fp32")
    assert two[:2] == [("loops/tiny", "bf16"), ("loops/dit", "fp32")]
    assert two[2:] == [("loops/tiny", "fp32"), ("loops/dit", "bf16")]


def test_losses_of_whole_models() -> None:
    class Predicts(nn.Module):
        def forward(self, sample: torch.Tensor) -> Any:
            return SimpleNamespace(sample=torch.cat([sample + 2, sample], 1))

    noise = torch.ones(2, 4, 8, 8)
    assert families.Denoiser(Predicts())(noise=noise, sample=noise) == 4
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    loss = families.Classifier(nn.Identity())(logits, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(math.log(2))


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


def test_a_profile_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from a step's launches, times from profiles of others: of an add, of what Inductor knows the
    bytes of, of a kernel of mixorder's, whose arguments tell, and of what nothing is known of."""
    launched, ran = list[tuple[str, tuple[Any, ...]]](), list[str]()

    def kernel(name: str, **meta: Any) -> Any:
        made: Any = object.__new__(CachingAutotuner)
        made.fn, made.inductor_meta = SimpleNamespace(__name__=name), meta
        return made

    x, row = torch.zeros(1000, 500, dtype=torch.bfloat16), torch.zeros(500)
    ours, stock = kernel("triton_mixorder_sum_1"), kernel("triton_red_fused_2", kernel_num_gb=3e-3)

    def step() -> None:
        stock.run(x, x, 7, stream=0)
        stock.run(x, x, 7, stream=0)
        ours.run(x, row.expand(1000, 500), x[:, :250], 1000, stream=0)

    monkeypatch.setattr(CachingAutotuner, "run", lambda self, *args, stream: ran.append(self.fn.__name__))
    watch: Any = SimpleNamespace(
        limit=lambda size: lambda: launched.append(("add", (size,))),
        launched=lambda call: [("add", 1e-3 * whole.ADD_BYTES / 4e6)] if call() is None else [],
    )
    match = matches.Match("torchao/rowwise", "bf16")
    match.stock.moved = {"x": 1}
    whole._profile(match, {"ours": step}, watch)  # type: ignore[dict-item]
    assert match.add == pytest.approx(4e6) and len(launched) == 1 + whole.ADDS
    assert match.ours.moved == {"triton_red_fused_2": 6_000_000, "triton_mixorder_sum_1": 1_502_000}
    assert ran == ["triton_red_fused_2"] * 2 + ["triton_mixorder_sum_1"]
    step()
    assert match.ours.moved["triton_red_fused_2"] == 6_000_000  # only what runs inside counts

    events = [("triton_red_fused_2", 1e-3), ("nvjet_tst_1", 5e-3), ("triton_mixorder_sum_1", 5e-4)]
    whole._count(match.ours, [*events, events[0], ("void at::native::copy", 1e-4)])
    (tmp_path / "models.jsonl").write_text(json.dumps(dataclasses.asdict(match)))
    assert real_models.main(["--report", str(tmp_path / "models.jsonl"), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "torchao_rowwise_bf16.md").read_text()
    assert "add: 4.00 TB/s" in text
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.split("## mixorder")[1].split("\n")
    ]
    assert [line for line in lines if line][2:] == [
        ["all", "library", "1", "5.0", "-", "-", "-"],
        ["all", "Inductor", "2", "2.0", "6.0", "75", "0.5"],
        ["all", "mixorder", "1", "0.5", "1.5", "75", "0.1"],
        ["all", "torch", "1", "0.1", "-", "-", "-"],
        ["triton_red_fused_2", "Inductor", "2", "2.0", "6.0", "75", "0.5"],
        ["triton_mixorder_sum_1", "mixorder", "1", "0.5", "1.5", "75", "0.1"],
        ["void at::native::copy", "torch", "1", "0.1", "-", "-", "-"],
    ]
    assert [launches.maker(name) for name, _ in events] == ["Inductor", "library", "mixorder"]


def test_a_picture_of_the_models_with_a_region(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kept = matches.load([real_models.KEPT])
    matches.draw([one for one in kept if not one.ours.fused], tmp_path / "none.png")
    matches.draw(kept, tmp_path / "some.png")
    assert [one.name for one in tmp_path.iterdir()] == ["some.png"]
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")
