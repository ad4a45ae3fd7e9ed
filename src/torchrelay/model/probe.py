"""Questions to a model of others before it is trained: does it see what it must not?"""

import torch
from torch import nn

from torchrelay.core.errors import ModelError


def demand_causal(module: nn.Module) -> None:
    """ModelError when a position sees later ones.

    An encoder such as BERT can be asked for causal-lm, and would learn to copy the answer.
    """
    module.eval()
    with torch.no_grad():
        scores = module(input_ids=torch.tensor([[0, 0], [0, 1]])).logits[:, 0]
    module.train()
    if not _are_equal(scores[0], scores[1]):
        raise ModelError(
            f"{type(module).__name__} sees the tokens that it is to predict",
            hint="choose a causal model, or set is_decoder: true in its configuration",
        )


def demand_apart(module: nn.Module) -> None:
    """ModelError unless positions that start anew hide the document before: not every model knows that."""
    rows, positions = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 1]]), torch.tensor([[0, 1, 0, 1]])
    module.eval()
    try:
        with torch.no_grad():
            scores = module(input_ids=rows, position_ids=positions.expand(2, -1)).logits[:, 2:]
            alone = module(input_ids=rows[:1, 2:]).logits[0]
        are_apart = _are_equal(scores[0], alone) and _are_equal(scores[1], alone)
    except TypeError:  # it takes no positions
        are_apart = False
    module.train()
    if not are_apart:
        raise ModelError(
            f"{type(module).__name__} does not keep the documents of a row apart",
            hint="choose another model, or data.document_bounds: false, or data.reading: documents",
        )


def _are_equal(scores: torch.Tensor, others: torch.Tensor) -> bool:
    return torch.allclose(scores, others, rtol=1e-3, atol=1e-4)
