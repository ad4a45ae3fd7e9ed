import pytest
import torch

from tests.unit.model.support import ODD, decoder_task
from torchrelay.data.batch import DataFacts
from torchrelay.model.decoder_task import DecoderTask
from torchrelay.model.presets import PRESETS, resolve_shape
from torchrelay.model.shape import default_feed_forward
from torchrelay.recipe.model_schema import DecoderSection

# Trainable parameters of the published models, as their makers' weights hold them.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
OURS = {
    "1m": (2_048, 1.0e6),
    "5m": (2_048, 5.0e6),
    "15m": (8_192, 15e6),
    "60m": (32_000, 60e6),
    "110m": (32_000, 110e6),
    "350m": (50_257, 350e6),
    "1b": (50_257, 1.0e9),
    "3b": (50_257, 3.0e9),
}


def facts(vocabulary: int) -> DataFacts:
    return DataFacts(vocabulary=vocabulary, sequence_length=64, num_labels=None, end_token=None)


@pytest.mark.parametrize(("preset", "total"), PUBLISHED.items())
def test_a_published_preset_counts_what_was_published(preset: str, total: int) -> None:
    assert resolve_shape(DecoderSection(preset=preset), facts(300)).num_parameters() == total


@pytest.mark.parametrize(("preset", "sizes"), OURS.items())
def test_a_preset_of_ours_has_about_the_size_of_its_name(preset: str, sizes: tuple[int, float]) -> None:
    vocabulary, total = sizes
    counted = resolve_shape(DecoderSection(preset=preset), facts(vocabulary)).num_parameters()
    assert counted == pytest.approx(total, rel=0.08)


def test_every_preset_has_a_known_size() -> None:
    assert set(PRESETS) == {*PUBLISHED, *OURS, "gpt2-nano"}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_closed_form_counts_the_module(preset: str) -> None:
    task = decoder_task(preset=preset, facts=facts(257))
    assert isinstance(task, DecoderTask)
    module = task.build(seed=1)
    assert all(p.device == torch.device("meta") for p in module.parameters())
    assert task.shape.num_parameters() == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("section", ODD)
def test_the_closed_form_counts_unusual_modules(section: dict) -> None:
    task = decoder_task(**section)
    assert isinstance(task, DecoderTask)
    assert task.shape.num_parameters() == sum(p.numel() for p in task.build(seed=1).parameters())


@pytest.mark.parametrize(("width", "inner"), [(4096, 10944), (768, 2048), (96, 256), (97, 288), (1, 32)])
def test_the_inner_size_of_llama_is_eight_thirds_rounded_up_to_32(width: int, inner: int) -> None:
    assert default_feed_forward("llama", width) == inner
    assert default_feed_forward("gpt2", width) == 4 * width
