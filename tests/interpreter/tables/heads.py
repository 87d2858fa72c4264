"""Backwards of losses, with the bias gradient of the layer in front: outputs with gaps between their rows,
and sums of rows that a label alone decides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from graphs import bf16, f32
from table import Entry
from torch import nn


class Head(nn.Module):
    """Logits of so many classes, and the squares of their logarithms: rows of the gradient are padded."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(24, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.linear(x), -1).square().mean(-1)


class Labelled(Head):
    """Their cross-entropy; some rows do not count, one label is the last class."""

    def __init__(self, columns: int, smoothing: float = 0.0) -> None:
        super().__init__(columns)
        self.smoothing, labels = smoothing, torch.randint(columns, (37,))
        labels[::5], labels[1], labels[2] = -100, columns - 1, 0
        self.register_buffer("labels", labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.linear(x), self.labels, label_smoothing=self.smoothing)


def is_padded(*found: Any) -> bool:
    (record,) = (r for r in found if "sum" in [node.op for node in r.outer])
    (padded,) = (b for b in record.loops.buffers if len(b.shape) > 1 and b.stride[-2] > b.shape[-1] > 1)
    return padded.stride[-2] % (128 // padded.dtype.itemsize) == 0


def padded(columns: int, dtype: torch.dtype, *rows: int) -> Entry:
    shape = (*rows, 24)
    return Entry(lambda: Head(columns).to(dtype), (shape,), dtype, regions=None, shows=is_padded)


def without_a_loop(record: Any) -> bool:
    """The row's sum needs no loop, and no program waits for another one's part."""
    waits = any("mailbox" in k.text for k in record.kernels)
    return [node.op for node in record.inner] == ["sum"] and not waits


def labelled(columns: int, dtype: torch.dtype, **how: Any) -> Entry:
    return Entry(lambda: Labelled(columns, **how).to(dtype), ((37, 24),), dtype, shows=without_a_loop)


ENTRIES: dict[str, Entry] = {
    "padded": padded(1100, bf16, 37),
    "padded, of an odd number": padded(1099, f32, 3, 7),
    "padded, of many classes": padded(3001, bf16, 37),
    "labels": labelled(256, f32),
    "labels of an odd number": labelled(1099, bf16),
    "labels of many classes": labelled(3001, f32),
    "smoothed labels": Entry(lambda: Labelled(300, 0.1), ((37, 24),), regions=None),
}
