import socket
import subprocess
import sys
import textwrap
import time
import uuid

import pytest
from obstore import exceptions

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.objects import ObjectStore, _explain, open_memory, open_s3


@pytest.fixture
def store() -> ObjectStore:
    name = uuid.uuid4().hex
    return open_memory(f"memory://{name}/inner", name, "inner")


def test_a_prefix_is_a_store_of_its_own(store: ObjectStore) -> None:
    name = store.url.split("/")[2]
    outer = open_memory(f"memory://{name}", name, "")
    store.put("a", b"1")
    outer.put("inner-not/a", b"2")
    assert [entry.key for entry in outer.list("")] == ["inner-not/a", "inner/a"]
    assert [entry.key for entry in store.list("")] == ["a"]


def test_an_error_of_the_body_is_not_taken_for_one_of_the_store(store: ObjectStore) -> None:
    with pytest.raises(FileNotFoundError, match="own"), store.open_writer("a"):
        raise FileNotFoundError("the body's own file")
    with pytest.raises(NotFoundError):
        store.get("a")


def test_a_forked_child_is_told_instead_of_hanging() -> None:
    program = textwrap.dedent(
        """
        import os
        from torchrelay.core.errors import StoreError
        from torchrelay.store.open import open_store
        store = open_store("memory://x")
        store.put("a", b"1")
        child = os.fork()
        if child == 0:
            caught = 0
            acts = (
                lambda: store.get("a"), lambda: store.put("b", b"1"), lambda: list(store.list("a")),
                lambda: store.delete("a"), lambda: store.open_writer("c").__enter__(),
                lambda: open_store("memory://y"), lambda: open_store("s3://bucket"),
            )
            for act in acts:
                try:
                    act()
                except StoreError as error:
                    caught += "forked" in str(error) and "spawn" in error.hint
            os._exit(caught)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), store.get("a"))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["7", "b'1'"]


def test_an_endpoint_that_refuses_is_told_within_half_a_minute() -> None:
    with socket.socket() as held:  # bound and not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        keys = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{held.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        store = open_s3("s3://bucket/p", "bucket", "p", retry_s=2, variables=keys)
        began_s = time.monotonic()
        with pytest.raises(StoreError, match="s3://bucket/p/a: cannot be reached"):
            store.put("a", b"1")
        assert time.monotonic() - began_s < 30


@pytest.mark.parametrize(
    ("error", "reading", "kind", "text"),
    [
        (exceptions.NotFoundError("x NoSuchKey"), True, NotFoundError, "s3://b/k does not exist"),
        (exceptions.NotFoundError("x NoSuchBucket"), True, StoreError, "s3://b/k: the bucket does not exist"),
        (exceptions.NotFoundError("x"), False, StoreError, "s3://b/k: the bucket does not exist"),
        (exceptions.AlreadyExistsError("x"), False, AlreadyExistsError, "s3://b/k exists already"),
        (exceptions.PermissionDeniedError("x"), True, StoreError, "s3://b/k: access denied"),
        (exceptions.UnauthenticatedError("x"), True, StoreError, "s3://b/k: access denied"),
        (exceptions.GenericError("list: 403 Forbidden: y"), False, StoreError, "s3://b/k: access denied"),
        (exceptions.GenericError("first\nsecond"), True, StoreError, "s3://b/k: first"),
        (
            exceptions.GenericError("error sending request"),
            True,
            StoreError,
            "s3://b/k: cannot be reached: error",
        ),
    ],
)
def test_every_refusal_of_a_service_gets_its_own_word(error, reading, kind, text) -> None:
    explained = _explain(error, "s3://b/k", reading=reading)
    assert type(explained) is kind
    assert explained.message.startswith(text)
