"""`gs://` against what of its protocol runs here.

The XML interface of Google Cloud Storage, which obstore speaks, is S3's but for names and keys. So
SeaweedFS serves it to everybody, once a proxy has taken away Google's kind of key. It does not know
Google's condition for creating an object: that `torchrelay store check` finds this out is tested, the
condition itself cannot be.
"""

import uuid
from collections.abc import Iterator

import pytest

from tests.services.conftest import OPEN, S3Server
from tests.services.proxy import FaultProxy
from torchrelay.core.errors import NotFoundError, StoreError
from torchrelay.store.base import Store
from torchrelay.store.open import open_store
from torchrelay.store.probe import check_store

pytestmark = pytest.mark.services

MIB = 2**20


@pytest.fixture
def store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    proxy = FaultProxy(s3_server.endpoint, hidden=("authorization",))
    monkeypatch.setenv("GOOGLE_BASE_URL", proxy.endpoint)
    yield open_store(f"gs://{OPEN}/{uuid.uuid4().hex}", retry_s=5)
    proxy.close()


def test_objects_go_and_come_back(store: Store) -> None:
    store.put("a/b", b"0123456789")
    assert store.get("a/b") == b"0123456789"
    assert store.get("a/b", start=3, length=4) == b"3456"
    assert store.get("a/b", start=10, length=4) == b""
    assert [entry.key for entry in store.list("")] == ["a/b"]
    assert list(store.list_folders("")) == ["a"]
    store.delete("a/b")
    store.delete("a/b")
    with pytest.raises(NotFoundError):
        store.get("a/b")


def test_a_large_stream_is_sent_in_parts(store: Store) -> None:
    with store.open_writer("large") as writer:
        for number in range(20):
            writer.write(bytes([number]) * MIB)
    assert store.get("large", start=19 * MIB) == bytes([19]) * MIB


def test_a_missing_bucket_and_a_forbidden_one_are_told(store: Store) -> None:
    with pytest.raises(StoreError, match="access denied") as caught:
        open_store("gs://relay-test/x", retry_s=2).put("a", b"1")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.hint


def test_a_service_that_ignores_create_only_is_found(store: Store) -> None:
    findings = {finding.check: finding for finding in check_store(store.url, read_only=False)}
    assert {name for name, finding in findings.items() if not finding.works} == {"create only", "race of two"}
    assert [*store.list("")] == []
