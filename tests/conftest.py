"""Session set-up: private caches, and `gpu` tests only where there is a GPU."""

import contextlib
import gc
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

COLLECTED_EACH = 20  # tests, after which garbage is collected

_ended = itertools.count(1)

VARIABLES = ("MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION", "MIXORDER_STRICT", "MIXORDER_DUMP")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled code of earlier runs, and of the user, out of the tests."""
    # Little of what is allocated is garbage in cycles: to look for it all the time took a quarter of it.
    gc.disable()
    cache = tempfile.TemporaryDirectory(prefix="mixorder-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(cache.cleanup)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
    if not hasattr(config, "workerinput"):  # the workers of a run share machine code, and a path
        os.environ["TRITON_CACHE_DIR"] = f"{cache.name}/triton"
        paths = [str(Path(__file__).parent / "startup"), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # Stock Inductor's loops on the CPU are not what is tested. Without vector instructions they compile in
    # half the time, and no process compiles three libraries to find out which instructions there are (6 s).
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
    # Options that the developer's shell sets would change what the tests test.
    for name in VARIABLES:
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


def pytest_runtest_logfinish() -> None:
    if next(_ended) % COLLECTED_EACH == 0:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def faster_compiles() -> Iterator[None]:
    """Dynamo times the guards of a compile, which it only logs, in 25 ms, and collects garbage, in 20 ms.
    Torch prints what it compiles, for tlparse, if its log of that has a handler: pytest 9 gives it one."""
    from torch._dynamo import config, guards
    from torch._logging import _internal

    with pytest.MonkeyPatch.context() as patch, config.patch(run_gc_after_compile=False):
        patch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)
        patch.setattr(_internal, "trace_log", logging.Logger("without handlers"))
        yield


@pytest.fixture
def plan_with() -> Iterator[Callable[..., None]]:
    """A function that changes the `Setting` of all compiles of a test, from then on."""
    from mixorder.planning import planning_with

    with contextlib.ExitStack() as stack:
        yield lambda **changes: stack.enter_context(planning_with(**changes))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What mixorder has logged in the test so far. `caplog` may have torch's trace of a compile as well."""
    caplog.set_level("INFO", "mixorder")
    return lambda: [r.getMessage() for r in caplog.records if r.name.split(".")[0] == "mixorder"]


@pytest.fixture
def runs() -> Iterator[object]:
    """Calls of the pipeline, which a recorder replaces (recorder.py)."""
    from recorder import recorded

    with recorded() as calls:
        yield calls


@pytest.fixture
def lowered() -> Iterator[object]:
    """What is on for each graph that Inductor lowers (recorder.py)."""
    from recorder import lowering

    with lowering() as seen:
        yield seen


@pytest.fixture
def enabled_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], object]]:
    """The options that a process would have that was started in some environment."""
    import dataclasses

    import torch._inductor.config as inductor_config

    from mixorder import options as module
    from mixorder.options import SOURCE_HASH_KEY, Options, config_key, register

    config: Any = inductor_config
    keys = [config_key(field) for field in dataclasses.fields(Options)]
    entries = {key: config._config[key] for key in (*keys, SOURCE_HASH_KEY)}

    def options(env: dict[str, str]) -> Options:
        module.warn_once.cache_clear()
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        for key in entries:
            del config._config[key]
        register(config)
        return Options.current()

    yield options
    config._config.update(entries)
