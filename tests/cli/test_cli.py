"""The commands. `tests/interpreter/test_demo.py` has more of the demo, `test_check.py` of `--check`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import graphs
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mixorder
from mixorder import __main__, pipeline
from mixorder.cli import bench, check, doctor, tune
from mixorder.inductor.versions import TESTED, release
from mixorder.inspection.check import Checked, Compared
from mixorder.options import Options
from mixorder.report import RegionRecord, collect
from mixorder.tune.search import Tuning

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def factory() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)), torch.randn(8, 32)


class Scaled(nn.LayerNorm):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x) * scale


def named() -> tuple[nn.Module, dict[str, Any]]:
    return Scaled(32), {"x": torch.randn(8, 32, requires_grad=True), "scale": 2.0}


def needing(size: int) -> nn.Module:
    return nn.LayerNorm(size)


def raising() -> nn.Module:
    return nn.LayerNorm(1 // 0)


def nothing() -> tuple[Callable[..., Tensor], Tensor]:
    return torch.sin, torch.randn(8, requires_grad=True)


def alone() -> nn.Module:
    return nn.LayerNorm(32)


def late() -> tuple[nn.Module, Tensor]:
    def refuse(gradient: Tensor) -> None:
        raise RuntimeError("the gradient of the input is not wanted")

    x = torch.randn(8, 32, requires_grad=True)
    x.register_hook(refuse)  # raises when the backward has been compiled and has run
    return nn.LayerNorm(32), x


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(32), nn.Linear(32, 96)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).view(2, 16, 3, 2, 16).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(checkpoint(self.attend, x, use_reentrant=False))


def checkpointed() -> tuple[nn.Module, Tensor]:
    return _Checkpointed(), torch.randn(2, 16, 32)


def misfit() -> tuple[nn.Module, Tensor]:
    return nn.LayerNorm(32), torch.randn(8, 16)


def not_a_model() -> int:
    return 3


HERE = __name__
SHARED = "TORCHINDUCTOR_MIX_ORDER_REDUCTION"


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `python -m mixorder` in this process."""
    monkeypatch.setattr(sys, "argv", ["mixorder", *args])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = __main__.main()
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue(), err.getvalue()


def test_explain_prints_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    args = ("explain", f"{HERE}:factory", "--device", "cpu", "--min-numel", "0", "--html", str(page))
    status, out, err = run(monkeypatch, *args)
    assert status == 0 and "8x32" in out and "strategy" not in out
    assert "Norm modules in a region: 1 of 1" in out
    assert (
        "backward: " in err and f"Written: {page}" in err and page.read_text().startswith("<!DOCTYPE html>")
    )


def test_explain_on_the_meta_device_and_its_other_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("explain", f"{HERE}:factory", "--device", "meta", "--min-numel", "0")
    status, out, _ = run(monkeypatch, *args, "--json")
    assert status == 0 and json.loads(out)["totals"]["regions"] == 1
    assert run(monkeypatch, *args, "--kernel", "0")[1].count("def triton_mixorder") == 2
    assert run(monkeypatch, *args, "--graph", "0")[1].startswith("before\n")
    status, _, err = run(monkeypatch, *args, "--graph", "1")
    assert status == 2 and "there is no region 1: 1 were fused" in err
    assert "strategy: persistent" in " ".join(run(monkeypatch, *args, "--details")[1].split())


def test_a_dict_at_the_end_holds_keyword_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = run(monkeypatch, "explain", f"{HERE}:named", "--device", "meta", "--min-numel", "0")
    assert status == 0 and "8x32" in out


def test_explain_fails_where_dtypes_do_not_explain_an_error() -> None:
    one = Compared("norm.weight", "bf16", (8,), 1e-3, 2e-2, 6e-3)
    found = Checked((one,), "eager float64", 1, ())
    assert check.status(found) == 1 and "errors of norm.weight (1 in all; 1 region" in " ".join(
        check.text(found).split()
    )
    good = dataclasses.replace(found, compared=(dataclasses.replace(one, ours=2e-3),) * 20)
    assert check.status(good) == 0 and "and 8 more" in check.text(good)
    noted = check.text(dataclasses.replace(good, notes=("a remark " * 20,)))
    assert max(map(len, noted.splitlines())) <= 80
    assert check.status(dataclasses.replace(good, regions=0)) == 1


