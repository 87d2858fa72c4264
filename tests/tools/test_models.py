"""The whole-model benchmark's parts that need no GPU, and a run of it from end to end on small models."""

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import models
import pytest
from lab.launches import Kind, in_classes, kinds_in, kinds_of_regions
from lab.training import Run

TOOLS = Path(__file__).resolve().parents[2] / "tools"

SUM = "#   %s : [num_users=1] = call_function[target=torch.ops.aten.sum.dim_IntList](args = (%x, {}), x)\n"


def output_code(*kernels: tuple[str, str, str]) -> str:
    """Name, comment and text of each kernel, laid out as Inductor does."""
    parts = [
        f"{comment}{name} = async_compile.triton('{name}', '''\n{text}\n''')"
        for name, comment, text in kernels
    ]
    return "\n\n\n".join(["import triton", *parts])


@pytest.mark.parametrize(
    ("name", "comment", "kind"),
    [
        ("triton_per_fused_native_layer_norm_backward_0", SUM.format("[2], True"), "norm"),
        ("triton_per_fused_mul_sum_0", SUM.format("[-1], True"), "norm"),
        ("triton_red_fused_sum_0", SUM.format("[0, 1]"), "norm"),
        ("triton_red_fused_sum_0", SUM.format("[0]"), "norm"),
        ("triton_red_fused_sum_0", SUM.format("[0], True"), "bias"),
        ("triton_red_fused_sum_0", SUM.format("[0], True") + SUM.format("[2], True"), "norm"),
        ("triton_red_fused__log_softmax_backward_data_0", SUM.format("[1], True"), "other"),
        ("triton_poi_fused_add_0", "# Graph fragment:\n", "other"),
        ("triton_poi_fused_add_0", "", "other"),
    ],
)
def test_kernel_has_the_class_of_its_fragment(name: str, comment: str, kind: str) -> None:
    before = ("triton_poi_fused_mul_1", SUM.format("[2], True"), "pass")
    assert kinds_in(output_code(before, (name, comment, "pass")))[name] == Kind(kind)


def test_mix_order_kernels_go_on_in_aten_and_others_do_not() -> None:
    code = output_code(
        ("triton_per_fused_mul_sum_0", SUM.format("[2], True"), "RSPLIT_SIZE : tl.constexpr"),
        ("triton_red_fused_sum_1", SUM.format("[0], True"), "pass"),
    )
    aten = "void at::native::reduce_kernel<512, 1>(float)"
    ran = ["triton_per_fused_mul_sum_0", aten, "Memcpy DtoD", "gemm", aten, "triton_red_fused_sum_1", aten]
    found = in_classes([(name, 0.5) for name in ran], kinds_in(code))
    assert [kind for _, kind, _ in found.kernels] == ["norm", "norm", "other", "other", "bias", "other"]
    assert found.copies == 1
    assert found.by_class() == {"norm": [2, 1.0], "other": [3, 1.5], "bias": [1, 0.5]}


def test_own_kernels_have_the_class_of_their_region() -> None:
    def region(name: str, *inner: str, outer: tuple[str, ...] = ("sum_9",)) -> SimpleNamespace:
        return SimpleNamespace(inner=inner, outer=outer, kernels=[SimpleNamespace(name=name)])

    regions = [region("a", "sum_1"), region("b"), region("softmax_c", "sum_2"), region("turned", outer=())]
    assert {n: k.name for n, k in kinds_of_regions(regions).items()} == {
        "a": "norm",
        "b": "bias",
        "softmax_c": "other",
        "turned": "other",
    }


def finished(provider: str, step: float, peak: int, repeat: int = 0) -> Run:
    launches = {"backward": {"norm": [2, 0.5], "other": [4, 8.0]}, "forward": {"other": [3, 1.0]}}
    steps = [step * 0.9, step, step, step * 1.1]
    run = Run("gpt2", provider, repeat, "ok", step_ms=steps, peak=peak, launches=launches, losses=[4.0, 2.0])
    run.phase_ms, run.compile_s = {"backward": 6.0}, 30.0
    return run


def test_report_compares_medians_of_repeats() -> None:
    args = models.parse_args(["--models", "gpt2", "--scale", "small"])
    stock, ours = finished("stock", 10, 2**30), finished("mixorder", 11, 2**30)
    again = finished("mixorder", 12, 2**30 + 1, 1)
    again.losses = [4.0, 2.02]
    text = models.report(args, {"device": "x", "started": 0.0}, [stock, ours, again])
    assert "gpt2: step ms 11.5, stock 10" in text
    assert "gpt2: peak bytes 1.07374e+09, stock 1.07374e+09" in text
    assert "compile s" not in text[text.index("issues") :]
    (line,) = (line for line in text.splitlines() if line.startswith("| mixorder 2"))
    assert line.split()[-2] == "1.0e-02"
    assert "stock: norm backward 5.0% of the step, bias sums 0.0%" in text
    assert (
        stock.part() == (9, 9.5) and stock.part("norm") == (2, 0.5) and stock.part("", "forward") == (3, 1.0)
    )


def test_failed_and_absent_runs_have_lines() -> None:
    args = models.parse_args(["--models", "gpt2", "--scale", "small"])
    runs = [Run("gpt2", "stock", 0, "absent", "no such\npackage"), Run("gpt2", "mixorder", 0, "err", "broke")]
    text = models.report(args, {"started": 0.0}, runs)
    assert "stock: no such package" in text and "mixorder: broke" in text
    assert text.splitlines()[-1] == "gpt2 mixorder: err"


def test_every_other_repeat_is_reversed() -> None:
    args = argparse.Namespace(models=["vit"], providers=["stock", "mixorder"], repeats=2)
    assert [provider for _, _, provider in models.plan(args)] == ["stock", "mixorder", "mixorder", "stock"]


def test_run_from_end_to_end(tmp_path: Path) -> None:
    """With the package, both ways train alike and regions are fused; without it, a line says so."""
    command = [sys.executable, str(TOOLS / "models.py"), "--models", "llama", "--scale", "small"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        env={**models.environment(str(tmp_path), gpu=False), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs = [Run(**plain) for plain in json.loads((tmp_path / "models.json").read_text())["runs"]]
    assert [run.provider for run in runs] == ["stock", "mixorder"]
    assert (tmp_path / "models.txt").read_text() == done.stdout
    if importlib.util.find_spec("transformers") is None:
        assert [run.status for run in runs] == ["absent", "absent"]
        return
    assert [run.status for run in runs] == ["ok", "ok"], done.stdout
    assert [run.fused for run in runs] == [0, 5]  # two norms per layer and a final one
    assert models.loss_difference(runs[1], runs[0]) < 1e-3


def test_run_that_hangs_is_ended(tmp_path: Path) -> None:
    args = models.parse_args(["--models", "llama", "--scale", "small", "--time-box", "0.1"])
    run = models.run_in_process(args, "llama", "stock", 0)
    assert (run.status, run.error) == ("err", "took longer than 0.1 s")
