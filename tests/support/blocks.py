"""Blocks of published vision and speech models at small sizes, whose maps of features and their gradients lie
in random orders in memory. transformers must be installed; for Wan and Stable Diffusion, diffusers too."""

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


def _rt_detr(t: Any) -> nn.Module:
    maps = {"hidden_sizes": [16, 16, 32, 32], "out_features": ["stage2", "stage3", "stage4"]}
    backbone = t.RTDetrResNetConfig(embedding_size=16, depths=[1] * 4, layer_type="basic", **maps)
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_layers": 1}
    widths = {"encoder_hidden_dim": 16, "encoder_ffn_dim": 32, "d_model": 16, "decoder_ffn_dim": 32}
    channels = {"encoder_in_channels": [16, 32, 32], "decoder_in_channels": [16] * 3}
    sizes: dict[str, Any] = {"num_queries": 8, "decoder_n_points": 2, "freeze_backbone_batch_norms": False}
    return t.RTDetrModel(t.RTDetrConfig(backbone_config=backbone, **heads, **widths, **channels, **sizes))


class _Given(nn.Module):
    """A module called with its input and with tensors that stay as they are."""

    def __init__(self, inner: nn.Module, *others: Tensor, call: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.inner, self.call = inner, call or type(inner).__call__
        for i, t in enumerate(others):
            self.register_buffer(f"other{i}", t)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.inner, x, *self.buffers(recurse=False))


def _wan(_: Any) -> nn.Module:
    from diffusers.models.transformers.transformer_wan import WanTransformerBlock

    angles = torch.randn(1, 48, 1, 8).repeat_interleave(2, dim=-1)
    text, time = torch.randn(2, 10, 32), torch.randn(2, 6, 32)
    block = WanTransformerBlock(32, 64, 2, cross_attn_norm=True)
    return _Given(
        block, text, time, angles.cos(), angles.sin(), call=lambda f, x, a, b, c, d: f(x, a, b, (c, d))
    )


def _wan_vae(_: Any) -> nn.Module:
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan(
        base_dim=8, z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[False]
    )
    return vae.encoder


def _svd_resnet(_: Any) -> nn.Module:
    from diffusers.models.resnet import SpatioTemporalResBlock

    block = SpatioTemporalResBlock(32, 64, temb_channels=16)
    return _Given(block, torch.randn(8, 16), torch.zeros(2, 4))


def _svd_attention(_: Any) -> nn.Module:
    from diffusers.models.transformers.transformer_temporal import TransformerSpatioTemporalModel

    block = TransformerSpatioTemporalModel(2, 16, in_channels=32, cross_attention_dim=16)
    return _Given(block, torch.randn(8, 1, 16), torch.zeros(2, 4))


BLOCKS: dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...]]] = {
    "segformer": (_segformer, (2, 3, 64, 64)),
    "pvt": (_pvt, (1, 3, 64, 64)),
    "pvt v2": (_pvt_v2, (1, 3, 64, 64)),
    "swin": (_swin, (2, 3, 32, 32)),
    "convnext": (_convnext, (2, 3, 32, 32)),
    "glpn": (_glpn, (2, 3, 64, 64)),
    "conformer": (_conformer, (2, 40, 32)),
    "sam": (_sam, (1, 3, 64, 64)),
    "rt detr": (_rt_detr, (2, 3, 64, 64)),
    "wan": (_wan, (2, 48, 32)),
    "wan vae": (_wan_vae, (1, 3, 4, 16, 16)),
    "svd resnet": (_svd_resnet, (8, 32, 8, 8)),
    "svd attention": (_svd_attention, (8, 32, 8, 8)),
}


class Block(nn.Module):
    """A block whose result is all its maps of features, in float32 or float64."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        make, self.shape = BLOCKS[name]
        self.inner = make(transformers).eval()  # no dropout
        for module in self.inner.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()
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