def test_explain_times_both_ways_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    compiled = lambda function, options, dynamic: given.append((options, dynamic)) or function  # noqa: E731
    monkeypatch.setattr(torch, "compile", compiled)
    without_gpu(monkeypatch)
    x = torch.randn(4, 8, requires_grad=True)
    text = bench.versus_predicted((torch.sin, (x,), {}), {"mixorder_min_numel": 0}, True, 320.0)
    assert [options["mixorder"] for options, _ in given] == [False, True]
    assert given[1][0]["mixorder_min_numel"] == 0 and given[1][1] is True
    assert "Medians of 30 steps" in text and "Predicted: -0.320 ms" in text


def test_the_difference_is_of_the_turns_and_has_its_spread() -> None:
    stock, ours = bench.Way("stock", {}, peak=3 * 2**20), bench.Way("mixorder", {}, peak=2**20)
    stock.times = [10.0 + i for i in range(8)]  # a drift that both have
    ours.times = [9.0 + i + 0.1 * (i % 2) for i in range(8)]
    text = bench.table([stock, ours])
    assert text.endswith("mixorder - stock: -0.950 ms a step (-7.0%), quartiles -1.000 to -0.900")
    (peaks,) = (line.split()[-2:] for line in text.splitlines() if "peak memory" in line)
    assert peaks == ["3.0", "1.0"]
    assert bench.table([stock, stock]).endswith("quartiles +0.000 to +0.000, which is less than its spread")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("explain x:y --html no/such/folder/page.html", "argument --html: there is no folder no/such/folder"),
        ("explain x:y --html .", "argument --html: . is a folder"),
        ("explain x:y --min-numel -5", "argument --min-numel: -5 is less than 0"),
        ("explain x:y --graph one", "argument --graph: 'one' is not a whole number"),
        ("explain x:y --check --device meta", "--check computes gradients, and on the meta device there are"),
        ("explain x:y --time --device cpu", "--time needs --device cuda, not cpu"),
        ("explain x:y --device cpu --check --json", "--json, --kernel and --graph print one thing"),
        ("bench x:y --steps 0", "argument --steps: 0 is less than 2"),
        ("demo --norm batch", "argument --norm: invalid choice: 'batch'"),
        ("demo --no-such-option", "unrecognized arguments: --no-such-option"),
    ],
)
def test_bad_values_are_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, args: str, message: str
) -> None:
    status, _, err = run(monkeypatch, *args.split())
    command = args.partition(" ")[0]
    assert status == 2 and err.startswith(f"python -m mixorder {command}: error: {message}")
    assert err.count("\n") == 1


def test_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--version") == (0, f"mixorder {mixorder.__version__}\n", "")


def test_an_unknown_command_lists_all(monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = run(monkeypatch, "explian", f"{HERE}:factory")
    assert status == 2 and "there is no command 'explian' (did you mean explain?); there are demo, ex" in err
    assert len(err.splitlines()) == 1


def test_an_interrupt_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "main", interrupted)
    assert run(monkeypatch, "doctor") == (130, "", "\nInterrupted.\n")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = "import sys, mixorder.__main__ as m; sys.argv[1:] = ['--version']; sys.exit(m.main())"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_explain_of_what_has_no_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = run(monkeypatch, "explain", f"{HERE}:nothing", "--device", "cpu")
    assert status == 1 and "Nothing was fused: no graph has what" in " ".join(out.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "alone",
            "TypeError: LayerNorm.forward() missing 1 required positional argument: 'input' (the factory",
        ),
        ("misfit", "RuntimeError: Given normalized_shape=[32], expected input with shape"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_model_that_fails_by_itself_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str, device: str
) -> None:
    status, out, err = run(monkeypatch, "explain", f"{HERE}:{name}", "--device", device)
    assert status == 2 and out == ""
    assert err.splitlines()[-1].startswith(
        f"python -m mixorder explain: error: the model fails without mixorder as well: {message}"
    )
    assert "Traceback" not in err


def test_a_failure_of_mixorder_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("mixorder.inspection.capture.norms_of", broken)
    status, out, err = run(monkeypatch, "explain", f"{HERE}:factory", "--device", "cpu")
    assert status == 70 and not out and "Traceback" in err and "ZeroDivisionError: a bug" in err


def test_a_run_that_fails_after_its_graphs_were_analysed_has_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, out, _ = run(monkeypatch, "explain", f"{HERE}:late", "--device", "cpu", "--min-numel", "0")
    assert status == 0 and "8x32" in out
    assert "the run failed: RuntimeError: the gradient of the input is not wanted" in " ".join(out.split())


