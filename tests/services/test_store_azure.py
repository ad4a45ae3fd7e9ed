"""`az://` against Azurite, Microsoft's own server of the protocol; skipped where that is not installed.

npm install --global azurite
"""

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from torchrelay.core.errors import StoreError
from torchrelay.store.base import Store
from torchrelay.store.open import open_store
from torchrelay.store.probe import check_store

pytestmark = pytest.mark.services

ACCOUNT, CONTAINER = "relay", "relay-test"
KEY = base64.b64encode(b"0" * 32).decode()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Azurite with one account and one container."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not installed (npm install --global azurite)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    process = subprocess.Popen(
        [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options],
        cwd=tmp_path_factory.mktemp("azurite"),
        env=os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdout=subprocess.DEVNULL,
    )
    try:
        _make_container(port)
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    return open_store(f"az://{CONTAINER}/{uuid.uuid4().hex}", retry_s=5)


def test_everything_that_torchrelay_does_works(store: Store) -> None:
    findings = list(check_store(store.url, read_only=False))
    assert len(findings) == 9
    assert [finding.problem for finding in findings if not finding.works] == []
    assert [*store.list("")] == []


def test_folders_and_ranges_are_as_everywhere(store: Store) -> None:
    store.put("a/b", b"0123456789")
    assert list(store.list_folders("")) == ["a"]
    assert store.get("a/b", start=8, length=9) == b"89"
    assert store.get("a/b", start=10) == b""


def test_a_wrong_key_and_a_missing_container_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="the bucket does not exist"):
        open_store("az://nowhere/x").put("a", b"1")
    wrong = base64.b64encode(b"1" * 32).decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    with pytest.raises(StoreError, match="access denied") as caught:
        open_store(store.url).get("a")
    assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.hint
    assert wrong not in str(caught.value)


def _make_container(port: int) -> None:
    """One signed request; obstore makes no containers."""
    date, version = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "2021-08-06"
    path = f"/{ACCOUNT}/{CONTAINER}"
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}{path}\nrestype:container"
    mark = base64.b64encode(hmac.new(b"0" * 32, signed.encode(), hashlib.sha256).digest()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{mark}",
        },
    )
    deadline_s = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
