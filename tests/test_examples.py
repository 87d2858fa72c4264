"""The parts of an example that need no GPU."""

import pytest
import torch
import train_gpt


def test_curves_that_part_are_told() -> None:
    straight = [2.0] * 8
    assert train_gpt.apart(straight, straight) == 0
    assert train_gpt.apart([*straight[:6], 2.1, 2.1], straight) == pytest.approx(0.05)
    assert train_gpt.APART < 0.05
    text = train_gpt.corpus(1000)
    assert torch.equal(text, train_gpt.corpus(1000)) and 5 < len(text.unique()) <= len(train_gpt.LETTERS)
