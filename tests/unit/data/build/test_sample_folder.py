from pathlib import Path

import pytest

from tests.unit.data.build.sample_support import bad, build, good, picture
from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_folder
from torchrelay.data.build.sample_folder import ImageFolder


def write(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture("PNG" if name.endswith("png") else "JPEG", seed=number))
    return root


def test_sub_folders_are_classes_in_their_order(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "dog/2.jpg", "cat/deep/1.jpg", "cat/9.jpeg", ".hidden/x.jpg", "ant/a.JPG")
    built = build(ImageFolder(root))
    assert built.plan.label_names == ("ant", "cat", "dog")
    assert built.columns == {"image": ("jpeg", None), "label": ("int64", ())}
    assert [sample["label"] for sample in built.samples] == [0, 1, 1, 2]
    assert built.samples[1]["image"] == (root / "cat/9.jpeg").read_bytes()


def test_images_of_one_folder_have_no_class(tmp_path: Path) -> None:
    built = build(ImageFolder(write(tmp_path, "b.png", "a.png")))
    assert built.plan.label_names is None
    assert built.columns == {"image": ("png", None)}


def test_images_of_other_types_are_stored_as_png_and_told(tmp_path: Path) -> None:
    root = write(tmp_path, "a.png", "b.png")
    (root / "b.bmp").write_bytes(picture("BMP"))
    built = build(ImageFolder(root))
    assert built.columns == {"image": ("png", None)}
    (note,) = built.plan.notes
    assert note.startswith("column 'image': 1 image neither jpeg nor png, stored as png")
    assert f"{root}/b.bmp" in note


def test_images_of_both_types_are_bytes(tmp_path: Path) -> None:
    assert build(ImageFolder(write(tmp_path, "b.png", "a.jpg"))).columns == {"image": ("bytes", None)}


def test_folders_called_as_splits_are_the_splits(tmp_path: Path) -> None:
    root = write(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/b/3.jpg", "train/b/4.jpg")
    built = build(ImageFolder(root))
    splits = [item.split for item in built.encoded]
    assert splits == ["test", "train", "train", "validation"]
    assert [sample["label"] for sample in built.samples] == [1, 0, 1, 0]


def test_a_class_may_be_called_as_a_split(tmp_path: Path) -> None:
    built = build(ImageFolder(write(tmp_path, "train/1.jpg", "car/2.jpg")))
    assert built.plan.label_names == ("car", "train")


def test_an_image_in_no_class_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"loose.jpg is in no class: 1 image beside"):
        ImageFolder(write(tmp_path, "a/1.jpg", "loose.jpg")).units()


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(DataError, match="there is no image below"):
        ImageFolder(tmp_path).units()
    with pytest.raises(DataError, match="cannot read the folder"):
        ImageFolder(tmp_path / "none").units()


def test_units_are_bounded_and_keep_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, *[f"a/{number}.jpg" for number in range(7)])
    whole = [sample.key for sample in good(ImageFolder(root))]
    monkeypatch.setattr(sample_folder, "UNIT_FILES", 3)
    source = ImageFolder(root)
    assert [len(unit.names) for unit in source.units()] == [3, 3, 1]
    assert [sample.key for sample in good(source)] == whole
    assert len({unit.id for unit in source.units()}) == 3


def test_a_unit_changes_its_id_with_its_files(tmp_path: Path) -> None:
    root = write(tmp_path, "a/1.jpg", "a/2.jpg")
    before = ImageFolder(root).units()[0].id
    assert ImageFolder(root).units()[0].id == before
    (root / "a/2.jpg").write_bytes(b"other")
    assert ImageFolder(root).units()[0].id != before


def test_a_broken_image_is_named_or_skipped(tmp_path: Path) -> None:
    root = write(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg")
    (root / "a/2.jpg").write_bytes((root / "a/2.jpg").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a/2.jpg: column 'image': a broken image"):
        build(ImageFolder(root))
    built = build(ImageFolder(root), on_bad="skip")
    assert len(built.samples) == 2
    assert len(built.problems) == 1 and "a/2.jpg" in built.problems[0]


def test_an_image_that_is_gone_is_bad(tmp_path: Path) -> None:
    source = ImageFolder(write(tmp_path, "1.jpg", "2.jpg"))
    units = source.units()
    (tmp_path / "2.jpg").unlink()
    found = list(units[0].samples())
    assert "cannot be read" in found[1].why
    assert bad(ImageFolder(tmp_path)) == []


def test_a_survey_reads_only_the_first_bytes(tmp_path: Path) -> None:
    unit = ImageFolder(write(tmp_path, "1.jpg")).units()[0]
    assert [len(sample.values["image"]) for sample in unit.preview()] == [64]


def test_a_train_folder_alone_gives_no_splits(tmp_path: Path) -> None:
    units = ImageFolder(write(tmp_path, "train/a/1.jpg", "train/b/2.jpg")).units()
    assert {(unit.split, unit.root.name) for unit in units} == {(None, "train")}
