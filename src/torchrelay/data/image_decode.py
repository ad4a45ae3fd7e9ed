"""`data.decode: image`: from the bytes of an image to what image models take.

Gives `pixel_values` float32 [channels, height, width], (pixel / 255 - mean) / std, and `labels` int64
where there is a label. Only Pillow is used, and only when images are decoded.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.core.plugins import nearest
from torchrelay.data.formats.sample import Sample, Value
from torchrelay.data.manifest import Column
from torchrelay.data.readings.randomness import SampleRandomness
from torchrelay.recipe.invalid import key_path, say_invalid
from torchrelay.recipe.types import Listed, PositiveInt, Section

_WHERE = "data.decode_options"
_LABELS = ("label", "labels", "cls")
_IMAGES = ("jpeg", "png")
_SMALLEST_AREA = 0.08
_NARROWEST = 3 / 4
_TRIES = 10


class ImageOptions(Section):
    """What `data.decode_options` may hold for `data.decode: image`."""

    column: str | None = None
    """Column of the image. Default: the only jpeg or png column, else the one called `image`."""
    label: str | None = None
    """Column of the class. Default: `label`, `labels` or `cls`, where there is such a column."""
    size: PositiveInt | Listed[PositiveInt] | None = None
    """Height and width, or one number for both. Default: as stored, so all must be alike."""
    resize: Literal["crop", "squash"] = "crop"
    """crop: the middle, as large as fits. squash: all of it, whatever its sides."""
    mean: Listed[float] = ()
    """For each channel, of pixels from 0 to 1. Default: 0."""
    std: Listed[float] = ()
    """For each channel. Default: 1."""
    augment: Literal["none", "flip", "crop_flip"] = "none"
    """While training: flip half of the images; crop_flip: also cut out a random part of 8 % to all."""
    channels: Literal[1, 3] = 3
    """1: grey."""


class Box(NamedTuple):
    """A part of an image, as shares of its width and height."""

    left: float
    top: float
    right: float
    bottom: float


class ImageDecoder:
    """Decodes images. Thread-safe; see `decode.make_decoder`."""

    def __init__(
        self, options: ImageOptions, columns: Sequence[Column], seed: int, *, training: bool
    ) -> None:
        """RecipeError when the options or columns do not fit; DataError where Pillow is not installed."""
        self._pillow = _import_pillow()
        self._options = options
        self._column = _choose_column(options, columns)
        self._label = choose_label(options, columns)
        self._size = read_size(options)
        self._mode = "RGB" if options.channels == 3 else "L"
        self._randomness = SampleRandomness(seed)
        self._augment = options.augment if training else "none"
        scale, shift = _read_scale(options)
        self._scale = scale[:, None, None]
        self._shift = shift[:, None, None] if shift.any() else None

    def decode(self, sample: Sample, sample_id: int, epoch: int) -> dict[str, NDArray[Any]]:
        """See `readings.samples.Decoder`; DataError that names the column when it holds no image."""
        try:
            pixels = self._pixels(sample[self._column], sample_id, epoch)
        except Exception as error:  # Pillow has no base for what a damaged image makes it raise
            raise DataError(
                f"the column {self._column!r} cannot be decoded as an image: {describe_failure(error)}",
                hint="torchrelay data verify tells whether the data is damaged",
            ) from error
        arrays: dict[str, NDArray[Any]] = {"pixel_values": self._normalise(pixels)}
        if self._label is not None:
            arrays["labels"] = _read_label(sample[self._label], self._label)
        return arrays

    def _pixels(self, value: Value, sample_id: int, epoch: int) -> NDArray[np.uint8]:
        """Bytes of the pixels, [height, width] or [height, width, channels]."""
        image = self._open(value)
        box, flip = self._choose_view(image.size, sample_id, epoch)
        if self._size is not None:
            height, width = self._size
            wanted = (width / (box.right - box.left), height / (box.bottom - box.top))
            image.draft(self._mode, (math.ceil(wanted[0]), math.ceil(wanted[1])))
        if image.mode != self._mode:
            image = image.convert(self._mode)
        if self._size is not None:
            across, down = image.size
            part = (box.left * across, box.top * down, box.right * across, box.bottom * down)
            image = image.resize((width, height), self._pillow.Resampling.BILINEAR, box=part)
        pixels: NDArray[np.uint8] = np.asarray(image)
        return pixels[:, ::-1] if flip else pixels

    def _open(self, value: Value) -> Any:
        if isinstance(value, np.ndarray):
            return self._pillow.fromarray(np.ascontiguousarray(value))
        if not isinstance(value, bytes):
            raise TypeError(f"it holds {type(value).__name__}")
        return self._pillow.open(io.BytesIO(value))

    def _choose_view(self, size: tuple[int, int], sample_id: int, epoch: int) -> tuple[Box, bool]:
        """Which part is seen, and whether it is flipped."""
        if self._size is None or self._options.resize == "squash":
            box = Box(0.0, 0.0, 1.0, 1.0)
        else:
            box = middle_box(size, self._size)
        if self._augment == "none":
            return box, False
        rng = self._randomness.generator(epoch, sample_id)
        flip = rng.random() < 0.5
        if self._augment == "crop_flip" and self._size is not None:
            box = random_box(rng, size, self._size) or box
        return box, flip

    def _normalise(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        values = np.empty(planes.shape, np.float32)
        np.multiply(planes, self._scale, out=values)
        if self._shift is not None:
            values += self._shift
        return values


def parse_image_options(options: Mapping[str, Any]) -> ImageOptions:
    """The options of a recipe; RecipeError that lists all that is wrong."""
    try:
        return ImageOptions.model_validate(dict(options))
    except ValidationError as error:
        problems = [_say_problem(item) for item in error.errors()]
        raise RecipeError(
            "\n".join(problems), hint=f"options: {', '.join(ImageOptions.model_fields)}"
        ) from error


def describe_failure(error: Exception) -> str:
    """Why Pillow could not decode an image; its own words for an unknown type tell a place in memory."""
    return (
        "its type is not known"
        if type(error).__name__ == "UnidentifiedImageError"
        else str(error) or repr(error)
    )


def middle_box(size: tuple[int, int], target: tuple[int, int]) -> Box:
    """The largest part in the middle of an image (width, height), of the form of `target` (height, width)."""
    ratio = (target[1] / target[0]) / (size[0] / size[1])
    across, down = min(1.0, ratio), min(1.0, 1 / ratio)
    return Box((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)


def random_box(rng: np.random.Generator, size: tuple[int, int], target: tuple[int, int]) -> Box | None:
    """A part with 8 % to all of the area, its sides up to a third longer or shorter than those of
    `target` (height, width); None where none was found.
    """
    shape = (target[1] / target[0]) / (size[0] / size[1])
    for _ in range(_TRIES):
        area = rng.uniform(_SMALLEST_AREA, 1.0)
        ratio = shape * math.exp(rng.uniform(math.log(_NARROWEST), -math.log(_NARROWEST)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= 1 and down <= 1:
            left, top = rng.uniform(0, 1 - across), rng.uniform(0, 1 - down)
            return Box(left, top, min(1.0, left + across), min(1.0, top + down))
    return None


def _import_pillow() -> Any:
    try:
        import PIL.Image
    except ModuleNotFoundError as error:
        raise DataError(
            "data.decode: image needs the package pillow", hint="pip install 'torchrelay[data]'"
        ) from error
    return PIL.Image


def _choose_column(options: ImageOptions, columns: Sequence[Column]) -> str:
    names = [column.name for column in columns]
    if options.column is not None:
        return _known(options.column, names, "column")
    found = [column.name for column in columns if column.dtype in _IMAGES]
    if len(found) != 1:
        found = [name for name in names if name == "image"]
    if not found:
        raise RecipeError(
            "data.decode: image does not know which column holds the image",
            hint=f"set {_WHERE}: {{column: NAME}}; columns: {', '.join(names)}",
        )
    return found[0]


def choose_label(options: ImageOptions, columns: Sequence[Column]) -> str | None:
    """The column that becomes `labels`, or None; RecipeError when the one that is named is not there."""
    names = [column.name for column in columns]
    if options.label is not None:
        return _known(options.label, names, "label")
    return next((name for name in _LABELS if name in names), None)


def _known(name: str, names: list[str], option: str) -> str:
    if name not in names:
        raise RecipeError(
            f"{_WHERE}.{option}: the dataset has no column {name!r}{nearest(name, names)}",
            hint=f"columns: {', '.join(names)}",
        )
    return name


def read_size(options: ImageOptions) -> tuple[int, int] | None:
    """Height and width that every image gets, None where they stay as stored; RecipeError when unfit."""
    if options.size is None:
        if options.augment == "crop_flip":
            raise RecipeError(f"{_WHERE}: augment: crop_flip needs a size", hint="set size: 224, for example")
        return None
    if isinstance(options.size, int):
        return options.size, options.size
    if len(options.size) != 2:
        raise RecipeError(f"{_WHERE}.size: write one number, or [height, width], not {list(options.size)}")
    return options.size[0], options.size[1]


def _read_scale(options: ImageOptions) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What pixels from 0 to 255 are multiplied with, and what is added then, for each channel."""
    count = options.channels
    for name, given in (("mean", options.mean), ("std", options.std)):
        if len(given) not in (0, count):
            raise RecipeError(f"{_WHERE}.{name} has {len(given)} values for {count} channels")
    mean = np.array(options.mean or [0.0] * count)
    std = np.array(options.std or [1.0] * count)
    if (std <= 0).any():
        raise RecipeError(f"{_WHERE}.std: {list(options.std)} are not all above 0")
    return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)


def _read_label(value: Value, column: str) -> NDArray[np.int64]:
    try:
        return np.array(int(value), np.int64)  # type: ignore[arg-type]  # what is no number raises
    except (ValueError, TypeError) as error:
        raise DataError(
            f"the label {column!r} is {value!r}, not a whole number",
            hint=f"set {_WHERE}.label to the column that holds the class",
        ) from error


def _say_problem(item: Any) -> str:
    path = f"{_WHERE}.{key_path(item['loc'])}"
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown option{nearest(str(item['loc'][0]), list(ImageOptions.model_fields))}"
    return f"{path}: {say_invalid(item)}"
