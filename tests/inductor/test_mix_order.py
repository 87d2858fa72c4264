"""Inductor's own mix-order reduction, of which these programs show the faults: compiles with mixorder do
without it, whatever mixorder leaves alone.

Code is written for a GPU that is not there, in a process of its own. Numbers are tested in the interpreter
(tests/interpreter/test_upstream_numbers.py) and on a GPU (tests/gpu/test_upstream_on_gpu.py).
"""

from __future__ import annotations

import functools

import pytest
import torch
from support import stand_in
from upstream import LEFT


@functools.cache
def found() -> dict[str, dict[str, bool]]:
    """What `mixed_code.main` prints."""
    if torch.version.cuda is not None:
        pytest.skip("the stand-in for a GPU is for a CPU build of torch")
    mixed: dict[str, dict[str, bool]] = stand_in.found(
        "import mixed_code; mixed_code.main()", stand_in.ON_A_GPU
    )
    return mixed


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_alone_has_no_mix_order_kernel_of_inductor_s(name: str) -> None:
    """Nor where the user asks for one. A compile without mixorder has one."""
    assert found()[name] == {"stock": True, "default": False, "left alone": False}
