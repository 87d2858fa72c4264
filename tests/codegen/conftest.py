"""What was compiled before and passed is not compiled again: `known`, by digests in compiled.json."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton
from offline import Known
from triton.backends.compiler import GPUTarget

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram

FILE = Path(__file__).with_name("compiled.json")
OFFLINE = Path(__file__).with_name("offline.py")
PASSED = pytest.StashKey[bool]()


@pytest.fixture
def known(request: pytest.FixtureRequest) -> Iterator[Known]:
    """A function of a target and of the programs and kernels that a test is about to compile for it: whether
    the same test has passed with the same texts, by this Triton. A test then has nothing to add. The test and
    the functions that it may call count, too. EXPECTTEST_ACCEPT=1 keeps the digests of what passes.
    """
    accept = os.environ.get("EXPECTTEST_ACCEPT") == "1"
    name, asked = f"{request.path.name}::{request.node.name}", list[str]()

    def ask(target: GPUTarget, *kernels: tuple[LoopProgram, KernelSource]) -> bool:
        said = [repr((triton.__version__, target)), *(_text(*one) for one in kernels)]
        said += [_checks(path, request.function.__name__) for path in (request.path, OFFLINE)]
        asked.append(hashlib.sha256("\n".join(said).encode()).hexdigest()[:16])
        if _digests().get(name) == asked[-1]:
            return True
        if not accept:
            warnings.warn("compiled again: EXPECTTEST_ACCEPT=1 keeps the digests", stacklevel=2)
        return False

    yield ask
    if accept and asked and request.node.stash.get(PASSED, False):
        written = FILE.with_suffix(f".{os.getpid()}")  # another worker reads the file as it was or as it is
        written.write_text(json.dumps({**_digests(), name: asked[-1]}, indent=0, sort_keys=True) + "\n")
        written.replace(FILE)


def _text(program: LoopProgram, source: KernelSource) -> str:
    dtypes = [program.buffer(name).dtype for name in source.buffers]
    return f"{source.text}\n{source.config}, {source.registers}, {source.exact}, {dtypes}"


def _checks(path: Path, test: str) -> str:
    """The functions of a file without other tests. What they are called with is in the kernels' texts; a new
    bound alone compiles nothing again."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        function.decorator_list = []
    return "\n".join(ast.unparse(f) for f in functions if f.name == test or not f.name.startswith("test_"))


def _digests() -> dict[str, str]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed  # type: ignore[attr-defined]
    return report
