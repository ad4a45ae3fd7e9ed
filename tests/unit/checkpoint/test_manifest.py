import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint.support import manifest, origin, position
from torchrelay.checkpoint.manifest import (
    Chunk,
    Commit,
    Manifest,
    Part,
    Progress,
    SavedTensor,
    check_record,
    choose_deletions,
    commit_of,
    parse_name,
)
from torchrelay.core.errors import DamagedError

counts = st.integers(min_value=0, max_value=2**62)
names = st.text(min_size=1, max_size=20)
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
chunks = st.builds(
    Chunk, offsets=shapes, sizes=shapes, file=names, start=counts, num_bytes=counts, xxh3=st.text(max_size=32)
)
tensors = st.builds(
    SavedTensor,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    shape=shapes,
    chunks=st.lists(chunks, max_size=3).map(tuple),
)
plain = st.one_of(st.booleans(), counts, st.none(), st.floats(allow_nan=False))
manifests = st.builds(
    Manifest,
    checkpoint=names,
    progress=st.builds(Progress, step=counts, samples=counts, tokens=counts),
    origin=st.just(origin()),
    position=st.builds(position, counts),
    tensors=st.dictionaries(names, tensors, max_size=3),
    optimizer_groups=st.lists(st.dictionaries(names, plain)),
    optimizer_values=st.dictionaries(names, st.dictionaries(names, plain), max_size=3),
    random_states=st.lists(st.dictionaries(names, st.lists(counts))),
    parts=st.lists(st.builds(Part, name=names, num_bytes=counts, xxh3=names), max_size=3).map(tuple),
)


def commit(step: int, number: int = 1) -> Commit:
    return commit_of(manifest(step), b"content", number=number)


@settings(max_examples=30)
@given(manifests)
def test_a_manifest_is_read_back_as_it_was_written(whole: Manifest) -> None:
    assert Manifest.from_bytes(whole.to_bytes()) == whole


@settings(max_examples=30)
@given(manifests)
def test_equal_manifests_are_equal_bytes(whole: Manifest) -> None:
    again = replace(whole, tensors=dict(reversed(whole.tensors.items())))
    assert again.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        manifest(3).to_bytes()[:-1],
        manifest(3).to_bytes().replace(b'"schema":2', b'"schema":1'),
        manifest(3).to_bytes().replace(b'"parts"', b'"carts"'),
        manifest(3).to_bytes().replace(b'"samples"', b'"simples"'),
        manifest(3).to_bytes().replace(b'"global_slot"', b'"slot"'),
        manifest(3).to_bytes().replace(b'"weight"', b'"wait"'),
    ],
)
def test_what_is_no_manifest_is_damage(content: bytes) -> None:
    with pytest.raises(DamagedError, match="manifest is damaged"):
        Manifest.from_bytes(content)


def test_a_commit_says_what_its_manifest_holds() -> None:
    whole = manifest(12, content=b"12345", world=3, attempt=2)
    made = commit_of(whole, b"written", number=4)
    assert (made.run, made.step, made.samples, made.tokens, made.world, made.attempt) == (
        "t",
        12,
        96,
        960,
        3,
        2,
    )
    assert (made.num_bytes, made.files, made.manifest_bytes) == (5, 2, 7)
    assert made.manifest_sha256 == hashlib.sha256(b"written").hexdigest()
    assert (made.name, made.quarantine_name) == (
        "COMMITTED-000000000012-4.json",
        "QUARANTINE-000000000012-4.json",
    )


def test_a_commit_is_read_back_under_its_own_name_only() -> None:
    made = commit(12)
    assert Commit.from_bytes(made.to_bytes(), made.name) == made
    with pytest.raises(DamagedError, match="COMMITTED-000000000013-1.json is damaged: it says that it is"):
        Commit.from_bytes(made.to_bytes(), "COMMITTED-000000000013-1.json")


def test_a_record_that_says_something_else_than_its_manifest_is_damage() -> None:
    whole = manifest(12)
    content = whole.to_bytes()
    made = commit_of(whole, content, number=1)
    check_record(made, whole, content)
    for wrong in (replace(made, tokens=1), replace(made, run="u"), replace(made, world=9)):
        with pytest.raises(DamagedError, match="COMMITTED-000000000012-1.json is not the record"):
            check_record(wrong, whole, content)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"3", b"\xff", b'{"step": 12}'])
def test_what_is_no_commit_is_damage_that_names_the_record(content: bytes) -> None:
    with pytest.raises(DamagedError, match="COMMITTED-000000000012-1.json is damaged"):
        Commit.from_bytes(content, "COMMITTED-000000000012-1.json")


def test_only_records_have_a_parsed_name() -> None:
    assert parse_name("COMMITTED-000001200-1.json") is None
    assert parse_name("COMMITTED-000000001200-1.json") == ("COMMITTED", 1200, 1)
    assert parse_name("QUARANTINE-000000001200-12.json") == ("QUARANTINE", 1200, 12)
    for name in ("LATEST.json", "COMMITTED-000000001200-1.json.tmp", "committed-000000001200-1.json", ""):
        assert parse_name(name) is None


@given(step=st.integers(0, 10**12 - 1), number=st.integers(1, 99))
def test_names_are_parsed_as_they_are_made_and_sort_by_step(step: int, number: int) -> None:
    made = replace(commit(1), step=step, number=number)
    assert parse_name(made.name) == ("COMMITTED", step, number)
    assert parse_name(made.quarantine_name) == ("QUARANTINE", step, number)
    assert (made.name < commit(10**6).name) == (step < 10**6) or step == 10**6


@given(
    steps=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3)), unique=True, max_size=20),
    bad=st.sets(st.integers(0, 19)),
    keep_last=st.integers(-1, 6),
    keep_every=st.one_of(st.none(), st.integers(1, 10)),
)
def test_retention_never_leaves_zero_and_never_touches_quarantined_ones(
    steps: list[tuple[int, int]], bad: set[int], keep_last: int, keep_every: int | None
) -> None:
    commits = [commit(step, number) for step, number in steps]
    quarantined = frozenset(c.name for index, c in enumerate(commits) if index in bad)
    gone = choose_deletions(commits, quarantined=quarantined, keep_last=keep_last, keep_every=keep_every)
    good = sorted((c for c in commits if c.name not in quarantined), key=lambda c: (c.step, c.number))
    kept = [c for c in good if c not in gone]
    assert not {c.name for c in gone} & quarantined
    assert kept[-max(1, keep_last) :] == good[-max(1, keep_last) :]
    assert bool(kept) == bool(good)
    assert all(c in kept for c in good if keep_every and c.step % keep_every == 0)
    assert gone == sorted(gone, key=lambda c: (c.step, c.number))
    needless = [c for c in kept[: -max(1, keep_last)] if not (keep_every and c.step % keep_every == 0)]
    assert needless == []


def test_the_newest_three_and_every_hundredth_stay() -> None:
    commits = [commit(step) for step in range(50, 501, 50)]
    gone = choose_deletions(commits, quarantined=frozenset({commits[-1].name}), keep_last=3, keep_every=100)
    assert [c.step for c in gone] == [50, 150, 250]


def test_commit_records_are_json_for_people() -> None:
    assert json.loads(commit(3).to_bytes())["step"] == 3
    assert b"\n" in commit(3).to_bytes()
