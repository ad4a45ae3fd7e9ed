import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.model.support import DOCUMENTS, SMALL, TOKENS
from torchrelay.core.errors import RecipeError
from torchrelay.data.batch import DataFacts
from torchrelay.model.presets import PRESETS, resolve_shape
from torchrelay.recipe.model_schema import DecoderSection


def resolve(facts: DataFacts = TOKENS, **section: Any):
    return resolve_shape(DecoderSection(**section), facts)


def refusal(facts: DataFacts = TOKENS, **section: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        resolve(facts, **section)
    return str(caught.value)


def test_keys_of_the_recipe_override_the_preset() -> None:
    shape = resolve(preset="llama3-8b", layers=3, tied=True, rope_theta=1e4, norm_eps=1e-6, dropout=0.1)
    assert (shape.layers, shape.tied, shape.rope_theta, shape.norm_eps) == (3, True, 1e4, 1e-6)
    assert (shape.width, shape.kv_heads, shape.feed_forward, shape.dropout) == (4096, 8, 14_336, 0.1)


def test_small_presets_take_vocabulary_and_context_from_the_dataset() -> None:
    shape = resolve(preset="1m")
    assert (shape.vocabulary, shape.context) == (65, 16)


def test_published_presets_keep_their_vocabulary_and_context() -> None:
    shape = resolve(preset="gpt2")
    assert (shape.vocabulary, shape.context, shape.bias, shape.gelu) == (50_257, 1024, True, "tanh")


def test_gpt2_nano_is_nano_gpts_setting_for_a_cpu() -> None:
    shape = resolve(preset="gpt2-nano")
    assert (shape.layers, shape.heads, shape.width, shape.feed_forward) == (4, 4, 128, 512)
    assert (shape.context, shape.vocabulary, shape.bias, shape.gelu) == (64, 65, False, "exact")


def test_without_a_preset_the_sizes_are_enough() -> None:
    shape = resolve(**SMALL)
    assert (shape.architecture, shape.kv_heads, shape.feed_forward) == ("llama", 4, 96)
    assert resolve(architecture="gpt2", **SMALL).bias


def test_a_wider_preset_gets_the_inner_size_of_its_width() -> None:
    assert resolve(preset="1m", width=256).feed_forward == 704


def test_an_unknown_preset_is_answered_with_the_nearest_and_all_names() -> None:
    text = refusal(preset="lama3-8b")
    assert "model.decoder.preset: there is no preset 'lama3-8b'; did you mean 'llama3-8b'?" in text
    assert all(name in text for name in PRESETS)
    assert "1 problem" in text


def test_all_problems_come_in_one_error() -> None:
    text = refusal(layers=2, width=128, heads=5, kv_heads=3, bias=True, vocabulary=10, context=8)
    assert "5 problems" in text
    assert "model.decoder.heads: 5 does not divide width 128 (use one of 1, 2, 4, 8, 16, 32, 64)" in text
    assert "model.decoder.kv_heads: 3 does not divide heads 5 (use one of 1, 5)" in text
    assert "model.decoder.bias" in text
    assert "model.decoder.vocabulary: 10 is smaller than the dataset's 65 token ids (use 65 or more)" in text
    assert "model.decoder.context: 8 is shorter than data.sequence_length 16" in text


def test_each_missing_size_is_named() -> None:
    text = refusal(width=64)
    assert "model.decoder.layers: is missing" in text
    assert "model.decoder.heads: is missing" in text
    assert "model.decoder.width" not in text


def test_rotary_positions_need_heads_of_even_size() -> None:
    text = refusal(layers=1, width=30, heads=2)
    assert "model.decoder.heads: 2 heads of width 30 have the odd size 15" in text
    assert "use one of 1, 3, 5, 15" in text
    assert resolve(architecture="gpt2", layers=1, width=30, heads=2).head_size == 15


def test_an_odd_width_has_no_heads_for_rotary_positions() -> None:
    assert "make width even" in refusal(layers=1, width=15, heads=3)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"preset": "gpt2", "rope_theta": 1e4}, "model.decoder.rope_theta"),
        ({"preset": "gpt2-nano", "kv_heads": 3}, "model.decoder.kv_heads"),
        ({"preset": "1m", "bias": False}, "model.decoder.bias"),
        ({"preset": "1m", "architecture": "gpt2"}, "model.decoder.architecture"),
        ({"preset": "gpt2", "vocabulary": 64}, "model.decoder.vocabulary"),
        ({"preset": "gpt2-nano", "context": 15}, "model.decoder.context"),
    ],
)
def test_a_key_that_does_not_go_with_the_preset_is_the_one_problem(section: dict, path: str) -> None:
    text = refusal(**section)
    assert path in text
    assert "1 problem:" in text


def test_data_without_tokens_is_refused() -> None:
    text = refusal(
        DataFacts(vocabulary=None, sequence_length=None, num_labels=None, end_token=None), preset="1m"
    )
    assert "model.decoder: learns from tokens, and the data has none (use model.python)" in text


def test_documents_with_classes_are_refused() -> None:
    text = refusal(DOCUMENTS, preset="1m")
    assert "model.decoder: predicts tokens, but the documents carry one of 5 classes" in text


@given(
    width=st.integers(1, 96),
    heads=st.integers(1, 12),
    kv_heads=st.none() | st.integers(1, 12),
    architecture=st.sampled_from(["llama", "gpt2"]),
    vocabulary=st.none() | st.integers(1, 200),
)
def test_a_shape_is_either_refused_or_consistent(width, heads, kv_heads, architecture, vocabulary) -> None:
    section = {"layers": 1, "width": width, "heads": heads, "kv_heads": kv_heads, "vocabulary": vocabulary}
    try:
        shape = resolve(architecture=architecture, **section)
    except RecipeError as error:
        assert "problem" in error.message
        return
    assert shape.width == shape.heads * shape.head_size
    assert shape.heads % shape.kv_heads == 0
    assert shape.vocabulary >= 65
    assert architecture == "gpt2" or shape.head_size % 2 == 0


def test_presets_are_known_without_torch() -> None:
    program = "import sys, torchrelay.model.presets as p; assert p.PRESETS; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
