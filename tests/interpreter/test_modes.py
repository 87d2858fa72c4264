"""The tests of modes.py, each graph run by the FX interpreter and each kernel by Triton's."""

import modes
import pytest
from modes import *  # noqa: F403
from running import ON

from mixorder.plugin import compile_for_interpreter


@pytest.fixture(autouse=True)
def on_the_cpu() -> None:
    modes.target.device = "cpu"
    modes.target.by_node = True
    modes.target.compile = {"backend": compile_for_interpreter(ON)}