def test_attention_in_a_checkpoint_is_analysed_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """It saves the state of random numbers, a tensor that has values also where others have none."""
    args = ("explain", f"{HERE}:checkpointed", "--device", "meta", "--min-numel", "0")
    status, out, _ = run(monkeypatch, *args)
    assert status == 0 and "the run ended" not in out and "in a region: 1 of 1" in out


def test_commands_say_that_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, out, err = run(monkeypatch, "explain", f"{HERE}:factory")
    assert status == 2 and not out and "explain cannot run: torch is not installed" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("factory", "'factory' is not package.module:factory"),
        ("no_such_package.at_all:factory", "cannot import 'no_such_package.at_all' from here"),
        (f"{HERE}:missing", "has no 'missing'"),
        ("./no_such_file:factory", "there is no file ./no_such_file"),
        ("no/such_file.py:factory", "there is no file no/such_file.py"),
        ("nosuch.py:factory", "there is no file nosuch.py"),
        ("tiny", "'tiny' is not package.module:factory, such as train:factory for `factory` in train.py"),
        (
            f"{HERE}:raising",
            f"raising fails: ZeroDivisionError: integer division or modulo by zero ({__file__}:",
        ),
        (f"{HERE}:needing", "needing takes arguments; a factory takes none"),
        (f"{HERE}:HERE", "is of type str; it must be a function that gives a model"),
        (f"{HERE}:not_a_model", "gave a value of type int; it must give a model, then its inputs"),
    ],
)
def test_a_bad_factory_is_told(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    status, _, err = run(monkeypatch, "explain", name, "--device", "cpu")
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize("form", ["./a_model:make", "a_model.py:make", "{folder}/a_model.py:make"])
def test_a_factory_may_be_named_by_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    (tmp_path / "a_model.py").write_text(f"from {HERE} import factory as make")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "a_model", raising=False)
    args = ("--device", "meta", "--min-numel", "0")
    status, out, _ = run(monkeypatch, "explain", form.format(folder=tmp_path), *args)
    assert status == 0 and "8x32" in out


def penalty() -> tuple[nn.Module, Tensor]:
    return _Penalty(), torch.randn(8, 32, requires_grad=True)


