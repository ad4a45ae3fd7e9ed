import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.data.readings.support import Document, Tokens, document, epochs, located, section
from torchrelay.core.errors import DataError
from torchrelay.data.reading import (
    MOST_THREADS,
    check_split,
    choose_reading,
    count_samples,
    decode_threads,
    find_traits,
    make_order,
    may_mask,
    open_reading,
)
from torchrelay.data.readings.documents import Documents, LabelledDocuments
from torchrelay.data.readings.packed import BoundedWindows, PackedWindows
from torchrelay.data.readings.packs import PlannedPacks

SHARDS: Sequence[Sequence[Document]] = [
    [document(7 * n, 3 + 5 * n % 17) for n in range(9)],
    [document(n, 40) for n in range(5)],
]
PLAN = {"packs": [[[0, 1], [2]], [[4], [3, 2], [1], [0]]], "pack_length": 82}


@pytest.mark.parametrize(
    ("wanted", "dataset", "kind"),
    [
        ({}, {}, "packed"),
        ({}, PLAN, "packs"),
        ({"reading": "packed"}, PLAN, "packed"),
        ({"reading": "documents"}, PLAN, "documents"),
        ({"reading": "packs"}, PLAN, "packs"),
        ({"reading": "packed"}, {}, "packed"),
    ],
)
def test_auto_takes_what_the_dataset_is_made_for(wanted: Any, dataset: Any, kind: str) -> None:
    assert choose_reading(section(**wanted), Tokens(SHARDS, **dataset).content) == kind


def test_a_reading_that_does_not_fit_the_dataset_is_refused() -> None:
    tokens = Tokens(SHARDS).content
    samples = replace(tokens, kind="samples", tokenizer=None, token_dtype=None)
    assert choose_reading(section(), samples) == "samples"
    with pytest.raises(DataError, match="data.reading samples does not fit a dataset of tokens") as caught:
        choose_reading(section(reading="samples"), tokens)
    assert "packed, packs or documents" in caught.value.hint
    with pytest.raises(DataError, match="data.reading packed does not fit a dataset of samples"):
        choose_reading(section(reading="packed"), samples)
    with pytest.raises(DataError, match="data.reading packs needs a dataset with planned packs"):
        choose_reading(section(reading="packs"), tokens)


