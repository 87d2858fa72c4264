"""Which buffers of a launch later ones take the memory of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch._inductor.virtualized import V

from mixorder.inductor import allocation

OURS, LOOPS, LIBRARY = "ours", "loops", "library"


@pytest.mark.parametrize(
    ("kernels", "taken"),
    [
        ((OURS, LOOPS), True),
        ((OURS, LOOPS, LOOPS), True),
        ((OURS, OURS, LOOPS), True),
        ((OURS, LIBRARY, LOOPS), False),
        ((OURS, LOOPS, LIBRARY, OURS), False),
        ((LOOPS, LIBRARY, LOOPS), True),
        ((LIBRARY, LIBRARY, LOOPS), True),
    ],
)
def test_what_a_launch_has_used_is_not_held_during_a_kernel_of_a_library(
    kernels: tuple[str, ...], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first kernel is the last to use the memory; the last one takes it."""

    class AllocateLine:
        scheduler_node_index = len(kernels) - 1

        def should_reuse_buffer(self, free_line: object, size: int) -> bool:
            return size == 1

    monkeypatch.setattr(allocation, "launches_ours", lambda node: node.kind == OURS)
    allocation.free_soon(SimpleNamespace(AllocateLine=AllocateLine))  # type: ignore[arg-type]
    nodes = [SimpleNamespace(kind=k, is_extern=lambda k=k: k != LOOPS) for k in kernels]
    with V.set_graph_handler(SimpleNamespace(scheduler=SimpleNamespace(nodes=nodes))):  # type: ignore[arg-type]
        line, freed = AllocateLine(), SimpleNamespace(scheduler_node_index=0)
        assert line.should_reuse_buffer(freed, 1) is taken
        assert not line.should_reuse_buffer(freed, 2)  # Inductor's own no stays


def test_a_torch_without_the_function_stays_as_it_is() -> None:
    allocation.free_soon(SimpleNamespace())  # type: ignore[arg-type]
