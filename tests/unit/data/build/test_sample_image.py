import io
import sys

import numpy as np
import pytest
from PIL import Image

from tests.unit.data.build.sample_support import picture
from torchrelay.core.errors import DataError
from torchrelay.data.build.sample_image import check_image, image_kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_jpeg_and_png_are_stored_as_they_came(kind: str) -> None:
    data = picture(kind)
    assert check_image(data) == (data, kind.lower())


@pytest.mark.parametrize(("kind", "mode"), [("BMP", "RGB"), ("GIF", "P"), ("WEBP", "RGB"), ("TIFF", "CMYK")])
def test_other_types_are_stored_as_png_without_loss(kind: str, mode: str) -> None:
    data = picture(kind, mode=mode)
    stored = check_image(data)
    assert stored.kind == "png" == image_kind(stored.data)
    before, after = (Image.open(io.BytesIO(content)).convert("RGB") for content in (data, stored.data))
    np.testing.assert_array_equal(np.asarray(before), np.asarray(after))


@pytest.mark.parametrize("damage", [lambda d: d[:-20], lambda d: d[:30], lambda d: b"\xff\xd8\xff nothing"])
def test_a_broken_image_is_refused(damage: object) -> None:
    with pytest.raises(ValueError, match="a broken image"):
        check_image(damage(picture("JPEG", size=(64, 64))))
    with pytest.raises(ValueError, match="a broken image: its type is not known"):
        check_image(b"GIF89a but no more")


def test_without_pillow_only_jpeg_and_png_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other = picture("PNG"), picture("BMP")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert check_image(whole[:40]) == (whole[:40], "png")
    with pytest.raises(DataError, match="needs the package pillow"):
        check_image(other)
