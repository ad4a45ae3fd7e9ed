"""What only a service over the network can get wrong: keys, buckets, endpoints."""

import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tests.services.conftest import ABSENT, S3Server
from torchrelay.core.errors import NotFoundError, StoreError
from torchrelay.store.open import check_writable, open_store

pytestmark = pytest.mark.services


@pytest.fixture
def set_environment(monkeypatch: pytest.MonkeyPatch):
    def set_all(values: dict[str, str]) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize(
    "wrong", [{"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ACCESS_KEY_ID": "nobody"}], ids=["secret", "id"]
)
def test_wrong_keys_are_refused_at_once(s3: S3Server, set_environment, wrong: dict[str, str]) -> None:
    set_environment(wrong)
    store = open_store(f"s3://{s3.bucket}/keys")
    began_s = time.monotonic()
    for act in (
        lambda: store.get("a"),
        lambda: store.put("a", b"1"),
        lambda: store.put("a", b"1", if_absent=True),
        lambda: list(store.list("")),
        lambda: store.delete("a"),
        lambda: check_writable(store.url, "runs"),
    ):
        with pytest.raises(StoreError, match="access denied") as caught:
            act()
        assert "AWS_ACCESS_KEY_ID" in caught.value.hint
        assert not isinstance(caught.value, NotFoundError)
    assert time.monotonic() - began_s < 10


def test_a_place_that_may_only_be_read_is_found_before_the_first_save(s3: S3Server, set_environment) -> None:
    open_store(f"s3://{s3.bucket}/only").put("a", b"1")
    set_environment(s3.read_only)
    assert open_store(f"s3://{s3.bucket}/only").get("a") == b"1"
    with pytest.raises(StoreError, match="access denied"):
        check_writable(f"s3://{s3.bucket}/only", "runs")


def test_a_missing_bucket_is_never_taken_for_a_missing_object(s3: S3Server) -> None:
    store = open_store(f"s3://{ABSENT}/place")
    for act in (
        lambda: store.get("a"),
        lambda: store.put("a", b"1"),
        lambda: store.put("a", b"1", if_absent=True),
        lambda: list(store.list("")),
        lambda: check_writable(store.url, "runs"),
    ):
        with pytest.raises(StoreError, match="the bucket does not exist") as caught:
            act()
        assert not isinstance(caught.value, NotFoundError)


def test_no_key_is_shown_in_an_error_or_a_url(s3: S3Server, set_environment) -> None:
    set_environment({"AWS_SECRET_ACCESS_KEY": "a-secret-nobody-may-see"})
    store = open_store(f"s3://{s3.bucket}/hidden")
    with pytest.raises(StoreError) as caught:
        store.put("a", b"1")
    assert "a-secret-nobody-may-see" not in f"{caught.value} {store.url} {vars(store)}"


def test_a_profile_holds_keys_and_endpoint(s3_server: S3Server, set_environment, tmp_path) -> None:
    keys = s3_server.environment
    (tmp_path / "credentials").write_text(
        f"[farm]\naws_access_key_id = {keys['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {keys['AWS_SECRET_ACCESS_KEY']}\n"
    )
    (tmp_path / "config").write_text(
        f"[profile farm]\nendpoint_url = {s3_server.endpoint}\nregion = us-east-1\n"
    )
    set_environment(
        {
            "AWS_PROFILE": "farm",
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
        }
    )
    store = open_store(f"s3://{s3_server.bucket}/profile")
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_nobody_listening_is_told_within_half_a_minute(set_environment) -> None:
    with socket.socket() as held:  # bound and not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        set_environment(_keys(held.getsockname()[1]))
        _assert_unreachable()


def test_an_endpoint_that_never_answers_is_told_within_half_a_minute(set_environment) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        set_environment(_keys(silent.getsockname()[1]))
        _assert_unreachable()


def test_a_forked_child_is_told_instead_of_hanging(s3: S3Server) -> None:
    program = textwrap.dedent(
        """
        import os, sys
        from torchrelay.core.errors import StoreError
        from torchrelay.store.open import open_store
        store = open_store(sys.argv[1])
        store.put("a", b"1")
        child = os.fork()
        if child == 0:
            caught = 0
            for act in (lambda: store.get("a"), lambda: open_store(sys.argv[1]).get("a")):
                try:
                    act()
                except StoreError as error:
                    caught += "forked" in str(error)
            os._exit(caught)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    command = [sys.executable, "-c", program, f"s3://{s3.bucket}/fork"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "2"


def test_many_threads_share_one_store(s3: S3Server) -> None:
    store = open_store(f"s3://{s3.bucket}/threads")
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            content = b"%d-%d" % (number, turn) * 100
            store.put(f"{number}/{turn}", content)
            if store.get(f"{number}/{turn}") != content:
                failures.append(f"{number}/{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(list(store.list(""))) == 120


def _keys(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


def _assert_unreachable() -> None:
    began_s = time.monotonic()
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        check_writable("s3://bucket/prefix", "runs")
    assert time.monotonic() - began_s < 30
    assert "AWS_ENDPOINT_URL" in caught.value.hint
