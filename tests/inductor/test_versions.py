"""Branches for versions of torch that are not the one at hand."""

from __future__ import annotations

import types
from typing import Any

import pytest

from mixorder.inductor import versions


@pytest.mark.parametrize(
    ("version", "older"),
    [("2.9.1", True), ("2.10.0+cu128", True), ("2.11.0a0+git1", False), ("3.0", False), ("unknown", False)],
)
def test_which_versions_are_too_old(version: str, older: bool) -> None:
    assert versions.older(version, versions.OLDEST) == older


@pytest.mark.parametrize("name", ["identify_accessed_tensors", "identify_mutated_tensors"])
def test_the_analysis_is_found_by_the_name_that_it_has(name: str) -> None:
    assert versions.mutation_analysis(types.SimpleNamespace(**{name: None})) == name


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ""),
        ({"batch_invariant": False, "numerics": "default", "eager_numerics": None}, ""),
        ({"batch_invariant": True}, "batch_invariant=True"),
        ({"batch_invariant": False, "numerics": "strict"}, "numerics='strict'"),
        ({"strict_signed_zero": True}, "strict_signed_zero=True"),
        ({"eager_numerics": types.SimpleNamespace(disable_ftz=True)}, "eager_numerics.disable_ftz=True"),
        ({"eager_numerics": types.SimpleNamespace(disable_ftz=False)}, ""),
    ],
)
def test_settings_that_promise_bits(settings: dict[str, Any], expected: str) -> None:
    assert versions.promises_bits(types.SimpleNamespace(**settings)) == expected
