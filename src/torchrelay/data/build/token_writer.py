"""Fills shards with the tokens of documents and puts them into the store under the hash of their content.

Memory is bounded by the size of a shard. A shard holds whole documents; only one that is larger
than a shard is cut, and the shards it goes on in say so.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.data.formats.tok import Footer, encode_footer, numpy_type
from torchrelay.data.layout import shard_key
from torchrelay.data.manifest import ShardEntry, TokenDtype
from torchrelay.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """What all shards of a version have in common."""

    token_dtype: TokenDtype
    end_token: int
    labelled: bool
    shard_bytes: int
    """Most bytes of tokens in one shard."""


class ShardWriter:
    """Writes the shards of one split, in the order in which documents are given. One thread."""

    def __init__(self, store: Store, folder: str, settings: ShardSettings) -> None:
        self._store = store
        self._folder = folder
        self._settings = settings
        kind = numpy_type(settings.token_dtype)
        self._buffer = np.empty(settings.shard_bytes // kind.itemsize, kind)
        self._end_mark = np.array([settings.end_token], kind)
        self._entries: list[ShardEntry] = []
        self._fill = 0
        """Tokens in the buffer."""
        self._ends: list[int] = []
        self._ids: list[int] = []
        self._labels: list[int] = []
        self._longest = 0
        self._text_bytes = 0
        """Of the documents that end in the buffer."""
        self._continues = False
        self._open_tokens = 0
        """Tokens of the document that has not ended, those in earlier shards included."""
        self._open_text_bytes = 0
        """Bytes of text of the part of it that is in the buffer."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given yet."""
        return not self._entries and self._fill == 0

    def append(self, tokens: NDArray[Any], text_bytes: int) -> None:
        """More tokens of the open document, standing for `text_bytes` bytes of text."""
        self._open_tokens += tokens.size
        while tokens.size:
            room = self._buffer.size - self._fill
            if room == 0:
                self._make_room()
                continue
            part = tokens[:room]
            self._buffer[self._fill : self._fill + part.size] = part
            self._fill += part.size
            tokens = tokens[room:]
        self._open_text_bytes += text_bytes

    def end_document(self, document_id: int, label: int | None) -> None:
        """Set the end mark; `document_id` is below 2**64, `label` the class where documents have one."""
        self.append(self._end_mark, 0)
        self._ends.append(self._fill)
        self._ids.append(document_id)
        if label is not None:
            self._labels.append(label)
        self._longest = max(self._longest, self._open_tokens)
        self._text_bytes += self._open_text_bytes
        self._open_tokens = self._open_text_bytes = 0

    def close(self) -> tuple[ShardEntry, ...]:
        """Write what is left; the entries of all shards in stored order. Every document has ended."""
        if self._fill:
            self._write(self._fill)
        return tuple(self._entries)

    def _make_room(self) -> None:
        """Write the documents that have ended; if none has, the part of the open one that fills the shard."""
        if self._ends:
            stop = self._ends[-1]
            self._write(stop)
            self._buffer[: self._fill - stop] = self._buffer[stop : self._fill].copy()
            self._fill -= stop
            self._continues = False
        else:
            self._text_bytes, self._open_text_bytes = self._open_text_bytes, 0
            self._write(self._fill)
            self._fill = 0
            self._continues = True

    def _write(self, num_tokens: int) -> None:
        """Put the first `num_tokens` of the buffer into the store and count anew."""
        footer = Footer(
            tokens=num_tokens,
            token_dtype=self._settings.token_dtype,
            ends=np.array(self._ends, np.uint64),
            ids=np.array(self._ids, np.uint64),
            labels=np.array(self._labels, np.int32) if self._settings.labelled else None,
            packs=None,
            continues=self._continues,
        )
        # In two parts, because joining them would copy all of the tokens.
        parts = (memoryview(self._buffer[:num_tokens].view(np.uint8).data), encode_footer(footer))
        sha256, xxh3_128 = hashlib.sha256(), xxhash.xxh3_128()
        for part in parts:
            sha256.update(part)
            xxh3_128.update(part)
        entry = ShardEntry(
            key=shard_key(sha256.hexdigest()),
            samples=len(self._ends),
            tokens=num_tokens,
            bytes=sum(map(len, parts)),
            text_bytes=self._text_bytes,
            longest=self._longest,
            continues=self._continues,
            sha256=sha256.hexdigest(),
            xxh3_128=xxh3_128.hexdigest(),
        )
        # Written even where it exists: the bytes are the same, and a damaged shard is healed.
        with self._store.open_writer(f"{self._folder}/{entry.key}") as writer:
            for part in parts:
                writer.write(part)
        self._entries.append(entry)
        self._ends, self._ids, self._labels = [], [], []
        self._longest = self._text_bytes = 0
