import socket
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

from torchrelay.core.errors import NotFoundError, StoreError
from torchrelay.store.objects import ObjectStore
from torchrelay.store.services import open_memory, open_s3


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
    assert outer.list_folders("") == ["inner", "inner-not"]


def test_an_error_of_the_body_is_not_taken_for_one_of_the_store(store: ObjectStore) -> None:
    with pytest.raises(FileNotFoundError, match="own"), store.open_writer("a"):
        raise FileNotFoundError("the body's own file")
    with pytest.raises(NotFoundError):
        store.get("a")


def test_any_buffer_is_put(store: ObjectStore) -> None:
    import numpy as np

    numbers = np.arange(6, dtype="<u2").reshape(2, 3)
    store.put("a", memoryview(numbers))
    assert store.get("a") == numbers.tobytes()


_FORK = """
    import os
    from torchrelay.core.errors import StoreError
    from torchrelay.store.open import open_store
    store = open_store("memory://x")
    {used}
    child = os.fork()
    if child == 0:
        caught = 0
        acts = (
            lambda: store.get("a"), lambda: store.put("b", b"1"), lambda: list(store.list("a")),
            lambda: store.list_folders("a"), lambda: next(store.stream("a")),
            lambda: store.delete("a"), lambda: store.open_writer("c").__enter__(),
            lambda: open_store("memory://y"), lambda: open_store("s3://bucket"),
        )
        for act in acts:
            try:
                act()
            except StoreError as error:
                caught += "forked" in str(error) and "spawn" in error.hint
        os._exit(caught)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    store.put("z", b"1")
    print(store.get("z"))
"""


@pytest.mark.parametrize(("used", "refused"), [('store.put("a", b"1")', "9"), ("pass", "0")])
def test_a_forked_child_is_told_instead_of_hanging_once_a_store_was_used(used: str, refused: str) -> None:
    program = textwrap.dedent(_FORK.format(used=used))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == [refused, "b'1'"]


def test_an_endpoint_that_refuses_is_told_with_how_often_it_was_tried() -> None:
    with socket.socket() as held:  # bound and not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        keys = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{held.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        store = open_s3("s3://bucket/p", "bucket", "p", retry_s=2, variables=keys)
        began_s = time.monotonic()
        told = (
            r"s3://bucket/p/a: cannot be reached: connection refused; tried \d times in [0-9.]+ s \(\d × con"
        )
        with pytest.raises(StoreError, match=told):
            store.put("a", b"1")
        assert time.monotonic() - began_s < 10
