import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data import tokenizer as tokenizer_module
from torchrelay.data.dataset import open_dataset
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.tokenizer import (
    ByteTokenizer,
    CharacterSurvey,
    CharTokenizer,
    FileTokenizer,
    describe_tokenizer,
    load_tokenizer,
    parse_tokenizer,
    read_tokenizer_file,
)
from torchrelay.store.base import Store

WORDS = {"[UNK]": 0, "hello": 1, "world": 2, "<|endoftext|>": 3, "</s>": 7}


def word_file(words: dict[str, int] = WORDS, **options: Any) -> bytes:
    """The file of a tokenizer that knows a few words."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if options.get("truncating"):
        inner.enable_truncation(1)
        inner.enable_padding(length=5)
    if options.get("framing"):
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", words["</s>"])]
        )
    return str(inner.to_str()).encode()


@given(st.binary(max_size=200))
def test_bytes_are_tokens_as_they_are(data: bytes) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(data).tolist() == list(data)
    assert tokenizer.decode(tokenizer.encode(data)) == data.decode(errors="replace")


def test_the_byte_end_mark_lies_beyond_the_bytes_and_is_not_text() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocabulary, tokenizer.end_token) == (257, 256)
    assert tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    assert tokenizer.decode([104, 256, 105]) == "hi"


@given(st.text(max_size=200))
def test_characters_survive_and_fill_the_vocabulary(text: str) -> None:
    survey = CharacterSurvey()
    survey.add(text)
    tokenizer = survey.tokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text.encode()).tolist() == ids.tolist()
    assert sorted(set(ids.tolist())) == list(range(tokenizer.end_token))
    assert tokenizer.vocabulary == len(set(text)) + 1


def test_characters_are_numbered_by_code_point() -> None:
    survey = CharacterSurvey()
    survey.add("cab")
    survey.add("é\n")
    tokenizer = survey.tokenizer()
    assert tokenizer.encode("\nabcé").tolist() == [0, 1, 2, 3, 4]
    assert tokenizer.decode([1, tokenizer.end_token, 2, 99]) == "ab\ufffd"


@pytest.mark.parametrize("stranger", ["b", "\x00", "🙂"])
def test_an_unknown_character_is_named_with_its_position(stranger: str) -> None:
    with pytest.raises(DataError, match=r"position 2 is not in the vocabulary of 2 characters") as caught:
        CharTokenizer("ac").encode(f"ac{stranger}a")
    assert repr(stranger) in caught.value.message


def test_text_that_is_not_utf8_is_not_guessed() -> None:
    with pytest.raises(UnicodeDecodeError):
        CharTokenizer("a").encode(b"a\xff")


def test_a_file_tokenizer_uses_its_own_ids_and_the_first_known_end_mark() -> None:
    tokenizer = FileTokenizer(word_file(), "here")
    assert tokenizer.encode("hello world").tolist() == [1, 2]
    assert [ids.tolist() for ids in tokenizer.encode_many(["world", b"hello hello"])] == [[2], [1, 1]]
    assert (tokenizer.end_text, tokenizer.end_token, tokenizer.vocabulary) == ("<|endoftext|>", 3, 8)
    assert tokenizer.decode([1, 3, 2]) == "hello world"


def test_the_end_mark_can_be_chosen() -> None:
    assert FileTokenizer(word_file(), "here", "world").end_token == 2
    with pytest.raises(
        DataError, match=r"here has no token '<\|endoftxt\|>'; did you mean '<\|endoftext\|>'"
    ):
        FileTokenizer(word_file(), "here", "<|endoftxt|>")
    with pytest.raises(DataError, match="here has none of the end marks") as caught:
        FileTokenizer(word_file({"[UNK]": 0, "a": 1}), "here")
    assert "--end-token" in caught.value.hint


def test_truncation_padding_and_frames_of_the_file_are_not_applied() -> None:
    tokenizer = FileTokenizer(word_file(truncating=True, framing=True), "here")
    assert tokenizer.encode("hello world hello").tolist() == [1, 2, 1]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b'{"version": "1.0"}', b'{"model": {}}'])
def test_what_is_no_tokenizer_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json is not a tokenizer file"):
        read_tokenizer_file(tmp_path / "t.json", None)


def test_a_missing_tokenizer_file_is_named_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the tokenizer .*nothing") as caught:
        read_tokenizer_file(tmp_path / "nothing", None)
    assert "bytes, chars or the path" in caught.value.hint


def test_without_the_library_a_file_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(name)

    content = word_file()
    monkeypatch.setattr(tokenizer_module.importlib, "import_module", refuse)
    with pytest.raises(DataError, match="needs the package tokenizers") as caught:
        FileTokenizer(content, "here")
    assert "torchrelay[text]" in caught.value.hint


@pytest.mark.parametrize(
    "made", [ByteTokenizer(), CharTokenizer("abc\n🙂"), FileTokenizer(word_file(), "here", "</s>")]
)
def test_a_tokenizer_survives_its_file(made: Any) -> None:
    record = describe_tokenizer(made)
    again = parse_tokenizer(made.to_json(), record, "here")
    assert describe_tokenizer(again) == record
    assert again.encode("hello cab"[6:]).tolist() == made.encode("cab").tolist()
    assert record.sha256 == hashlib.sha256(made.to_json()).hexdigest()


@pytest.mark.parametrize(
    "content", [b"{", b"{}", b'{"kind": "chars"}', b'{"kind": "chars", "characters": 5}']
)
def test_a_broken_file_of_ours_is_named(content: bytes) -> None:
    record = describe_tokenizer(CharTokenizer("abc"))
    with pytest.raises(DataError, match="here is not a tokenizer"):
        parse_tokenizer(content, record, "here")


def test_the_tokenizer_of_a_version_is_loaded_and_checked(
    store: Store, build: Callable[..., Any], stories: list[str]
) -> None:
    manifest = build(stories, tokenizer="chars").manifest
    assert load_tokenizer(store, manifest).encode("story").dtype == np.uint32
    key = tokenizer_key("d", manifest.version)
    tree = json.loads(store.get(key))
    store.put(key, json.dumps(tree | {"characters": "x" + tree["characters"][1:]}).encode())
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged: its sha256 is"):
        load_tokenizer(store, manifest)
    store.delete(key)
    with pytest.raises(DataError, match=r"tokenizer\.json is missing"):
        load_tokenizer(store, open_dataset(store, "d").manifest)


def test_a_file_tokenizer_is_kept_as_it_came(store: Store, build: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(word_file())
    texts = [f"hello world {n}" for n in range(30)]
    manifest = build(texts, tokenizer=str(tmp_path / "tokenizer.json"), end_token="</s>").manifest
    assert store.get(tokenizer_key("d", manifest.version)) == word_file()
    assert manifest.tokenizer.end_text == "</s>"
    assert load_tokenizer(store, manifest).end_token == 7
    assert replace(manifest.tokenizer, sha256="").kind == "file"
