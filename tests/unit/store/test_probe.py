import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrelay.core.errors import StoreError
from torchrelay.store import files, probe
from torchrelay.store.base import Buffer, Entry
from torchrelay.store.files import FileStore
from torchrelay.store.open import open_store
from torchrelay.store.probe import Finding, check_store


def check(url: str, *, read_only: bool = False) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_store(url, read_only=read_only)}


def test_a_folder_can_do_everything_and_is_left_as_it_was(tmp_path: Path) -> None:
    findings = check(str(tmp_path / "new" / "store"))
    assert list(findings) == [
        "list",
        "write",
        "delete",
        "read",
        "create only",
        "race of two",
        "large object",
        "part of one",
        "clock",
    ]
    assert all(finding.works for finding in findings.values())
    assert findings["large object"].bytes_per_s > 10**6
    assert findings["write"].bytes_per_s is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_a_store_already_stays(tmp_path: Path) -> None:
    FileStore(tmp_path).put("a/b", b"1")
    assert all(finding.works for finding in check(str(tmp_path)).values())
    assert [entry.key for entry in FileStore(tmp_path).list("")] == ["a/b"]


def test_reading_only_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileStore(tmp_path).put("a/b", b"12345")
    monkeypatch.setattr(FileStore, "put", lambda *_, **__: pytest.fail("it wrote"))
    findings = check(str(tmp_path), read_only=True)
    assert list(findings) == ["list", "read", "part of one"]
    assert all(finding.works for finding in findings.values())


def test_reading_where_nothing_is_says_so(tmp_path: Path) -> None:
    assert check(str(tmp_path), read_only=True)["read"].problem == "there is no object to read"


def test_a_store_that_cannot_be_written_is_not_tried_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("access denied (403 AccessDenied)")

    monkeypatch.setattr(FileStore, "put", refuse)
    findings = check(str(tmp_path))
    assert list(findings) == ["list", "write"]
    assert not findings["write"].works


def test_what_cannot_be_deleted_is_named_and_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FileStore, key: str) -> None:
        raise StoreError(f"{key}: access denied")

    monkeypatch.setattr(FileStore, "delete", refuse)
    findings = check(str(tmp_path))
    assert list(findings) == ["list", "write", "delete"]
    (left,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert str(left.relative_to(tmp_path)) in findings["delete"].problem
    assert findings["delete"].problem.endswith("is left there")


def put_anyway(self: FileStore, key: str, data: Buffer, *, if_absent: bool = False) -> None:
    REAL_PUT(self, key, data)


def get_something_else(self: FileStore, key: str, *, start: int = 0, length: int | None = None) -> bytes:
    return bytes(len(REAL_GET(self, key, start=start, length=length)))


def list_old(self: FileStore, prefix: str) -> Iterator[Entry]:
    return (entry._replace(modified_s=time.time() - 400) for entry in REAL_LIST(self, prefix))


REAL_PUT, REAL_GET, REAL_LIST = FileStore.put, FileStore.get, FileStore.list


@pytest.mark.parametrize(
    ("method", "broken", "problems"),
    [
        (
            "put",
            put_anyway,
            {"create only": "a second write .* If-None-Match is ignored", "race of two": "2 of two writers"},
        ),
        (
            "get",
            get_something_else,
            {"read": "other bytes came back", "part of one": "other bytes came back"},
        ),
        ("list", list_old, {"clock": "the clock of this machine is 400 s ahead"}),
    ],
)
def test_a_service_that_breaks_a_promise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, broken: object, problems: dict[str, str]
) -> None:
    monkeypatch.setattr(FileStore, method, broken)
    findings = check(str(tmp_path))
    import re

    assert {name for name, finding in findings.items() if not finding.works} == set(problems)
    for name, problem in problems.items():
        assert re.match(problem, findings[name].problem)
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.FileWriter, "write", full)
    assert check(str(tmp_path))["write"].problem == "No space left on device"


def test_the_permission_of_the_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = open_store("memory://probe")
    monkeypatch.setattr(probe, "open_store", lambda url, retry_s: memory)
    for scheme, permission in (
        ("s3", "s3:PutObject"),
        ("gs", "storage.objects.create"),
        ("az", "blobs/write"),
    ):
        assert check(f"{scheme}://bucket")["large object"].permission == permission
    assert [*memory.list("")] == []
