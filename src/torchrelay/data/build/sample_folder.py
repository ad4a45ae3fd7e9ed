"""Images in folders: every sub-folder is a class, or all images are of none.

Where the folder holds `train`, `validation` (or `val`) and perhaps `test`, those are the splits, and
the classes are the folders in them.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import parse_split, say_count
from torchrelay.data.build.files import Stamp, hash_parts, stamp_file
from torchrelay.data.build.sample_image import SUFFIXES
from torchrelay.data.build.sample_input import UNIT_BYTES, UNIT_FILES, BadSample, ImageBytes, RawSample
from torchrelay.data.manifest import TRAIN

IMAGE = "image"
LABEL = "label"
_HEAD_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUnit:
    """Some images of one split; see `SampleUnit`."""

    id: str
    """See `SampleUnit.id`."""
    root: Path
    """Folder of the split."""
    names: tuple[str, ...]
    """Paths below it."""
    labelled: bool
    split: str | None
    size: int

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        more = len(self.names) - 1
        return f"{self.root / self.names[0]}" + (f" and {more:,} more" if more else "")

    def prepared(self) -> "ImageUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`."""
        return self._read(-1)

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self._read(_HEAD_BYTES)

    def _read(self, most: int) -> Iterator[RawSample | BadSample]:
        for name in self.names:
            path = self.root / name
            try:
                with path.open("rb") as file:
                    data = file.read(most)
            except OSError as error:
                yield BadSample(str(path), f"cannot be read: {error.strerror}")
                continue
            values: dict[str, Any] = {IMAGE: ImageBytes(data)}
            if self.labelled:
                values[LABEL] = name.split("/", 1)[0]
            yield RawSample(values, str(path), name)


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """All images below a folder; see `SampleInput`. Columns: `image`, and `label` where there are classes."""

    folder: Path

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return LABEL

    def units(self) -> Sequence[ImageUnit]:
        """See `SampleInput.units`; sorted by path."""
        units = [unit for split, root in self._roots() for unit in _divide(root, split)]
        if len({unit.labelled for unit in units}) > 1:
            raise DataError(f"some splits of {self.folder} have folders for classes and some have none")
        return units

    def label_names(self) -> None:
        """See `SampleInput.label_names`; they are found by reading."""

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"images": str(self.folder)}

    def _roots(self) -> list[tuple[str | None, Path]]:
        """The folders of the splits, or the folder itself."""
        root = self.folder.expanduser()
        try:
            folders = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
            splits = [(parse_split(path.name, str(root)), path) for path in folders]
        except OSError as error:
            raise DataError(f"cannot read the folder {root}: {error.strerror}") from error
        except DataError:  # a folder that is no split
            return [(None, root)]
        if [split for split, _ in splits] == [TRAIN]:
            return [(None, splits[0][1])]  # nothing is given for the others, so a hash decides
        return list(splits) if TRAIN in dict(splits) else [(None, root)]


def _divide(root: Path, split: str | None) -> Iterator[ImageUnit]:
    stamps = sorted(_list_images(root))
    if not stamps:
        raise DataError(
            f"there is no image below {root}", hint=f"images end with {', '.join(sorted(SUFFIXES))}"
        )
    loose = [stamp.path for stamp in stamps if "/" not in stamp.path]
    if loose and len(loose) < len(stamps):
        raise DataError(
            f"{root / loose[0]} is in no class: {say_count(len(loose), 'image')} beside the folders of "
            "the classes",
            hint="move them into folders, one for each class, or put all images into one folder",
        )
    group: list[Stamp] = []
    total = 0
    for stamp in stamps:
        if group and (total + stamp.size > UNIT_BYTES or len(group) == UNIT_FILES):
            yield _unit(root, split, group)
            group, total = [], 0
        group.append(stamp)
        total += stamp.size
    yield _unit(root, split, group)


def _unit(root: Path, split: str | None, stamps: list[Stamp]) -> ImageUnit:
    return ImageUnit(
        id=hash_parts("images", str(root), split, stamps),
        root=root,
        names=tuple(stamp.path for stamp in stamps),
        labelled="/" in stamps[0].path,
        split=split,
        size=sum(stamp.size for stamp in stamps),
    )


def _list_images(root: Path) -> Iterator[Stamp]:
    """Every image, its path below `root`; hidden files and folders are left out."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name[0] != "."]
        for file in files:
            if file[0] != "." and os.path.splitext(file)[1].lower() in SUFFIXES:
                path = Path(folder, file)
                yield stamp_file(path)._replace(path=path.relative_to(root).as_posix())
