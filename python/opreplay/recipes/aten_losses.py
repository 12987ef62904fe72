"""Targets of losses: classes that exist, lengths that fit."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.lengths import split
from opreplay.recipes.registry import recipe

__all__: list[str] = []


def _classes(call: RecipeCall, name: str) -> int:
    """Returns the number of classes: the second dimension of a batch, the first of one sample."""
    dims = call.tensor(name).dims
    return dims[1] if len(dims) > 1 else (dims[0] if dims else 1)


@recipe(
    "aten::nll_loss",
    "aten::nll_loss_nd",
    "aten::nll_loss_forward",
    "aten::nll_loss_backward",
    "aten::nll_loss2d",
    "aten::nll_loss2d_forward",
    "aten::nll_loss2d_backward",
    "aten::cross_entropy_loss",
    "aten::multi_margin_loss",
    "aten::multi_margin_loss_backward",
)
def class_targets(call: RecipeCall) -> str | None:
    """Targets are classes, uniform; the total weight is the number of targets."""
    target = call.tensor("target")
    if target.is_real:  # cross_entropy_loss also takes a probability for each class.
        call.fill_floats(0.0, 1.0, "target")
        return "target holds probabilities uniform in [0, 1)"
    classes = _classes(call, "self")
    target.fill_integers(0, classes)
    call.fill_floats(0.5, 1.5, "weight")
    if call.has_tensor("total_weight"):
        total = call.tensor("total_weight")
        total.write(total.unfilled.new_full(total.dims, target.numel))
    return f"target uniform in [0, {classes})"


@recipe(
    "aten::multilabel_margin_loss",
    "aten::multilabel_margin_loss_forward",
    "aten::multilabel_margin_loss_backward",
)
def multilabel_targets(call: RecipeCall) -> str:
    """Labels of a sample are distinct classes."""
    target = call.tensor("target")
    classes = call.tensor("self").dims[-1] if call.tensor("self").dims else 1
    target.write_distinct(classes, over=[-1])
    call.fill_floats(0.0, 1.0, "is_target")
    return f"labels distinct in [0, {classes})"


@recipe(
    "aten::ctc_loss",
    "aten::_ctc_loss",
    "aten::_ctc_loss_backward",
    "aten::_cudnn_ctc_loss",
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_miopen_ctc_loss",
    "aten::miopen_ctc_loss",
)
def ctc_loss(call: RecipeCall) -> str:
    """Targets are any class but the blank; lengths that are tensors use all that there is."""
    log_probs, targets = call.tensor("log_probs"), call.tensor("targets")
    classes, blank = log_probs.dims[-1], call.value("blank")
    low, high = (1, classes) if blank == 0 else (0, blank)
    targets.fill_integers(low, high)
    for lengths in call.present("input_lengths"):
        lengths.fill_integers(log_probs.dims[0], log_probs.dims[0] + 1)
    for lengths in call.present("target_lengths"):
        if len(targets.dims) == 2:
            lengths.fill_integers(targets.dims[1], targets.dims[1] + 1)
        else:
            lengths.write_list(split(targets.numel, lengths.numel))
    return f"targets uniform in [{low}, {high})"
