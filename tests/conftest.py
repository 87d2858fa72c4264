"""Session set-up: private caches, and `gpu` tests only where there is a GPU."""

import contextlib
import gc
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled code of earlier runs, and of the user, out of the tests."""
    cache = tempfile.TemporaryDirectory(prefix="mixorder-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(cache.cleanup)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
    if not hasattr(config, "workerinput"):  # the workers of a run share machine code
        os.environ["TRITON_CACHE_DIR"] = f"{cache.name}/triton"
    # Stock Inductor's loops on the CPU are not what is tested. Without vector instructions they compile in
    # half the time, and no process compiles three libraries to find out which instructions there are (6 s).
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
    # Options that the developer's shell sets would change what the tests test.
    for name in ("MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION", "MIXORDER_STRICT", "MIXORDER_DUMP"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish() -> None:
    """Garbage collection, which Dynamo asks for after each compile, takes a third of the time without what is
    imported by now."""
    gc.freeze()


@pytest.fixture
def plan_with() -> Iterator[Callable[..., None]]:
    """A function that changes the `Setting` of all compiles of a test, from then on."""
    from mixorder.planning import planning_with

    with contextlib.ExitStack() as stack:
        yield lambda **changes: stack.enter_context(planning_with(**changes))


@pytest.fixture
def runs() -> Iterator[object]:
    """Calls of the pipeline, which a recorder replaces (recorder.py)."""
    from recorder import recorded

    with recorded() as calls:
        yield calls
