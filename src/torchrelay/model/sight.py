"""What a position may attend to where a row holds several documents."""

import torch


def document_mask(documents: torch.Tensor) -> torch.Tensor:
    """True where a position sees another: not later, and of the same document.

    documents: int64 [samples, length], the number of each position's document in its row. Returns
    bool [samples, 1, length, length]. Every position sees at least itself.
    """
    length = documents.shape[1]
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return (same & causal).unsqueeze(1)
