"""The loss of next-token prediction: a sum in fp32 that holds no fp32 copy of large scores.

With a vocabulary of 128,000, a copy of the scores in fp32, their logarithms and their gradients
are what fills the memory. Here large scores are worked off a piece at a time, and the backward
pass makes the gradient anew from one number a row, in the type of the scores.
"""

from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from torchrelay.data.batch import IGNORE_LABEL

_PIECE: Final = {"cpu": 2**21}
"""Scores worked on at once; on a CPU, what its cache holds."""
_PIECE_ELSEWHERE: Final = 2**26


def sum_cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of -log softmax(scores)[label] over all labels but IGNORE_LABEL: a 0-dim fp32 tensor.

    scores: [..., classes] in any floating type. labels: int64 [...], classes or IGNORE_LABEL.
    """
    rows, targets = scores.flatten(0, -2), labels.flatten()
    piece = _PIECE.get(scores.device.type, _PIECE_ELSEWHERE)
    if rows.numel() <= piece:
        return F.cross_entropy(rows.float(), targets, ignore_index=IGNORE_LABEL, reduction="sum")
    height = max(1, piece // rows.shape[1])
    return cast(torch.Tensor, _PiecewiseCrossEntropy.apply(rows, targets, height))  # type: ignore[no-untyped-call]  # torch leaves Function.apply untyped


class _PiecewiseCrossEntropy(torch.autograd.Function):
    """rows [n, classes], targets [n], rows of a piece → the sum."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, targets: torch.Tensor, height: int) -> torch.Tensor:
        norms = torch.cat([piece.float().logsumexp(1) for piece in torch.split(rows, height)])
        picked = rows.gather(1, _indices(targets)).squeeze(1).float()
        ctx.save_for_backward(rows, targets, norms)
        ctx.height = height
        return (norms - picked).masked_fill(targets == IGNORE_LABEL, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rows, targets, norms = ctx.saved_tensors
        slopes = slope.expand(targets.shape).masked_fill(targets == IGNORE_LABEL, 0.0).unsqueeze(1)
        gradient = torch.empty_like(rows)
        pieces = (
            torch.split(t, ctx.height)
            for t in (rows, norms.unsqueeze(1), _indices(targets), slopes, gradient)
        )
        for row, norm, index, scale, out in zip(*pieces, strict=True):
            shares = torch.sub(row, norm).exp_().mul_(scale)
            out.copy_(shares.scatter_add_(1, index, -scale))
        return gradient, None, None


def _indices(targets: torch.Tensor) -> torch.Tensor:
    """Columns [n, 1]; an ignored row points at column 0 and counts nothing."""
    return targets.masked_fill(targets == IGNORE_LABEL, 0).unsqueeze(1)
