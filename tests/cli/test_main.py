"""The demo, `python -m mixorder`, as the user runs it on a machine without a GPU."""

import os
import re
import subprocess
import sys

import pytest

TINY = ("--device", "interpreter", "--layers", "1", "--batch", "2", "--seq", "8", "--dim", "32")


def demo(*args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "mixorder", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def row(output: str, label: str) -> list[str]:
    """The cells of the comparison's row: without mixorder, with mixorder."""
    (line,) = re.findall(rf"^ *{label}  +(\S.*)$", output, re.MULTILINE)
    return re.split(r"  +", line.strip())


def regions(output: str) -> list[str]:
    return re.findall(r"^  region\d+ .*$", output, re.MULTILINE)


def check_errors(output: str, bound: float) -> None:
    errors = [float(cell) for cell in row(output, "largest gradient error")]
    assert len(errors) == 2
    assert all(0 < error < bound for error in errors)


def test_layer_norm_in_bf16() -> None:
    done = demo("--norm", "layer", "--dtype", "bf16", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    *norms, mlp, qkv = regions(done.stdout)
    assert len(norms) == 3
    assert all("16 x 32" in line and "float32" in line for line in norms)
    assert "16 x 128" in mlp and "16 x 96" in qkv  # bias gradients that no norm takes along
    check_errors(done.stdout, bound=0.03)
    without, with_ours = map(int, row(done.stdout, "FX nodes computed in mixorder's kernels"))
    assert without == 0 and with_ours > 30
    assert "on a GPU only" in done.stdout
    assert "@triton.jit" not in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--norm", "batch"], "argument --norm: invalid choice: 'batch'"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--layers", "0"], "argument --layers: 0 is less than 1"),
        (["--dim", "wide"], "argument --dim: 'wide' is not a whole number"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_bad_arguments(args: list[str], message: str) -> None:
    done = demo(*args)
    assert done.returncode == 2
    assert (
        done.stderr.startswith(f"python -m mixorder demo: error: {message}") and done.stderr.count("\n") == 1
    )


def test_cuda_without_a_gpu_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = demo("--device", "cuda")
    assert done.returncode == 2
    assert "--device cuda: this torch finds no GPU" in done.stderr


def test_help_teaches() -> None:
    done = demo("demo", "--help")
    assert done.returncode == 0
    for text in (
        "--show-kernel",
        "inner reduction",
        "outer reduction",
        "examples:",
        "1024 on a GPU",
    ):
        assert text in done.stdout
