"""What was compiled before and passed is not compiled again: `known`, by digests in compiled.json."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton
from offline import Known
from triton.backends.compiler import GPUTarget

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram

FILE = Path(__file__).with_name("compiled.json")
PASSED = pytest.StashKey[bool]()


@pytest.fixture
def known(request: pytest.FixtureRequest) -> Iterator[Known]:
    """A function of a target and of the programs and kernels that a test is about to compile for it: whether
    the same test has passed with the same texts, by this Triton. A test then has nothing to add. Its own text
    and that of offline.py count, too. EXPECTTEST_ACCEPT=1 keeps the digests of what passes.
    """
    accept = os.environ.get("EXPECTTEST_ACCEPT") == "1"
    name, asked = f"{request.path.name}::{request.node.name}", list[str]()

    def ask(target: GPUTarget, *kernels: tuple[LoopProgram, KernelSource]) -> bool:
        said = [repr((triton.__version__, target)), *(_text(*one) for one in kernels)]
        said += [path.read_text() for path in (request.path, FILE.with_name("offline.py"))]
        asked.append(hashlib.sha256("\n".join(said).encode()).hexdigest()[:16])
        return _digests().get(name) == asked[-1]

    yield ask
    if accept and asked and request.node.stash.get(PASSED, False):
        FILE.write_text(json.dumps({**_digests(), name: asked[-1]}, indent=0, sort_keys=True) + "\n")


def _text(program: LoopProgram, source: KernelSource) -> str:
    dtypes = [program.buffer(name).dtype for name in source.buffers]
    return f"{source.text}\n{source.config}, {source.registers}, {source.exact}, {dtypes}"


def _digests() -> dict[str, str]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed  # type: ignore[attr-defined]
    return report
