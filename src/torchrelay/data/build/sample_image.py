"""Image files that come into a dataset: their type by their first bytes, and whether they can be decoded."""

import io
from typing import Any, NamedTuple

from torchrelay.data.build.sample_input import import_package
from torchrelay.data.image_decode import describe_failure

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
)
"""Names of files that are taken for images."""
OTHER = "other"
"""An image that is stored as png."""


class StoredImage(NamedTuple):
    """An image as the dataset holds it."""

    data: bytes
    kind: str
    """`jpeg` or `png`."""


def image_kind(data: bytes) -> str:
    """`jpeg`, `png` or `other`, by the first bytes."""
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    return "png" if data[:8] == b"\x89PNG\r\n\x1a\n" else OTHER


def check_image(data: bytes) -> StoredImage:
    """The image as it is stored: jpeg and png as they came, every other type as png (its first frame).

    Decodes it in full where Pillow is installed; ValueError that says why it cannot be decoded.
    DataError where Pillow is not installed and the image is of another type.
    """
    kind = image_kind(data)
    try:
        pillow = import_pillow("an image that is neither jpeg nor png") if kind == OTHER else _find_pillow()
        if pillow is None:
            return StoredImage(data, kind)
        with pillow.open(io.BytesIO(data)) as image:
            image.load()
            return StoredImage(data, kind) if kind != OTHER else StoredImage(_to_png(image), "png")
    except (OSError, SyntaxError, ValueError, IndexError) as error:
        raise ValueError(f"a broken image: {describe_failure(error)}") from error


def import_pillow(what: str) -> Any:
    """Pillow's module `Image`; DataError where it is not installed. `what` needs it."""
    return import_package("PIL.Image", what)


def png_of(image: Any) -> bytes:
    """A Pillow image as the bytes of a png file."""
    return _to_png(image)


def _find_pillow() -> Any:
    try:
        import PIL.Image
    except ModuleNotFoundError:
        return None
    return PIL.Image


def _to_png(image: Any) -> bytes:
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
