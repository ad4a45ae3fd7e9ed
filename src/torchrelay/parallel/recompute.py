"""Recompute: a block's activations are dropped after forward and computed again in backward."""

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def apply_recompute(blocks: Sequence[nn.Module]) -> None:
    """Make every block recompute. In place; parameter names do not change.

    Replaces `forward` rather than wrapping the module, so that hooks of sharding stay outside and
    checkpoints keep their names. The generators' state is restored, so dropout repeats itself.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
