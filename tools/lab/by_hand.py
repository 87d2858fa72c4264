"""The hand-tuned constants of the schedule rules, where the fit has found others."""

from __future__ import annotations

import dataclasses

from mixorder.schedule.constants import FITTED

BY_HAND = dataclasses.replace(
    FITTED,
    few_tiles_share=1.0,
    final_per_thread=128,
    chunk_saving=1.0,
    rounding=1.0,
    words_of_2_rows=64,
    least_depth=0,
    records_for_4_stages=0,
)
