from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchrelay.core.errors import ModelError
from torchrelay.model.probe import demand_apart, demand_causal


class Sums(nn.Module):
    """Score of a position: the sum of the tokens it sees."""

    def __init__(self, *, causal: bool, apart: bool) -> None:
        super().__init__()
        self.causal, self.apart = causal, apart

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> SimpleNamespace:
        length = input_ids.shape[1]
        sees = torch.ones(length, length)
        if self.causal:
            sees = sees.tril()
        if self.apart and position_ids is not None:
            document = (position_ids[0] == 0).cumsum(0)
            sees = sees * (document[:, None] == document[None, :])
        return SimpleNamespace(logits=(input_ids.float() @ sees.T).unsqueeze(2))


class Forgetful(Sums):
    """Takes no positions."""

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:  # type: ignore[override]  # that is the fault
        return super().forward(input_ids)


def test_a_model_that_sees_later_tokens_is_refused() -> None:
    demand_causal(Sums(causal=True, apart=False))
    with pytest.raises(ModelError, match="Sums sees the tokens that it is to predict"):
        demand_causal(Sums(causal=False, apart=False))


def test_a_model_that_sees_other_documents_is_refused() -> None:
    demand_apart(Sums(causal=True, apart=True))
    with pytest.raises(ModelError, match="Sums does not keep the documents of a row apart") as caught:
        demand_apart(Sums(causal=True, apart=False))
    assert "data.document_bounds: false" in caught.value.hint
    with pytest.raises(ModelError, match="Forgetful does not keep"):
        demand_apart(Forgetful(causal=True, apart=True))


def test_the_model_is_in_training_afterwards() -> None:
    module = Sums(causal=True, apart=True)
    for ask in (demand_causal, demand_apart):
        ask(module)
        assert module.training
