"""Boxes of torchvision: corners in order, within the image, each in a batch entry that exists."""

from __future__ import annotations

import torch

from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.registry import recipe

__all__: list[str] = []

_IMAGE = 1024
"""Side of the image for boxes whose image is not an argument [pixels]."""


def _corners(boxes: InputTensor, width: int, height: int) -> torch.Tensor:
    """Returns boxes [n, 4] as (x1, y1, x2, y2), each side between 1 and half of the image's."""
    count = boxes.dims[0]
    sides = []
    for axis, extent in enumerate((width, height)):
        start = boxes.random_integers([count], 0, max(extent // 2, 1), draw=1 + 2 * axis)
        length = boxes.random_integers([count], 1, max(extent // 2, 1) + 1, draw=2 + 2 * axis)
        sides.append((start, start + length))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], dim=1)


@recipe("torchvision::nms")
def nms(call: RecipeCall) -> str:
    """Boxes lie anywhere in an image of 1024 by 1024; scores are positive."""
    boxes = call.tensor("dets")
    if boxes.dims[1:] != (4,):
        raise RecipeError(f"boxes are [n, 4], recorded are {boxes.dims}")
    boxes.write(_corners(boxes, _IMAGE, _IMAGE).to(boxes.dtype))
    call.fill_floats(0.0, 1.0, "scores")
    return f"boxes uniform in {_IMAGE} x {_IMAGE} pixels, scores uniform in [0, 1)"


@recipe(
    "torchvision::roi_align",
    "torchvision::roi_pool",
    "torchvision::ps_roi_align",
    "torchvision::ps_roi_pool",
)
def regions(call: RecipeCall) -> str:
    """Regions lie in the image that the feature map was scaled down from, in any batch entry."""
    rois = call.tensor("rois")
    if rois.dims[1:] != (5,):
        raise RecipeError(f"regions are [n, 5], recorded are {rois.dims}")
    batch, _, height, width = call.tensor("input").dims
    scale = call.value("spatial_scale")
    image = (max(2, round(width / scale)), max(2, round(height / scale)))
    entry = rois.random_integers([rois.dims[0], 1], 0, batch, draw=5)
    rois.write(torch.cat([entry, _corners(rois, *image)], dim=1).to(rois.dtype))
    return f"regions uniform in {image[0]} x {image[1]} pixels of {batch} images"
