"""Keys that change, expire and are refused while a store is in use; what is shown of them: nothing."""

import json
import sys
import time
import traceback
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.services.conftest import BUCKET, OPEN, S3Server
from tests.services.proxy import Fault, FaultProxy, Rule
from torchrelay.core.errors import StoreError
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

pytestmark = pytest.mark.services

SECRET = "a-token-nobody-may-see"


@pytest.fixture
def profile(faulty_s3: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of profiles in place of the keys of the environment; empty yet."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path


def write_keys(path: Path, s3: S3Server, *, secret: str | None = None) -> None:
    keys = s3.environment
    path.write_text(
        f"[default]\naws_access_key_id = {keys['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {secret or keys['AWS_SECRET_ACCESS_KEY']}\n"
    )


def write_command(path: Path, s3: S3Server, *, lifetime_s: float) -> Path:
    """A profile whose command counts its runs in a file, which is returned."""
    counter, program = path.with_name("runs"), path.with_name("print_keys.py")
    printed = {
        "Version": 1,
        "AccessKeyId": s3.environment["AWS_ACCESS_KEY_ID"],
        "SecretAccessKey": s3.environment["AWS_SECRET_ACCESS_KEY"],
        "Expiration": (datetime.now(UTC) + timedelta(seconds=lifetime_s)).isoformat(),
    }
    program.write_text(
        f"open({str(counter)!r}, 'a').write('x')\nprint({json.dumps(printed)!r})\n",
    )
    path.write_text(f'[default]\ncredential_process = "{sys.executable}" {program}\n')
    return counter


def a_store(*, retry_s: float = 3) -> Store:
    return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", retry_s=retry_s)


def test_keys_that_were_replaced_in_the_file_are_taken_up_at_once(profile: Path, s3: S3Server) -> None:
    write_keys(profile, s3, secret="an-old-one")
    store = a_store()
    with pytest.raises(StoreError, match="access denied"):
        store.put("a", b"1")
    write_keys(profile, s3)
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_refusal_is_met_with_keys_that_are_read_anew(
    profile: Path, s3: S3Server, faulty_s3: FaultProxy
) -> None:
    write_keys(profile, s3)
    store = a_store()
    store.put("a", b"1")
    write_keys(profile, s3, secret="too-early-to-be-used")  # the service learns of it a moment later
    assert store.get("a") == b"1", "keys that work are not dropped for every change of the file"
    faulty_s3.set(Rule(Fault.STATUS, status=400, code="ExpiredToken", times=1))
    write_keys(profile, s3)
    assert store.get("a") == b"1"


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied"])
def test_one_refusal_is_forgiven_and_a_second_is_not(s3: S3Server, faulty_s3: FaultProxy, code: str) -> None:
    store = a_store()
    store.put("a", b"1")
    status = 403 if code == "AccessDenied" else 400
    faulty_s3.set(Rule(Fault.STATUS, status=status, code=code, times=1))
    assert store.get("a") == b"1"
    faulty_s3.clear()
    faulty_s3.set(Rule(Fault.STATUS, status=status, code=code))
    with pytest.raises(StoreError, match=rf"access denied \({status} {code}\)"):
        store.get("a")
    assert len(faulty_s3.requests) == 2


def test_a_command_that_prints_keys_is_run_once_while_they_last(profile: Path, s3: S3Server) -> None:
    counter = write_command(profile, s3, lifetime_s=3600)
    store = a_store()
    for number in range(5):
        store.put(str(number), b"1")
    assert counter.read_text() == "x"


def test_keys_about_to_expire_are_renewed_before_they_do(
    profile: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrelay.store.key_source.RECHECK_S", 0.2)
    counter = write_command(profile, s3, lifetime_s=299)  # within the margin: always about to expire
    store = a_store()
    store.put("a", b"1")
    before = len(counter.read_text())
    time.sleep(0.4)
    store.put("a", b"1")
    assert len(counter.read_text()) == before + 1


def test_a_command_that_fails_is_told_without_what_it_printed(profile: Path, s3: S3Server) -> None:
    program = profile.with_name("fail.py")
    program.write_text(f"import sys\nprint({SECRET!r})\nprint({SECRET!r}, file=sys.stderr)\nsys.exit(3)\n")
    profile.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    with pytest.raises(StoreError, match="credential_process failed with exit code 3") as caught:
        a_store().get("a")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_no_answer_of_a_service_shows_a_token(s3: S3Server, faulty_s3: FaultProxy) -> None:
    store = a_store(retry_s=1)
    body = f"<Token-0>{SECRET}</Token-0><StringToSign>{SECRET}</StringToSign>".encode()
    for status, code in ((400, "ExpiredToken"), (403, "SignatureDoesNotMatch"), (503, "SlowDown")):
        faulty_s3.clear()
        faulty_s3.set(Rule(Fault.STATUS, status=status, code=code, body=body))
        for act in (
            lambda: store.get("a"),
            lambda: store.put("a", b"1"),
            lambda: list(store.list("")),
            lambda: store.delete("a"),
            lambda: write_large(store),
        ):
            with pytest.raises(StoreError) as caught:
                act()
            shown = "".join(traceback.format_exception(caught.value))
            assert code in shown
            assert SECRET not in shown + repr(caught.value)
            assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in shown


def write_large(store: Store) -> None:
    with store.open_writer("large") as writer:
        for _ in range(17):
            writer.write(bytes(2**20))


def test_no_keys_are_told_so_and_nobody_is_asked(profile: Path, faulty_s3: FaultProxy) -> None:
    profile.write_text("")
    with pytest.raises(StoreError) as caught:
        a_store().get("a")
    assert caught.value.message.endswith(": no keys were found")
    assert "AWS_PROFILE" in caught.value.hint
    assert faulty_s3.requests == []


def test_a_machine_without_a_role_is_told_so(
    profile: Path, faulty_s3: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile.write_text("")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", faulty_s3.endpoint)  # the proxy plays the machine
    with pytest.raises(StoreError, match="no keys were found, and this machine has no role"):
        a_store().get("a")
    assert {request.key for request in faulty_s3.requests} == {"api/token"}


def test_what_everybody_may_read_is_read_without_keys(
    profile: Path, faulty_s3: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    store = open_store(f"s3://{OPEN}/{uuid.uuid4().hex}", retry_s=3)
    store.put("a", b"1")
    assert store.get("a") == b"1"
    with pytest.raises(StoreError, match="access denied"):
        a_store().get("a")
