"""The reason that a norm gets, where several pairs were declined."""

from torch import nn

from mixorder.errors import Decline, DeclineReason
from mixorder.inspection.calls import Calls
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
    norms = norms_of(model, [GraphRecord("backward", 9, records)], Calls(model, {}), 0)
    assert [(norm.path, norm.reason) for norm in norms] == [("0", "memory: why"), ("1", "cycle: why")]
