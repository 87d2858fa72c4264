"""What is asked of Inductor's settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config

from mixorder.inductor import config


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", config.TUNING_OFF)
def test_inductor_tunes_with_each_of_its_options(name: str) -> None:
    with config.patched(config.TUNING_OFF):
        assert not config.tunes()
        with config.patched({name: True}):
            assert config.tunes()


def test_determinism_is_asked_for_by_torch_or_by_inductor(request: pytest.FixtureRequest) -> None:
    assert not config.wants_deterministic_results()
    with config.patched({"deterministic": True}):
        assert config.wants_deterministic_results()
    request.getfixturevalue("deterministic")
    assert config.wants_deterministic_results()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_invariant", True),
        ("numerics", "strict"),
        ("strict_signed_zero", True),
        ("eager_numerics.disable_ftz", True),
    ],
)
def test_a_promise_of_bits_is_seen(name: str, value: Any) -> None:
    assert not config.promises_bits()
    if config.is_option(name):
        with config.patched({name: value}):
            assert config.promises_bits() == f"{name}={value!r}"


def test_winners_are_kept_where_inductor_keeps_its_own() -> None:
    folder = config.winners_folder()
    assert folder is not None and folder.parent == Path(config.cache_dir())
    with config.patched({"force_disable_caches": True}):
        assert config.winners_folder() is None


def test_options_are_known_by_name() -> None:
    assert config.is_option("max_autotune") and not config.is_option("max_autotun")


def test_patches_end() -> None:
    before = functorch_config.enable_autograd_cache
    with functorch_config.patch(enable_autograd_cache=True):
        with config.without_autograd_cache():
            assert not functorch_config.enable_autograd_cache
        assert functorch_config.enable_autograd_cache
    assert functorch_config.enable_autograd_cache == before
