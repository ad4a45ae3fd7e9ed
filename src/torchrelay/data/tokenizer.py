"""Text to token ids and back, and the file that a version keeps so that anybody can do it again."""

import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.core.plugins import nearest
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.manifest import Manifest, TokenizerRecord
from torchrelay.store.base import Store

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "[SEP]")
"""Marks that are looked for in a tokenizer file, in this order."""

Text = str | bytes | memoryview
Tokens = NDArray[np.unsignedinteger[Any]]


class Tokenizer(Protocol):
    """Turns text into ids below `vocabulary`. `encode` sets no end mark. Thread-safe."""

    @property
    def kind(self) -> Literal["bytes", "chars", "file"]:
        """Which of the three it is."""

    @property
    def vocabulary(self) -> int:
        """Number of ids, the end mark included."""

    @property
    def end_token(self) -> int:
        """Id of the mark after a document."""

    @property
    def end_text(self) -> str | None:
        """How the mark is written in a tokenizer file, or None where it has no text."""

    def encode(self, text: Text) -> Tokens:
        """Ids of `text`; bytes are UTF-8 (UnicodeDecodeError if not), but for the `bytes` kind."""

    def encode_many(self, texts: Sequence[Text]) -> list[Tokens]:
        """`encode` of each, faster."""

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The text of some ids; end marks are left out, broken UTF-8 becomes U+FFFD."""

    def to_json(self) -> bytes:
        """The file that `parse_tokenizer` reads back."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Every byte is a token; the end mark is 256."""

    kind: Literal["bytes"] = "bytes"
    vocabulary: int = 257
    end_token: int = 256
    end_text: None = None

    def encode(self, text: Text) -> Tokens:
        """See `Tokenizer.encode`."""
        return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)

    def encode_many(self, texts: Sequence[Text]) -> list[Tokens]:
        """See `Tokenizer.encode_many`."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See `Tokenizer.decode`."""
        kept = np.asarray(ids, np.int64)
        return kept[kept < 256].astype(np.uint8).tobytes().decode(errors="replace")

    def to_json(self) -> bytes:
        """See `Tokenizer.to_json`."""
        return _write({"kind": self.kind})


class CharTokenizer:
    """Every character that was seen is a token, numbered by code point; the end mark comes last."""

    kind: Literal["chars"] = "chars"
    end_text = None

    def __init__(self, characters: str) -> None:
        self._characters = characters
        points = _code_points(characters)
        self._table = np.full(int(points.max(initial=0)) + 2, len(characters), np.uint32)
        self._table[points] = np.arange(len(characters), dtype=np.uint32)

    @property
    def end_token(self) -> int:
        """See `Tokenizer.end_token`."""
        return len(self._characters)

    @property
    def vocabulary(self) -> int:
        """See `Tokenizer.vocabulary`."""
        return len(self._characters) + 1

    def encode(self, text: Text) -> Tokens:
        """See `Tokenizer.encode`; DataError that names the first character that is not in the vocabulary."""
        string = text if isinstance(text, str) else str(text, "utf-8")
        points = _code_points(string)
        # Every code point beyond the table is looked up in its last cell, which is unknown.
        ids: Tokens = self._table.take(points, mode="clip")
        if ids.size and int(ids.max()) == self.end_token:
            place = int(ids.argmax())
            raise DataError(
                f"character {string[place]!r} at position {place} is not in the vocabulary of "
                f"{len(self._characters)} characters",
                hint="a chars tokenizer knows only the characters of its data; use --tokenizer bytes",
            )
        return ids

    def encode_many(self, texts: Sequence[Text]) -> list[Tokens]:
        """See `Tokenizer.encode_many`."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See `Tokenizer.decode`."""
        return "".join(
            self._characters[number] if number < self.end_token else "\ufffd"
            for number in np.asarray(ids, np.int64).tolist()
            if number != self.end_token
        )

    def to_json(self) -> bytes:
        """See `Tokenizer.to_json`."""
        return _write({"kind": self.kind, "characters": self._characters})


class FileTokenizer:
    """A tokenizer file of Hugging Face's `tokenizers`; kept as it is, so others can use it too."""

    kind: Literal["file"] = "file"

    def __init__(self, content: bytes, where: str, end_text: str | None = None) -> None:
        """`where` names the file in errors; `end_text` None takes the first of END_TOKENS that exists."""
        self._content = content
        self._inner = _load_file(content, where)
        names: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        self.end_text: str = _choose_end(names, end_text, where)
        self.end_token = names[self.end_text]
        self.vocabulary = max(names.values()) + 1

    def encode(self, text: Text) -> Tokens:
        """See `Tokenizer.encode`."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[Text]) -> list[Tokens]:
        """See `Tokenizer.encode_many`; uses all cores."""
        strings = [text if isinstance(text, str) else str(text, "utf-8") for text in texts]
        encodings = self._inner.encode_batch_fast(strings, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See `Tokenizer.decode`."""
        kept = [number for number in np.asarray(ids, np.int64).tolist() if number != self.end_token]
        text: str = self._inner.decode(kept, skip_special_tokens=False)
        return text

    def to_json(self) -> bytes:
        """See `Tokenizer.to_json`."""
        return self._content


