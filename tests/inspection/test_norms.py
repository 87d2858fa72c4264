"""The reason that a norm gets, where several pairs were declined, or none."""

import pytest
from torch import nn

from mixorder.errors import Decline, DeclineReason
from mixorder.inspection.findings import GraphRecord
from mixorder.inspection.norms import norms_of
from mixorder.region.provenance import Provenance


def declined(reason: DeclineReason, *paths: str) -> Decline:
    decline = Decline(reason, "why")
    decline.provenance = Provenance(tuple((path, "LayerNorm") for path in paths))
    return decline


def reasons(model: nn.Module, *records: Decline, forward: tuple[Decline, ...] = ()) -> list[str]:
    graphs = [GraphRecord("forward", 9, forward), GraphRecord("backward", 9, records)]
    sizes = {path: 0 for path, _ in model.named_modules()}
    return [norm.reason for norm in norms_of(model, graphs, sizes)]


def test_a_norm_has_the_reason_of_its_first_pair() -> None:
    pairs = (
        declined(DeclineReason.MEMORY, "0"),
        declined(DeclineReason.CYCLE, "0", "1"),  # of what the first pair left over
    )
    assert reasons(nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4)), *pairs) == ["memory: why", "cycle: why"]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.LayerNorm(1)])
def test_what_is_about_the_norm_alone_decides(norm: nn.Module) -> None:
    """Before it, its sums were tried in pairs with other modules' rows."""
    tried = declined(DeclineReason.CYCLE, "0", "1", "2"), declined(DeclineReason.UNSUPPORTED_OP, "0", "1")
    own = declined(DeclineReason.SLOWER, "0"), declined(DeclineReason.TOO_SMALL, "0")
    assert reasons(nn.Sequential(norm), *tried, *own) == ["slower: why"]


def test_what_is_about_the_backward_decides() -> None:
    statistic = declined(DeclineReason.SLOWER, "0")
    model = nn.Sequential(nn.BatchNorm2d(4))
    assert reasons(model, declined(DeclineReason.CYCLE, "0", "1"), forward=(statistic,)) == ["cycle: why"]
    assert reasons(model, forward=(statistic,)) == ["slower: why"]


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.LayerNorm(1), "its rows have one element each: there is nothing to reduce along them"),
        (nn.LayerNorm(4, elementwise_affine=False), "it has no trainable weight or bias, so"),
        (nn.BatchNorm2d(4).eval(), "its backward has no sums that mixorder would fuse, such as where"),
        (nn.InstanceNorm2d(4, affine=True), "its backward has no sums that mixorder would fuse"),
    ],
)
def test_nothing_is_said_of_a_norm_that_was_not_tried_but_what_its_module_tells(
    norm: nn.Module, reason: str
) -> None:
    (found,) = reasons(nn.Sequential(norm))
    assert found.startswith(reason)