class _Penalty(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(32)

    def forward(self, x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(super().forward(x).sin().sum(), x, create_graph=True)
        return gradient.square().sum()


def test_the_gradient_of_a_gradient_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "gradient of a gradient (create_graph=True), which torch.compile does not support, with or without"
    _, out, _ = run(monkeypatch, "explain", f"{HERE}:penalty", "--device", "cpu")
    assert told in " ".join(out.split())

    def step(argv: Sequence[str]) -> int:  # as `bench` has it, on a GPU
        model, x = penalty()
        torch.compile(model, backend="aot_eager")(x).backward()
        return 0

    monkeypatch.setattr(doctor, "main", step)
    status, _, err = run(monkeypatch, "doctor")
    assert status == 2 and told in err and err.count("\n") == 1


def test_a_missing_triton_is_told_before_a_model_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    status, _, err = run(monkeypatch, "explain", "no_such_module:factory")
    assert status == 2 and err.count("\n") == 1 and "triton is not installed" in err


@NO_GPU
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (f"bench {HERE}:factory", "`python -m mixorder explain` needs none"),
        (f"tune {HERE}:factory", "`python -m mixorder explain` needs none"),
        (f"explain {HERE}:factory --time", "`python -m mixorder explain` needs none"),
        (f"explain {HERE}:factory --device cuda", "or try --device meta"),
        ("demo --device cuda", "try --device interpreter"),
    ],
)
def test_what_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, args: str, said: str) -> None:
    status, out, err = run(monkeypatch, *args.split())
    assert status == 2 and out == "" and "this torch finds no GPU" in err and said in err


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_help_teaches(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    status, out, _ = run(monkeypatch, command, "--help")
    assert status == 0 and f"usage: python -m mixorder {command} " in out
    assert len(out) > 400


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_begins_with_what_mixorder_is_and_lists_all_commands(
    monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    status, out, _ = run(monkeypatch, flag)
    assert status == 0 and "plugin for torch.compile" in out.split("\n\n")[1]
    assert all(f"  python -m mixorder {command} " in out for command in __main__.COMMANDS)
    assert "--norm" not in out


def test_naming_a_command_imports_nothing_heavy() -> None:
    commands = ", ".join(f"mixorder.cli.{command}" for command in __main__.COMMANDS)
    code = f"import sys, {commands}; print({{'torch', 'triton'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_demo_of_a_layer_norm_as_a_user_runs_it() -> None:
    """In a process of its own, which switches Triton to its interpreter. `demo` need not be named."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    sizes = ["--layers", "1", "--batch", "2", "--seq", "8", "--dim", "32"]
    command = [sys.executable, "-m", "mixorder", "--device", "interpreter", *sizes]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # Three norms, and bias gradients that no norm takes along.
    found = re.findall(r"^  \d +(16x\d+) +\d+ -> \d+ +(\S.*)$", done.stdout, re.MULTILINE)
    assert sorted(found) == [
        ("16x128", "blocks.0.up"),
        ("16x32", "blocks.0.norm1"),
        ("16x32", "blocks.0.norm2, blocks.0.attention.out"),
        ("16x32", "norm, blocks.0.down"),
        ("16x96", "blocks.0.attention.qkv"),
    ]
    assert done.stdout.endswith("OK: all 16 are as exact as stock's (5 regions fused).\n")
    assert "@triton.jit" not in done.stdout


# bench and tune, as far as they go without a GPU.


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(step: bench.Step) -> float:
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "clock", clock)
    monkeypatch.setattr(bench, "peak", lambda step: len(step()) << 20)


def test_bench_times_each_way_and_compares_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, options, **_: given.append(options) or function)
    weight = torch.ones(8, requires_grad=True)
    x = torch.randn(4, 8, requires_grad=True)
    ways = [bench.Way("stock", {"mixorder": False}), bench.Way("mixorder", {"mixorder": True})]
    example = (lambda x, scale: (x * weight * scale).sin(), (x,), {"scale": 1.0})
    without_gpu(monkeypatch)
    bench.measure(ways, example, 3)
    assert all(len(way.times) == 3 and way.compile_s > 0 and way.ms > 0 for way in ways)
    assert [way.peak for way in ways] == 2 * [2 << 20]  # the gradients of two tensors
    assert [options["mixorder"] for options in given] == [False, True]
    assert bench.judged(ways) == 0
    assert bench.table(ways).splitlines()[1].split() == ["stock", "mixorder"]
    assert x.grad is None and weight.grad is None


def test_bench_fails_where_gradients_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_gpu(monkeypatch)
    for factor in (1.1, float("nan")):
        compiled = lambda f, options, factor=factor, **_: lambda x: f(x, factor if "b" in options else 1.0)  # noqa: E731
        monkeypatch.setattr(torch, "compile", compiled)
        ways = [bench.Way("a", {}), bench.Way("b", {"b": True})]
        bench.measure(ways, (torch.mul, (torch.ones(4, requires_grad=True),), {}), 2)
        assert ways[0].difference == 0 and not ways[1].difference < 0.09 and bench.judged(ways) == 1
        assert "gradients of b" in capsys.readouterr().out


def test_tune_prints_what_was_gained() -> None:
    with collect() as records:
        pipeline.run(graphs.layer_norm_backward(4096, 256), Options(enabled=True, interpret=True))
    (record,) = records
    assert isinstance(record, RegionRecord)
    tuned = dataclasses.replace(
        record, planning=dataclasses.replace(record.planning, tuning=Tuning(12.0, 10.5, 9, 1.0))
    )
    text = tune.text([tuned, record])
    assert "tuned: 12.0 -> 10.5 us, 9 candidates" in text and "not tuned" in text
    assert text.endswith("2 regions: 12.0 -> 10.5 us")


def test_a_module_that_raises_is_the_users_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("import torch\nraise ValueError('odd')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    status, _, err = run(monkeypatch, "explain", "raises.py:factory", "--device", "cpu")
    assert (
        status == 2
        and "'raises' fails when it is imported: ValueError: odd (" in err
        and err.count("\n") == 1
    )


# doctor


def test_doctor_says_what_takes_long_before_it_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_right() -> doctor.Finding:
        assert capture[-1:] == ["Computing gradients: about half a minute."]
        return doctor.Finding(doctor.OK, "")

    capture = list[str]()
    monkeypatch.setattr("builtins.print", lambda *said, **_: capture.extend(map(str, said)))
    monkeypatch.setattr(doctor, "is_right", is_right)
    monkeypatch.setattr(doctor, "CHECKS", (is_right,))
    assert doctor.main([]) == 0


def test_doctor_finds_all_well_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its last check, which is the demo."""
    monkeypatch.setattr(doctor, "CHECKS", tuple(c for c in doctor.CHECKS if c is not doctor.is_right))
    status, out, _ = run(monkeypatch, "doctor")
    assert status == 0, out
    assert doctor.USE in out
    if not torch.cuda.is_available():
        assert "note    no GPU" in out


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (("ok", "ok"), "All is well. Use it: "),
        (("note", "note"), "Nothing has failed. Read the notes above. Use it: "),
        (("note", "FAILED"), "Something is wrong: see FAILED above."),
    ],
)
def test_doctor_sums_up_what_it_found(found: tuple[str, str], said: str) -> None:
    assert doctor.conclusion([doctor.Finding(status, "") for status in found]).startswith(said)


