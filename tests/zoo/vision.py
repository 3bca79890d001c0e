"""torchvision's models: of their own sizes where these are small, else built smaller.

`torchvision.models` comes from `benchmarks.vision` when a model is built.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from benchmarks.vision import vision_models
from tests.zoo.entries import Drawer, Entry
from tests.zoo.models import CLASSES

__all__ = ["VISION"]


def images(side: int) -> Drawer:
    """Return a drawer of square images."""
    return lambda draw: draw.reals(3, side, side)


def video(frames: int, side: int) -> Drawer:
    """Return a drawer of films."""
    return lambda draw: draw.reals(3, frames, side, side)


def _named(
    name: str,
    side: int = 64,
    *,
    classes: int = CLASSES,
    large: bool = False,
    **options: Any,
) -> Entry:
    def build() -> nn.Module:
        made: nn.Module = getattr(vision_models(), name)(num_classes=classes, **options)
        return made

    return Entry(build, images(side), large)


def _segmentation(name: str, *, large: bool = False, **options: Any) -> Entry:
    def build() -> nn.Module:
        made: nn.Module = getattr(vision_models().segmentation, name)(
            weights=None, weights_backbone=None, num_classes=5, **options
        )
        return made

    return Entry(build, images(64), large)


def _video(name: str, frames: int, side: int, *, large: bool = False) -> Entry:
    def build() -> nn.Module:
        made: nn.Module = getattr(vision_models().video, name)(num_classes=CLASSES)
        return made

    return Entry(build, video(frames, side), large)


def _own(
    build: Callable[[ModuleType], nn.Module], draw: Drawer, *, large: bool = False
) -> Entry:
    return Entry(partial(_build_own, build), draw, large)


def _build_own(build: Callable[[ModuleType], nn.Module]) -> nn.Module:
    return build(vision_models())


def small_vit(vision: ModuleType) -> nn.Module:
    """Return a vision Transformer of two layers."""
    made: nn.Module = vision.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=48,
        num_classes=CLASSES,
    )
    return made


def small_swin(vision: ModuleType, version: int) -> nn.Module:
    """Return a Swin Transformer of two stages."""
    from torchvision.models import swin_transformer as swin

    options = (
        {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
        if version == 2
        else {}
    )
    return swin.SwinTransformer(
        patch_size=[2, 2],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=CLASSES,
        **options,
    )


def small_maxvit(vision: ModuleType) -> nn.Module:
    """Return a MaxViT of two blocks."""
    made: nn.Module = vision.MaxVit(
        input_size=(32, 32),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.1,
        num_classes=CLASSES,
    )
    return made


def small_convnext(vision: ModuleType) -> nn.Module:
    """Return a ConvNeXt of two stages."""
    from torchvision.models import convnext

    return convnext.ConvNeXt(
        [convnext.CNBlockConfig(16, 32, 2), convnext.CNBlockConfig(32, None, 2)],
        stochastic_depth_prob=0.1,
        num_classes=CLASSES,
    )


def small_efficientnet_v2(vision: ModuleType) -> nn.Module:
    """Return an EfficientNetV2: fused blocks, then blocks with excitation."""
    from torchvision.models import efficientnet as e

    return e.EfficientNet(
        [
            e.FusedMBConvConfig(1, 3, 1, 16, 16, 1),
            e.FusedMBConvConfig(4, 3, 2, 16, 24, 2),
            e.MBConvConfig(4, 3, 2, 24, 32, 2),
        ],
        dropout=0.2,
        num_classes=CLASSES,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
        last_channel=64,
    )


def small_mvit(vision: ModuleType) -> nn.Module:
    """Return a multiscale vision Transformer for video, of two blocks."""
    from torchvision.models.video import mvit

    def block(heads: int, before: int, after: int, step: int) -> mvit.MSBlockConfig:
        return mvit.MSBlockConfig(
            num_heads=heads,
            input_channels=before,
            output_channels=after,
            kernel_q=[3, 3, 3],
            kernel_kv=[3, 3, 3],
            stride_q=[1, step, step],
            stride_kv=[1, 2, 2],
        )

    return mvit.MViT(
        spatial_size=(32, 32),
        temporal_size=4,
        block_setting=[block(1, 16, 16, 1), block(2, 16, 32, 2)],
        residual_pool=False,
        residual_with_cls_embed=True,
        rel_pos_embed=False,
        proj_after_attn=False,
        stochastic_depth_prob=0.1,
        num_classes=CLASSES,
    )


def small_regnet(vision: ModuleType) -> nn.Module:
    """Return a RegNet with grouped convolutions."""
    from torchvision.models.regnet import BlockParams

    made: nn.Module = vision.RegNet(
        BlockParams([1, 2], [16, 32], [8, 8], [1.0, 1.0], [2, 2], 0.25),
        num_classes=CLASSES,
        stem_width=16,
    )
    return made


def small_resnet(vision: ModuleType, **options: Any) -> nn.Module:
    """Return a residual network of four bottlenecks; ResNeXt with options."""
    from torchvision.models.resnet import Bottleneck

    made: nn.Module = vision.ResNet(
        Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, **options
    )
    return made


VISION: Mapping[str, Entry] = {
    "resnet18": _named("resnet18"),
    "resnet50": _named("resnet50", large=True),
    "vgg16_bn": _named("vgg16_bn", 32, large=True),
    "mobilenet_v2": _named("mobilenet_v2"),
    "mobilenet_v3_small": _named("mobilenet_v3_small", large=True),
    "efficientnet_b0": _named("efficientnet_b0", large=True),
    "densenet121": _named("densenet121", large=True),
    "convnext_tiny": _named("convnext_tiny", large=True),
    "regnet_y_400mf": _named("regnet_y_400mf", large=True),
    "shufflenet_v2_x1_0": _named("shufflenet_v2_x1_0", large=True),
    "googlenet": _named("googlenet", aux_logits=False, init_weights=False, large=True),
    "googlenet_auxiliary": _named("googlenet", init_weights=False, large=True),
    "inception_v3_auxiliary": _named(
        "inception_v3", 299, init_weights=False, large=True
    ),
    "squeezenet1_1": _named("squeezenet1_1", large=True),
    "vit_b_16": _named("vit_b_16", image_size=64, large=True),
    "swin_t": _named("swin_t", large=True),
    "swin_v2_t": _named("swin_v2_t", large=True),
    "maxvit_t": _named("maxvit_t", 224, large=True),
    "mnasnet0_5": _named("mnasnet0_5", large=True),
    "alexnet": _named("alexnet", large=True),
    "small_bottlenecks": _own(small_resnet, images(32)),
    "small_resnext": _own(
        partial(small_resnet, groups=4, width_per_group=8), images(32)
    ),
    "small_tv_vit": _own(small_vit, images(32)),
    "small_swin": _own(partial(small_swin, version=1), images(32), large=True),
    "small_swin_v2": _own(partial(small_swin, version=2), images(32), large=True),
    "small_maxvit": _own(small_maxvit, images(32), large=True),
    "small_convnext": _own(small_convnext, images(32)),
    "small_efficientnet_v2": _own(small_efficientnet_v2, images(32), large=True),
    "small_regnet": _own(small_regnet, images(32), large=True),
    "small_mvit": _own(small_mvit, video(4, 32), large=True),
    "lraspp_mobilenet_v3": _segmentation("lraspp_mobilenet_v3_large", large=True),
    "deeplabv3_mobilenet_v3": _segmentation(
        "deeplabv3_mobilenet_v3_large", aux_loss=True, large=True
    ),
    "fcn_resnet50": _segmentation("fcn_resnet50", aux_loss=True, large=True),
    "r3d_18": _video("r3d_18", 8, 32, large=True),
    "r2plus1d_18": _video("r2plus1d_18", 8, 32, large=True),
    "mc3_18": _video("mc3_18", 8, 32, large=True),
}
