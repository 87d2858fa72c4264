"""Blocks of published vision and speech models at small sizes, whose maps of features and their gradients lie
in random orders in memory. transformers must be installed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

SMALL = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_attention_heads": [1, 2]}
FOUR = {"hidden_sizes": [8, 16, 16, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}


def _segformer(t: Any) -> nn.Module:
    few = {"patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2], "sr_ratios": [4, 2]}
    return t.SegformerModel(t.SegformerConfig(num_encoder_blocks=2, **SMALL, **few))


def _pvt(t: Any) -> nn.Module:
    return t.PvtModel(t.PvtConfig(image_size=64, mlp_ratios=[2] * 4, **FOUR))


def _pvt_v2(t: Any) -> nn.Module:
    return t.PvtV2Model(t.PvtV2Config(image_size=64, mlp_ratios=[2] * 4, **FOUR))


def _swin(t: Any) -> nn.Module:
    stages = {"out_features": ["stage1", "stage2"], "depths": [2, 1], "num_heads": [1, 2]}
    return t.SwinBackbone(t.SwinConfig(image_size=32, window_size=4, embed_dim=16, **stages))


def _convnext(t: Any) -> nn.Module:
    stages = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}
    return t.ConvNextModel(t.ConvNextConfig(image_size=32, **stages))


def _glpn(t: Any) -> nn.Module:
    few = {"patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2], "sr_ratios": [4, 2]}
    return t.GLPNModel(t.GLPNConfig(num_encoder_blocks=2, **SMALL, **few))


def _conformer(t: Any) -> nn.Module:
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as modeling

    config = t.Wav2Vec2ConformerConfig(
        hidden_size=32, num_attention_heads=2, intermediate_size=64, position_embeddings_type=None
    )
    return modeling.Wav2Vec2ConformerEncoderLayer(config)


def _sam(t: Any) -> nn.Module:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "mlp_dim": 64, "output_channels": 16}
    places = {"image_size": 64, "window_size": 3, "global_attn_indexes": [1]}
    config = t.SamVisionConfig(num_hidden_layers=2, patch_size=8, **sizes, **places)
    return t.SamVisionModel(config)


BLOCKS: dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...]]] = {
    "segformer": (_segformer, (2, 3, 64, 64)),
    "pvt": (_pvt, (1, 3, 64, 64)),
    "pvt v2": (_pvt_v2, (1, 3, 64, 64)),
    "swin": (_swin, (2, 3, 32, 32)),
    "convnext": (_convnext, (2, 3, 32, 32)),
    "glpn": (_glpn, (2, 3, 64, 64)),
    "conformer": (_conformer, (2, 40, 32)),
    "sam": (_sam, (1, 3, 64, 64)),
}


class Block(nn.Module):
    """A block whose result is all its maps of features, in float32 or float64."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        make, self.shape = BLOCKS[name]
        self.inner = make(transformers).eval()  # no dropout
        self.maps = {"output_hidden_states": True} if hasattr(self.inner, "config") else {}

    def forward(self, x: Tensor) -> list[Tensor]:
        found = self.inner(x, **self.maps)
        found = found.to_tuple() if hasattr(found, "to_tuple") else found
        flat = torch.utils._pytree.tree_leaves(found)
        return [t for t in flat if isinstance(t, Tensor) and t.requires_grad]


def in_any_order(draw: Random, t: Tensor) -> Tensor:
    """The same numbers, with the dims in a random order in memory."""
    order = draw.sample(range(t.dim()), t.dim())
    back = [order.index(d) for d in range(t.dim())]
    return t.detach().permute(order).contiguous().permute(back)
