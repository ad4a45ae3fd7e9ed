import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.index_json import IndexFile, read_index_file
from torchrelay.store.open import open_store


def test_names_are_relative_to_the_folder_of_the_file() -> None:
    assert IndexFile("u/a/index.json", "a", {}).key("b/c.mds") == "a/b/c.mds"
    assert IndexFile("u/index.json", "", {}).key("./c.mds") == "c.mds"
    assert IndexFile("u/a/b/index.json", "a/b", {}).key("../c.mds") == "a/c.mds"


@pytest.mark.parametrize("name", ["../c.mds", "/etc/c.mds", "x/../../../c"])
def test_a_name_outside_of_the_base_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="u/index.json names .*, which lies outside of its folder"):
        IndexFile("u/index.json", "", {}).key(name)


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "is not valid JSON"), (b"[]", "is not a JSON object")]
)
def test_a_file_that_is_no_json_object_is_named(content: bytes, message: str) -> None:
    store = open_store("memory://index-json")
    store.put("a/index.json", content)
    with pytest.raises(DataError, match=f"memory://index-json.*/a/index.json {message}"):
        read_index_file(store, "a/index.json")