class CharacterSurvey:
    """Collects the distinct characters of a corpus."""

    def __init__(self) -> None:
        self._seen = np.zeros(0x110000, bool)

    def add(self, text: str) -> None:
        """Take in the characters of some text."""
        self._seen[_code_points(text)] = True

    def tokenizer(self) -> CharTokenizer:
        """The tokenizer of all characters seen so far."""
        return CharTokenizer("".join(map(chr, np.flatnonzero(self._seen).tolist())))


def read_tokenizer_file(path: Path, end_text: str | None) -> FileTokenizer:
    """The tokenizer file at `path`; DataError when it cannot be used."""
    try:
        return FileTokenizer(path.read_bytes(), str(path), end_text)
    except OSError as error:
        raise DataError(
            f"cannot read the tokenizer {path}: {error.strerror}",
            hint="--tokenizer takes bytes, chars or the path of a tokenizer.json",
        ) from error


def load_tokenizer(store: Store, manifest: Manifest) -> Tokenizer:
    """The tokenizer of a version; DataError when its file is missing or not the one that was recorded."""
    where = f"{store.url}/{tokenizer_key(manifest.name, manifest.version)}"
    return parse_tokenizer(fetch_tokenizer_file(store, manifest), manifest.tokenizer, where)


def fetch_tokenizer_file(store: Store, manifest: Manifest) -> bytes:
    """The bytes of a version's tokenizer file, checked but not parsed; errors as `load_tokenizer`."""
    key = tokenizer_key(manifest.name, manifest.version)
    where = f"{store.url}/{key}"
    try:
        content = store.get(key)
    except NotFoundError as error:
        raise DataError(f"{where} is missing", hint="build the dataset again from the same input") from error
    got = hashlib.sha256(content).hexdigest()
    if got != manifest.tokenizer.sha256:
        raise DataError(
            f"{where} is damaged: its sha256 is {got}, the manifest says {manifest.tokenizer.sha256}",
            hint="build the dataset again from the same input; that writes the file anew",
        )
    return content


def parse_tokenizer(content: bytes, record: TokenizerRecord, where: str) -> Tokenizer:
    """The tokenizer that `to_json` wrote; `where` names the file in errors."""
    if record.kind == "file":
        return FileTokenizer(content, where, record.end_text)
    try:
        tree = json.loads(content)
        return ByteTokenizer() if tree["kind"] == "bytes" else CharTokenizer(tree["characters"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where} is not a tokenizer: {error}") from error


def describe_tokenizer(tokenizer: Tokenizer) -> TokenizerRecord:
    """What the manifest keeps of a tokenizer."""
    return TokenizerRecord(
        kind=tokenizer.kind,
        vocabulary=tokenizer.vocabulary,
        end_token=tokenizer.end_token,
        end_text=tokenizer.end_text,
        sha256=hashlib.sha256(tokenizer.to_json()).hexdigest(),
    )


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _load_file(content: bytes, where: str) -> Any:
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise DataError(
            "a tokenizer file needs the package tokenizers", hint="pip install 'torchrelay[text]'"
        ) from error
    try:
        inner = tokenizers.Tokenizer.from_str(str(content, "utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"{where} is not a tokenizer file: {error}",
            hint="give the tokenizer.json of a Hugging Face tokenizer",
        ) from error
    inner.no_truncation()
    inner.no_padding()
    return inner


def _choose_end(names: dict[str, int], wanted: str | None, where: str) -> str:
    if wanted is not None:
        if wanted not in names:
            marks = [name for name in names if name[:1] in ("<", "[")]
            raise DataError(f"{where} has no token {wanted!r}{nearest(wanted, marks)}")
        return wanted
    found = next((name for name in END_TOKENS if name in names), None)
    if found is None:
        raise DataError(
            f"{where} has none of the end marks {', '.join(END_TOKENS)}",
            hint="name the token that ends a document with --end-token",
        )
    return found


def _write(tree: dict[str, str]) -> bytes:
    return json.dumps(tree, ensure_ascii=False, sort_keys=True).encode() + b"\n"
