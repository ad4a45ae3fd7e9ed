"""Let a model write: one token after another, from the scores of the last position.

Every token reads the whole text again; nothing is kept between tokens. Good for a look at a model
in training, not for serving one.
"""

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import torch

from torchrelay.core.errors import RecipeError


class Sampling(TypedDict):
    """How the next token is chosen, and when to end."""

    num_tokens: int
    """Tokens to add at most, 0 or more."""
    temperature: float
    """0 takes the likeliest token; above, the scores are divided by it before drawing."""
    top_k: int | None
    """Draw among this many likeliest tokens, 1 or more; None: among all."""
    generator: torch.Generator
    """On the CPU; the same state draws the same tokens."""
    context: int
    """Longest text the model reads; of a longer one it sees the end."""
    stop_token: int | None
    """Ends the text when it is drawn, and is left out; None: never."""


def generate(
    task_logits: Callable[[torch.Tensor], torch.Tensor], tokens: Sequence[int], **how: Unpack[Sampling]
) -> list[int]:
    """`tokens` and what the model adds to them.

    task_logits: int64 [1, length] on the CPU to scores [1, length, vocabulary] on any device.
    Raises RecipeError when there is no token to start from. Builds no graph.
    """
    text = list(tokens)
    if not text:
        raise RecipeError("there is no token to start from", hint="give a prompt")
    with torch.no_grad():
        for _ in range(how["num_tokens"]):
            scores = task_logits(torch.tensor([text[-how["context"] :]]))[0, -1].float().cpu()
            token = _choose(scores, how)
            if token == how["stop_token"]:
                break
            text.append(token)
    return text


def _choose(scores: torch.Tensor, how: Sampling) -> int:
    if how["temperature"] == 0:
        return int(scores.argmax())
    top_k = how["top_k"]
    best, ids = scores.topk(min(top_k, scores.numel())) if top_k else (scores, None)
    shares = (best / how["temperature"]).softmax(0)
    place = int(torch.multinomial(shares, 1, generator=how["generator"]))
    return place if ids is None else int(ids[place])
