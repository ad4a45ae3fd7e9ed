from typing import Any

import pytest
import torch

from torchrelay.core.errors import RecipeError
from torchrelay.model.generate import Sampling, generate

VOCABULARY = 7


def successor(tokens: torch.Tensor) -> torch.Tensor:
    """A model that is sure of last + 1, then last + 2, and so on."""
    ranks = (torch.arange(VOCABULARY) - tokens[..., None] - 1) % VOCABULARY
    return -2.0 * ranks


def how(seed: int = 1, **changes: Any) -> Sampling:
    sampling: dict[str, Any] = {
        "num_tokens": 5,
        "temperature": 1.0,
        "top_k": None,
        "generator": torch.Generator().manual_seed(seed),
        "context": 4,
        "stop_token": None,
        **changes,
    }
    return Sampling(**sampling)


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert generate(successor, [2, 3], **how(temperature=0.0)) == [2, 3, 4, 5, 6, 0, 1]


def test_the_same_generator_state_writes_the_same() -> None:
    first = generate(successor, [0], **how(num_tokens=30))
    assert generate(successor, [0], **how(num_tokens=30)) == first
    assert generate(successor, [0], **how(seed=2, num_tokens=30)) != first


def test_top_k_draws_only_among_the_likeliest() -> None:
    text = generate(successor, [0], **how(num_tokens=200, temperature=5.0, top_k=2))
    steps = {(b - a) % VOCABULARY for a, b in zip(text, text[1:], strict=False)}
    assert steps == {1, 2}
    everything = generate(successor, [0], **how(num_tokens=200, temperature=5.0, top_k=99))
    assert len({(b - a) % VOCABULARY for a, b in zip(everything, everything[1:], strict=False)}) == VOCABULARY


def test_tokens_are_drawn_by_their_shares() -> None:
    text = generate(successor, [0], **how(num_tokens=1500, temperature=2.0))
    expected = torch.softmax(-1.0 * torch.arange(VOCABULARY), 0)
    steps = torch.tensor([(b - a - 1) % VOCABULARY for a, b in zip(text, text[1:], strict=False)])
    shares = torch.bincount(steps, minlength=VOCABULARY) / len(steps)
    torch.testing.assert_close(shares, expected, atol=0.04, rtol=0)


def test_the_stop_token_ends_the_text_and_is_left_out() -> None:
    assert generate(successor, [2], **how(temperature=0.0, stop_token=5)) == [2, 3, 4]


def test_the_model_sees_at_most_its_context() -> None:
    seen: list[list[int]] = []

    def spy(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tokens[0].tolist())
        return successor(tokens)

    generate(spy, [1, 2, 3], **how(temperature=0.0, num_tokens=3))
    assert seen == [[1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


def test_no_graph_is_built() -> None:
    weight = torch.ones((), requires_grad=True)
    grads: list[bool] = []

    def model(tokens: torch.Tensor) -> torch.Tensor:
        scores = successor(tokens) * weight
        grads.append(scores.requires_grad)
        return scores

    generate(model, [1], **how(num_tokens=1))
    assert grads == [False]


def test_without_a_token_to_start_from_it_is_refused() -> None:
    with pytest.raises(RecipeError, match="no token to start from"):
        generate(successor, [], **how())
