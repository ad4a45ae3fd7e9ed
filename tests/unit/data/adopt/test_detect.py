import pytest

from tests.unit.data.adopt.conftest import Place
from torchrelay.core.errors import DataError
from torchrelay.data.adopt.detect import find_data


@pytest.mark.parametrize(
    ("fixture", "layout"),
    [
        ("mds", "mds"),
        ("mds-zstd", "mds"),
        ("webdataset", "webdataset"),
        ("webdataset-gzip", "webdataset"),
        ("parquet", "parquet"),
        ("megatron", "megatron"),
        ("litdata", "litdata"),
        ("litdata-tokens", "litdata"),
    ],
)
def test_the_layout_is_told_by_the_files(place: Place, fixture: str, layout: str) -> None:
    place.put(fixture).data.put("notes/README.md", b"more")
    assert find_data(place.data.url, "auto", {})[0] == layout


def test_data_of_two_layouts_needs_to_be_told_which(place: Place) -> None:
    place.put("webdataset").put("megatron")
    with pytest.raises(DataError, match="holds data of several layouts: webdataset, megatron") as caught:
        place.adopt()
    assert "--kind" in caught.value.hint
    assert place.adopt(layout="megatron").manifest.content.format == "megatron"
    assert place.adopt("*.tar").manifest.content.format == "webdataset"


def test_an_empty_folder_is_told(place: Place) -> None:
    with pytest.raises(
        DataError, match=f"there is no data that can be adopted in {place.data.url}: it is empty"
    ):
        place.adopt()
    assert place.nothing_published()


def test_a_folder_of_other_files_is_told_with_what_there_is(place: Place) -> None:
    for number in range(3):
        place.data.put(f"{number}.jpg", b"")
    place.data.put("LICENSE", b"")
    with pytest.raises(DataError, match=r"the files there are 3 .jpg, 1 without a suffix") as caught:
        place.adopt()
    assert "torchrelay data build" in caught.value.hint


def test_the_wrong_layout_is_told(place: Place) -> None:
    with pytest.raises(DataError, match="there is no parquet data in"):
        place.put("webdataset").adopt(layout="parquet")


def test_an_index_json_of_something_else_is_no_layout(place: Place) -> None:
    place.data.put("index.json", b"{")
    place.data.put("a/index.json", b"[]")
    with pytest.raises(DataError, match="there is no data that can be adopted"):
        place.adopt()
