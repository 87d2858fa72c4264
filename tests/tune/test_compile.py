"""Candidates to machine code without a GPU: in this process, and in Inductor's compile workers."""

from __future__ import annotations

import dataclasses
import os
import time
import types
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, f64
from triton.backends.nvidia import compiler as nvidia

from mixorder.inductor import workers
from mixorder.ir.program import LoopProgram
from mixorder.tune import compile as compile_module
from mixorder.tune.compile import Job, compile_all, compile_in_worker, environment, job_of, triton_settings

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="an interpreted kernel has no machine code"
)

SM_90 = ("cuda", 90, 32)


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Triton's cache, empty; the workers have not been waited for. Which ptxas there is, is asked again: an
    earlier test may have asked when torch's own was not named."""
    for function in (nvidia.get_ptxas_version, nvidia.CUDABackend.hash):
        function.cache_clear()
    workers._wait_once.cache_clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    yield tmp_path / "triton"


def jobs(rows: int = 4096, cols: int = 256) -> tuple[LoopProgram, list[Job]]:
    program, _, sources = graphs.kernels(graphs.only(graphs.rms_norm_backward(rows, cols)))
    return program, [job_of(program, source, SM_90) for source in sources]


def machine_codes(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.cubin")}


def test_a_symbolic_batch_compiles(caches: Path) -> None:
    def pair(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dy - (x * dy).sum(-1, keepdim=True), (x * dy).sum(1)

    spec = (64, 256, 512), f32
    program, _, sources = graphs.kernels(graphs.only(graphs.traced_rows(pair, spec, spec)))
    assert all("batch = " in source.text and not isinstance(source.grid, int) for source in sources)
    wanted = [job_of(program, source, SM_90) for source in sources]
    assert set(compile_all(wanted, str(caches))) == set(wanted)


def test_symbolic_sizes_are_integers() -> None:
    graph = graphs.traced_rows(graphs.pair, ((4096, 256), f32), ((4096, 256), f32))
    program, _, (main, _) = graphs.kernels(graphs.only(graph))
    (name,) = main.sizes
    assert dict(job_of(program, main, SM_90).signature)[name] == "i32"
    huge = dataclasses.replace(program, hints=tuple((s, 2**31) for s, _ in program.hints))
    assert dict(job_of(huge, main, SM_90).signature)[name] == "i64"


@pytest.mark.parametrize("dtype", [bf16, f64])
def test_compiled_in_this_process(dtype: object, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "_in_workers", lambda jobs: {})
    program, _, sources = graphs.kernels(graphs.only(graphs.pair_graph(4096, 256, dtype)))  # type: ignore[arg-type]
    wanted = [job_of(program, source, SM_90) for source in sources]
    compiled = compile_all([*wanted, *wanted], str(caches))
    assert set(compiled) == set(wanted)
    assert machine_codes(caches) == {f"{job.name}.cubin" for job in wanted}


def test_a_candidate_that_does_not_compile_is_left_out(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (main, final) = jobs()
    broken = dataclasses.replace(main, module_text=main.module_text.replace("tl.sum(", "tl.no_such("))
    monkeypatch.setattr(compile_module, "_in_workers", lambda jobs: {})
    assert set(compile_all([broken, final], str(caches))) == {final}
    error = compile_in_worker(broken, triton_settings())
    assert error is not None and "no_such" in error


def test_a_worker_has_the_settings_of_who_asks(
    caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (main, _) = jobs()
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("TRITON_LEFT_OVER", "1")
    before = dict(os.environ)
    settings = {"TRITON_CACHE_DIR": str(elsewhere)}
    assert compile_in_worker(main, settings) is None
    assert machine_codes(elsewhere) and not machine_codes(caches)
    assert os.environ == before
    with environment(settings):
        assert "TRITON_LEFT_OVER" not in os.environ


def test_workers_that_cannot_be_used_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.async_compile import AsyncCompile

    def broken(*_: object) -> None:
        raise RuntimeError("the pool is gone")

    monkeypatch.setattr(AsyncCompile, "wait_pool_ready", broken)
    assert compile_module._in_workers(jobs()[1]) == {}


def test_torch_s_own_tools_are_named_before_workers_are_asked(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor names them at its first compile in a process; a job of before would have another key."""
    from torch._inductor.runtime import compile_tasks

    def submit(function: Any, job: Any, settings: dict[str, str]) -> Future[None]:
        sent.append(settings)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    sent: list[dict[str, str]] = []
    own = {"TRITON_PTXAS_PATH": "torch/bin/ptxas"}
    monkeypatch.setattr(compile_tasks, "_set_triton_ptxas_path", lambda: os.environ.update(own))
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")  # so that it is taken back
    monkeypatch.setattr(workers, "pool", lambda: types.SimpleNamespace(submit=submit))
    monkeypatch.setattr(compile_module, "compile_job", lambda job: job.name)
    assert len(compile_all(jobs()[1], str(caches))) == 2
    assert len(sent) == 2 and all(own.items() <= settings.items() for settings in sent)


def test_what_workers_compile_is_found_here(caches: Path) -> None:
    """The whole way through Inductor's pool, whose processes never see a GPU."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    with config.patch(compile_threads=2):
        _, wanted = jobs()
        bad = dataclasses.replace(wanted[0], module_text=wanted[0].module_text.replace("tl.sum(", "tl.no("))
        failed = compile_module._in_workers([*wanted, bad])
        if not AsyncCompile.use_process_pool():
            pytest.skip("Inductor starts no compile workers here")
    assert set(failed) == {bad}
    assert machine_codes(caches) == {f"{job.name}.cubin" for job in wanted}
    written = max(path.stat().st_mtime_ns for path in caches.rglob("*.cubin"))
    started = time.time_ns()
    assert set(compile_all(wanted[:1], str(caches))) == set(wanted[:1])
    assert all(path.stat().st_mtime_ns <= written < started for path in caches.rglob("*.cubin"))
