"""The reason that a norm gets, where several pairs were declined."""

from torch import nn

from mixorder.errors import Decline, DeclineReason
from mixorder.inspection.findings import GraphRecord
from mixorder.inspection.norms import norms_of
from mixorder.region.provenance import Provenance


def declined(reason: DeclineReason, *paths: str) -> Decline:
    decline = Decline(reason, "why")
    decline.provenance = Provenance(tuple((path, "LayerNorm") for path in paths))
    return decline


def test_a_norm_has_the_reason_of_its_first_pair() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4))
    records = (
        declined(DeclineReason.MEMORY, "0"),
        declined(DeclineReason.CYCLE, "0", "1"),  # of what the first pair left over
    )
    norms = norms_of(model, [GraphRecord("backward", 9, records)], {})
    assert [(norm.path, norm.reason) for norm in norms] == [("0", "memory: why"), ("1", "cycle: why")]


def test_rows_of_one_element_have_no_pair() -> None:
    """A map of one channel: all that is left to reduce is over its rows."""
    model = nn.Sequential(nn.LayerNorm(1), nn.LayerNorm((2, 1)))
    records = (declined(DeclineReason.TOO_SMALL, "0", "1"),)
    norms = norms_of(model, [GraphRecord("backward", 9, records)], {})
    reasons = [norm.reason for norm in norms]
    assert reasons == [
        "its rows have one element each: there is nothing to reduce along them",
        "too-small: why",
    ]
