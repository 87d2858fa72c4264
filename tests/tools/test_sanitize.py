"""What tools/sanitize.py does without a GPU: finding the program, reading its logs, its table."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sanitize
import torch
from sanitize import Job, Report

LOG = """\
========= COMPUTE-SANITIZER
CASE LayerNorm@37x100@bfloat16@0
CASE RMSNorm@7x16400@float32@1
========= Invalid __global__ read of size 4 bytes
=========     at triton_mixorder_native_layer_norm_backward_0+0x250 in k.py:12
=========     by thread (64,0,0) in block (0,0,0)
=========     Access at 0x7f is out of bounds
=========         Host Frame:  in python
========= Invalid __global__ read of size 4 bytes
=========     at triton_mixorder_native_layer_norm_backward_0+0x250 in k.py:12
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::elementwise_kernel+0x50
=========
some line of the program: error detected
========= ERROR SUMMARY: 3 errors
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


def test_errors_are_told_apart_by_kernel_and_case() -> None:
    report = sanitize.parsed_log(LOG)
    assert report == Report(2, 1, ("RMSNorm@7x16400@float32@1",))
    assert not report.clean and Report(0, 3).clean and not Report(ended="timeout").clean
    clean = "========= COMPUTE-SANITIZER\nCASE a@@b@0\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitize.parsed_log(clean) == Report()


def test_products_are_computed_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    importlib.import_module("torch._inductor.kernel.mm")
    for name in ("mm", "addmm", "bias_addmm", "bmm", "baddbmm"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name))  # so that it is undone
    a, b, bias = (torch.randn(*shape).bfloat16() for shape in ((5, 7), (7, 3), (3,)))
    sanitize.products_on_the_host()
    exact = a.float() @ b.float()
    out = torch.empty(5, 3, dtype=torch.bfloat16)
    assert kernels.mm(a, b, out=out) is out
    assert torch.equal(out, exact.bfloat16()) and torch.equal(kernels.mm(a, b), out)
    kernels.bias_addmm(bias, a, b, alpha=1, beta=1, out=out)
    assert torch.equal(out, (exact + bias.float()).bfloat16())


def test_what_a_tool_gave_up_on_is_checked_job_by_job() -> None:
    parts = [[Job("a"), Job("b")], [Job("c"), Job("d")]]
    seen: list[tuple[list[str], str]] = []

    def check(jobs: Sequence[Job], name: str, port: int) -> Report:
        seen.append(([job.case for job in jobs], name))
        return Report(1, 0, ("a",), "timeout") if name in ("0", "0-1") else Report()

    with ThreadPoolExecutor(1) as pool:
        whole = sanitize.swept(parts, check, pool)
    assert seen == [(["a", "b"], "0"), (["c", "d"], "1"), (["a"], "0-0"), (["b"], "0-1")]
    assert whole == Report(2, 0, ("a",), "timeout")


def test_jobs_are_written_as_they_are_read() -> None:
    jobs = sanitize.default_jobs()
    assert [Job.parse(str(job)) for job in jobs] == jobs and len(set(jobs)) == len(jobs) > 100
    assert sorted(map(str, sum(sanitize.split(jobs, 6), []))) == sorted(map(str, jobs))
    command = sanitize.command(Path("/x/compute-sanitizer"), "racecheck", jobs[:2], 50020)
    assert command[1:3] == ["--tool", "racecheck"] and command[-2:] == [str(jobs[0]), str(jobs[1])]
    assert "kns=triton_mixorder" in command
    assert "kns=triton_mixorder" not in sanitize.command(Path("/x"), "initcheck", jobs[:2], 50020)