def test_doctor_stops_where_the_rest_needs_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    status, out, _ = run(monkeypatch, "doctor")
    assert status == 1 and "FAILED  triton is not installed" in out
    assert f"pip install triton=={TESTED[release(torch.__version__)]} (" in out
    assert out.endswith("\nThe other checks need this one.\n")


@pytest.mark.parametrize(
    ("triton", "status", "remedy"),
    [("3.7.0", "ok", ""), ("3.9.0", "note", "torch 2.13 is built against, and tested with, 3.7.1")],
)
def test_doctor_knows_the_tested_pair(
    monkeypatch: pytest.MonkeyPatch, triton: str, status: str, remedy: str
) -> None:
    monkeypatch.setattr(doctor.metadata, "version", {"torch": "2.13.0+cpu"}.__getitem__)
    monkeypatch.setattr("triton.__version__", triton)
    found = doctor.triton_version()
    assert found.status == status and remedy in found.remedy


def test_doctor_without_numpy_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    found = doctor.is_right()
    assert found.status == "note" and "NumPy" in found.text and "pip install numpy" in found.remedy
    status, _, err = run(monkeypatch, "demo", "--device", "interpreter")
    assert status == 2 and "numpy is not installed" in err


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.10.1", "FAILED"), ("2.11.0+cu130", "ok"), ("2.15.0", "ok"), ("3.0.0a0+git1", "note")],
)
def test_doctor_knows_which_torch_was_tested(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: version)
    assert doctor.torch_version().status == status


def test_doctor_says_that_torch_loads_no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    found = doctor.plugin()
    assert found.status == "note" and "loads no plugins" in found.text


@pytest.mark.parametrize(
    ("env", "status", "text"),
    [
        ({}, "ok", "off, except where options say otherwise (no variable is set)"),
        ({"MIXORDER": "on"}, "ok", "on for every compile that does not say otherwise (MIXORDER='on')"),
        ({SHARED: "0"}, "note", f"off, except where options say otherwise ({SHARED}='0')"),
        ({"MIXORDER": "1", SHARED: "0"}, "ok", f"(MIXORDER='1', {SHARED}='0', MIXORDER decides)"),
        ({"MIXORDER": "0"}, "note", "off, whatever options say (MIXORDER='0')"),
        ({SHARED: "2"}, "note", f"not understood: {SHARED}='2'"),
    ],
)
def test_doctor_says_what_decides(
    env: dict[str, str], status: str, text: str, enabled_by: Callable[[dict[str, str]], object]
) -> None:
    enabled_by(env)
    found = doctor.switched_on()
    assert found.status == status and text in found.text


def test_commands_that_compile_do_not_run_where_mixorder_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXORDER", "0")
    status, out, err = run(monkeypatch, "bench", f"{HERE}:factory")
    assert status == 2 and not out and err.endswith("bench cannot run: MIXORDER=0 is set\n")
    assert run(monkeypatch, "explain", f"{HERE}:factory", "--check")[0] == 2
    assert run(monkeypatch, "doctor", "--help")[0] == 0 == run(monkeypatch, "explain", "--help")[0]


def test_doctor_tells_of_an_installation_that_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")
    found = doctor.plugin()
    assert found.status == "note" and f"as mixorder 0.0.1, but {mixorder.__version__} runs" in found.text


def test_doctor_reports_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(
        returncode=1, stdout="\nFAILED: rounding does not explain the errors of x", stderr=""
    )
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: failed)
    found = doctor.is_right()
    assert found.status == "FAILED" and "does not explain" in found.text and "mixorder demo" in found.remedy


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
