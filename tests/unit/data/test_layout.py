import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.layout import (
    check_name,
    check_tag,
    manifest_key,
    parse_reference,
    ref_key,
    shard_key,
    tag_key,
    tokenizer_key,
)


def test_keys_are_where_other_tools_expect_them() -> None:
    assert shard_key("abcd") == "shards/ab/abcd.tok"
    assert manifest_key("d", "v") == "datasets/d/versions/v/manifest.json"
    assert tokenizer_key("d", "v") == "datasets/d/versions/v/tokenizer.json"
    assert tag_key("d", "v1") == "datasets/d/tags/v1.json"
    assert ref_key("d", 7) == "datasets/d/refs/000007.json"


@pytest.mark.parametrize(
    ("text", "number", "version"),
    [
        ("d", None, None),
        ("d@3", 3, None),
        ("d@abcdef", None, "abcdef"),
        ("d@ABCDEF", None, "abcdef"),
        ("d@123456", 123456, "123456"),
        ("d@" + "a" * 64, None, "a" * 64),
    ],
)
def test_a_reference_is_a_name_and_a_pin(text: str, number: int | None, version: str | None) -> None:
    reference = parse_reference(text)
    assert (reference.name, reference.number, reference.version) == ("d", number, version)


@pytest.mark.parametrize("text", ["d@", "d@-1", "d@a b", "d@" + "x" * 101, "d@1.2"])
def test_other_pins_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="neither the number of a ref, nor a tag, nor the start of a version"):
        parse_reference(text)


@pytest.mark.parametrize("tag", ["v1", "main", "abcde", "paper-2026.1", "a" * 65])
def test_a_tag_is_a_pin_too(tag: str) -> None:
    reference = parse_reference(f"d@{tag}")
    assert (reference.tag, reference.number, reference.version) == (tag, None, None)
    assert check_tag(tag) == tag


@pytest.mark.parametrize("tag", ["abcdef", "DEADBEEF", "3", "-x", ""])
def test_what_could_be_a_version_or_a_ref_is_no_tag(tag: str) -> None:
    with pytest.raises(DataError, match="is not a tag"):
        check_tag(tag)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "ä", "a" * 101, "a b"])
def test_names_that_could_escape_their_folder_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="is not a name for a dataset"):
        check_name(name)