def test_samples_are_counted_from_the_manifest() -> None:
    content = Tokens(SHARDS, **PLAN).content
    windows = [(entry.tokens - 1) // 16 for entry in content.splits["train"]]
    assert count_samples(section(reading="packed"), content, "train") == windows
    assert count_samples(section(reading="documents"), content, "train") == [9, 5]
    assert count_samples(section(reading="packs"), content, "train") == [2, 4]
    assert count_samples(section(), content, "test") == []


@pytest.mark.parametrize(
    ("wanted", "dataset", "expected"),
    [
        ({}, {}, ("packed", 16, 16, True, None, False)),
        ({"document_bounds": True}, {}, ("packed", 16, None, False, None, True)),
        ({"epoch_end": "stop"}, {}, ("packed", 16, None, False, None, False)),
        ({}, PLAN, ("packs", None, None, False, None, True)),
        ({"reading": "documents"}, {}, ("documents", None, None, False, None, False)),
        ({"reading": "documents"}, {"labels": True}, ("documents", None, 1, False, 2, False)),
        (
            {"reading": "documents", "epoch_end": "stop"},
            {"labels": True},
            ("documents", None, None, False, 2, False),
        ),
    ],
)
def test_traits_promise_only_what_holds_for_all_samples(wanted: Any, dataset: Any, expected: Any) -> None:
    assert find_traits(section(**wanted), Tokens(SHARDS, **dataset).content) == expected


def test_only_epochs_that_stop_have_places_without_a_sample() -> None:
    assert may_mask(section(epoch_end="stop"))
    assert not may_mask(section())


@pytest.mark.parametrize(
    ("wanted", "dataset", "kind"),
    [
        ({}, {}, PackedWindows),
        ({"document_bounds": True}, {}, BoundedWindows),
        ({"sequence_length": 81}, PLAN, PlannedPacks),
        ({"reading": "documents", "sequence_length": 50}, {}, Documents),
        ({"reading": "documents", "sequence_length": 50}, {"labels": True}, LabelledDocuments),
    ],
)
def test_the_reading_asked_for_is_opened(wanted: Any, dataset: Any, kind: type) -> None:
    tokens = Tokens(SHARDS, **dataset)
    assert type(open_reading(section(**wanted), tokens.content, tokens.shards(), 1, training=True)) is kind


def open_documents(length: int, **changes: Any) -> tuple[Any, Tokens]:
    tokens = Tokens(SHARDS)
    wanted = section(reading="documents", sequence_length=length, **changes)
    return open_reading(wanted, tokens.content, tokens.shards(), 1, training=True), tokens


def test_documents_that_are_too_long_are_refused_with_their_number_and_the_longest() -> None:
    with pytest.raises(DataError) as caught:
        open_documents(17)
    lengths = [len(text) - 1 for documents in SHARDS for text in documents]
    longer = sum(length > 17 for length in lengths)
    assert caught.value.message == (
        f"documents longer than data.sequence_length 17: {longer}; the longest has {max(lengths)} tokens"
    )
    assert f"data.sequence_length: {max(lengths)}" in caught.value.hint
    open_documents(max(lengths))


def test_counting_reads_footers_only_of_shards_with_a_long_document() -> None:
    tokens = Tokens([*SHARDS, *SHARDS[:1]])
    with pytest.raises(DataError, match="documents longer than data.sequence_length 39: 5;"):
        open_reading(
            section(reading="documents", sequence_length=39),
            tokens.content,
            tokens.shards(),
            1,
            training=True,
        )
    assert (tokens.source.tails, tokens.source.opened) == (["shards/1.tok"], [])


def test_rows_of_documents_are_no_longer_than_the_longest() -> None:
    where = located((0, 0))
    for length, width in ((1000, 40), (40, 40)):
        reading, _ = open_documents(length)
        assert reading.read(where, epochs(where)).arrays["tokens"].shape == (1, width)
    reading, _ = open_documents(2, long_documents="truncate")
    assert reading.read(where, epochs(where)).arrays["labels"].tolist() == [SHARDS[0][0][1:3]]


def test_a_budget_holds_at_least_the_longest_document() -> None:
    with pytest.raises(DataError, match="data.batch_tokens 39 is less than the longest document takes, 40"):
        open_documents(1000, pad="longest", batch_tokens=39)
    open_documents(1000, pad="longest", batch_tokens=40)
    open_documents(8, pad="longest", long_documents="truncate", batch_tokens=8)


@pytest.mark.parametrize(("reading", "dataset"), [("documents", {}), ("packs", PLAN)])
def test_a_document_larger_than_a_shard_cannot_be_one_sample(reading: Any, dataset: Any) -> None:
    manifest = Tokens(SHARDS, continues=True, **dataset).manifest
    with pytest.raises(DataError, match="has a document that is larger than a shard"):
        check_split(section(reading=reading, sequence_length=100), manifest, "train")
    check_split(section(reading="packed"), manifest, "train")


def test_packs_that_are_larger_than_a_row_are_refused_with_the_figures() -> None:
    manifest = Tokens(SHARDS, **PLAN).manifest
    with pytest.raises(DataError, match="packs of the dataset hold up to 82 tokens") as caught:
        check_split(section(sequence_length=80), manifest, "train")
    assert caught.value.hint == "set data.sequence_length: 81"
    check_split(section(sequence_length=81), manifest, "train")


def test_a_sequence_longer_than_any_shard_is_refused_with_the_figures() -> None:
    manifest = Tokens(SHARDS).manifest
    tokens = manifest.totals("train").tokens
    most = max(entry.tokens for entry in manifest.splits["train"])
    with pytest.raises(DataError) as caught:
        check_split(section(sequence_length=600), manifest, "train")
    assert f"has {tokens:,} tokens, {most:,} in its largest shard" in caught.value.message
    assert "data.sequence_length 600 needs 601" in caught.value.message
    assert f"at most {most - 1}" in caught.value.hint
    check_split(section(sequence_length=most - 1), manifest, "train")


def test_validation_is_in_stored_order_whatever_the_recipe_says() -> None:
    manifest = Tokens(SHARDS).manifest
    order = make_order(section(shuffle=True), manifest, "validation", 1)
    assert order.samples(np.arange(order.num_samples)).sample_ids.tolist() == list(range(order.num_samples))
    with pytest.raises(DataError, match="there is no split 'valid'"):
        make_order(section(), manifest, "valid", 1)


def test_workers_decode_in_one_thread_and_validation_in_several() -> None:
    assert decode_threads(section(workers=2), training=True) == 1
    several = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    assert decode_threads(section(), training=True) == several
    assert decode_threads(section(workers=2), training=False) == several
