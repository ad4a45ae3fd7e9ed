from typing import Any

import pytest
import torch

from tests.unit.model.support import ODD, SMALL, decoder_task, shake, with_weights
from tests.unit.model.test_task import TINY_LLAMA
from torchrelay.data.batch import IGNORE_LABEL, DataFacts
from torchrelay.model.huggingface import build_huggingface_task
from torchrelay.model.sight import document_mask
from torchrelay.model.task import Task
from torchrelay.parallel.recompute import apply_recompute
from torchrelay.recipe.model_schema import HuggingFaceSection, ModelSection

LENGTHS = [[5, 1, 6, 2], [14], [1, 1, 1, 9, 1]]
"""Documents of each row, in predicted tokens; the rest of the row is padding."""
BOUNDED = DataFacts(vocabulary=65, sequence_length=16, num_labels=None, end_token=3, has_bounds=True)


def test_a_position_sees_itself_and_what_came_before_in_its_document() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 7]])
    mask = document_mask(documents)
    assert mask.shape == (2, 1, 5, 5)
    for row in range(2):
        for place in range(5):
            for other in range(5):
                sees = other <= place and documents[row, other] == documents[row, place]
                assert mask[row, 0, place, other] == sees


def documents_and_packs() -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Documents as batches of one, and the same in rows."""
    generator = torch.Generator().manual_seed(3)
    alone, shape = [], (len(LENGTHS), 16)
    pack = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "positions")}
    pack |= {"labels": torch.full(shape, IGNORE_LABEL), "documents": torch.full(shape, 99)}
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for number, length in enumerate([*lengths, 16 - sum(lengths)]):
            at = slice(start, start + length)
            start += length
            pack["positions"][row, at] = torch.arange(length)
            if number == len(lengths):
                continue
            text = torch.randint(0, 65, (length + 1,), generator=generator)
            alone.append({"tokens": text[None, :-1], "labels": text[None, 1:]})
            pack["tokens"][row, at], pack["labels"][row, at] = text[:-1], text[1:]
            pack["documents"][row, at] = number
    return alone, pack


def huggingface(**config: Any) -> Task:
    section = HuggingFaceSection(config={**TINY_LLAMA, **config})
    return build_huggingface_task(ModelSection(huggingface=section), BOUNDED)


TINY_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 65,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}


def tasks() -> dict[str, Task]:
    found: dict[str, Task] = {
        "llama": decoder_task(**SMALL),
        "gpt2": decoder_task(architecture="gpt2", **SMALL),
    }
    found |= {f"odd-{n}": decoder_task(**odd) for n, odd in enumerate(ODD)}
    found["transformers llama"] = huggingface()
    found["transformers llama, eager"] = huggingface(_attn_implementation="eager")
    section = HuggingFaceSection(config=TINY_GPT2)
    found["transformers gpt2"] = build_huggingface_task(ModelSection(huggingface=section), BOUNDED)
    return found


@pytest.mark.parametrize("name", list(tasks()))
def test_the_loss_of_a_pack_is_that_of_its_documents_alone(name: str) -> None:
    task = tasks()[name]
    module = with_weights(task)
    shake(module)
    module.eval()
    alone, pack = documents_and_packs()
    whole = task.loss(module, pack)
    parts = [task.loss(module, document) for document in alone]
    assert float(whole.detach()) == pytest.approx(float(sum(parts).detach()), rel=1e-5)
    whole.backward()
    packed = {key: p.grad.clone() for key, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    sum(parts).backward()  # type: ignore[union-attr]  # there are parts
    for key, parameter in module.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(packed[key], parameter.grad, rtol=1e-3, atol=1e-5)


def test_one_document_a_row_is_what_it_was_without_bounds() -> None:
    task = decoder_task(**SMALL)
    module = with_weights(task).eval()
    shake(module)
    tokens = torch.randint(0, 65, (3, 16), generator=torch.Generator().manual_seed(1))
    batch = {"tokens": tokens, "labels": tokens.roll(-1, 1)}
    bounds = {"positions": torch.arange(16).expand(3, -1), "documents": torch.zeros(3, 16, dtype=torch.int64)}
    torch.testing.assert_close(task.loss(module, batch), task.loss(module, batch | bounds))


def test_blocks_can_be_recomputed_with_bounds() -> None:
    losses = []
    for recompute in (False, True):
        task = decoder_task(**SMALL)
        module = with_weights(task)
        if recompute:
            apply_recompute(task.blocks(module))
        loss = task.loss(module, documents_and_packs()[1])
        loss.backward()
        losses.append(
            (float(loss.detach()), [p.grad.norm().item() for p in module.parameters() if p.grad is not None])
        )
    assert losses[0] == losses[1]
