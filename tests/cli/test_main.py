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


def test_layer_norm_in_bf16() -> None:
    done = demo("--norm", "layer", "--dtype", "bf16", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    # Three norms, and bias gradients that no norm takes along.
    assert re.findall(r"^  \d  +(\S.*?)  +(16x\d+)  ", done.stdout, re.MULTILINE) == [
        ("norm, blocks.0.down", "16x32"),
        ("blocks.0.norm2, blocks.0.attention.out", "16x32"),
        ("blocks.0.norm1", "16x32"),
        ("blocks.0.up", "16x128"),
        ("blocks.0.attention.qkv", "16x96"),
    ]
    assert done.stdout.endswith("OK: all 16 are as exact as stock's (5 regions fused).\n")
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
