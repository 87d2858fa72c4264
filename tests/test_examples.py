"""The parts of an example that need no GPU."""

import pytest
import torch
import train_gpt


def test_final_losses_and_their_spread() -> None:
    assert train_gpt.final([9.0] * 6 + [2.0, 4.0]) == 3 and train_gpt.final([5.0]) == 5
    assert train_gpt.spread([1.0]) == 0 and train_gpt.spread([1.0, 3.0]) == pytest.approx(2**0.5)
    falling = [float(100 - i) for i in range(100)]
    assert train_gpt.smooth(falling)[:3] == [100, 99.5, 98.5] and len(train_gpt.smooth(falling)) == 100


def test_the_corpus_is_source_of_python() -> None:
    text = train_gpt.corpus(100_000)
    assert text.dtype is torch.int64 and 50 < len(text.unique()) <= train_gpt.BYTES
    assert torch.equal(text[:1000], train_gpt.corpus(1000)) and b"import " in bytes(text.tolist())
