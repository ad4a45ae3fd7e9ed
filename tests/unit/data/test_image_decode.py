import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.image_decode import ImageDecoder, middle_box, parse_image_options, random_box
from torchrelay.data.manifest import Column

COLUMNS = (Column(name="label", dtype="int64", shape=()), Column(name="photo", dtype="jpeg"))


def encode(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def make(*, columns: Any = COLUMNS, seed: int = 1, training: bool = True, **options: Any) -> ImageDecoder:
    return ImageDecoder(parse_image_options(options), columns, seed, training=training)


def noise(height: int = 40, width: int = 60) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_pixels_become_planes_from_0_to_1_and_the_label_an_int64() -> None:
    pixels = noise()
    found = make().decode({"photo": encode(pixels), "label": 3}, 0, 0)
    assert {name: (a.dtype.name, a.shape) for name, a in found.items()} == {
        "pixel_values": ("float32", (3, 40, 60)), "labels": ("int64", ())
    }  # fmt: skip
    np.testing.assert_allclose(found["pixel_values"], pixels.transpose(2, 0, 1) / 255, rtol=1e-6)
    assert found["labels"] == 3


def test_mean_and_std_are_of_each_channel() -> None:
    pixels = noise()
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    found = make(mean=mean, std=std).decode({"photo": encode(pixels), "label": 0}, 0, 0)["pixel_values"]
    expected = (pixels / 255 - mean) / std
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image_gives_the_channels_asked_for(mode: str, channels: int) -> None:
    image = Image.fromarray(noise()).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "TIFF")
    found = make(channels=channels).decode({"photo": buffer.getvalue(), "label": 0}, 0, 0)["pixel_values"]
    assert found.shape == (channels, 40, 60)
    expected = np.asarray(image.convert("RGB" if channels == 3 else "L"), np.float32).reshape(
        40, 60, channels
    )
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1) / 255, rtol=1e-6)


def test_crop_takes_the_middle_and_squash_takes_all() -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = 200
    data = {"photo": encode(pixels), "label": 0}
    crop = make(size=10).decode(data, 0, 0)["pixel_values"]
    squash = make(size=10, resize="squash").decode(data, 0, 0)["pixel_values"]
    assert crop.shape == squash.shape == (3, 10, 10)
    assert crop[:, :, 1:-1].min() > 0.75
    assert squash[:, :, 0].max() == 0 and squash[:, :, 5].min() > 0.5
    assert make(size=[8, 12]).decode(data, 0, 0)["pixel_values"].shape == (3, 8, 12)


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_with_about_the_same_result() -> None:
    ramp = np.linspace(0, 255, 640).astype(np.uint8)
    pixels = np.stack([np.tile(ramp, (480, 1))] * 3, axis=2)
    small = make(size=48).decode({"photo": encode(pixels, "JPEG", quality=95), "label": 0}, 0, 0)
    exact = make(size=48).decode({"photo": encode(pixels), "label": 0}, 0, 0)
    np.testing.assert_allclose(small["pixel_values"], exact["pixel_values"], atol=0.03)


def test_augmentation_depends_on_seed_epoch_and_sample_alone() -> None:
    data = {"photo": encode(noise()), "label": 0}

    def look(sample_id: int, epoch: int, **options: Any) -> bytes:
        chosen = {"size": 16, "augment": "crop_flip", **options}
        return make(**chosen).decode(data, sample_id, epoch)["pixel_values"].tobytes()

    assert look(5, 2) == look(5, 2)
    assert len({look(5, 2), look(6, 2), look(5, 3), look(5, 2, seed=2)}) == 4
    plain = make(size=16).decode(data, 0, 0)["pixel_values"].tobytes()
    assert look(5, 2, training=False) == plain


def test_half_of_the_images_are_flipped() -> None:
    pixels = noise()
    decoder = make(augment="flip")
    data = {"photo": encode(pixels), "label": 0}
    straight = make().decode(data, 0, 0)["pixel_values"]
    found = [decoder.decode(data, number, 0)["pixel_values"] for number in range(100)]
    flipped = [np.array_equal(image, straight[:, :, ::-1]) for image in found]
    assert all(flip or np.array_equal(image, straight) for flip, image in zip(flipped, found, strict=True))
    assert 30 < sum(flipped) < 70


def test_raw_pixels_are_images_too() -> None:
    pixels = noise()
    columns = (Column(name="image", dtype="uint8"),)
    found = make(columns=columns).decode({"image": pixels}, 0, 0)
    np.testing.assert_allclose(found["pixel_values"], pixels.transpose(2, 0, 1) / 255, rtol=1e-6)
    assert set(found) == {"pixel_values"}


@pytest.mark.parametrize("data", [b"", b"nothing", encode(noise(), "JPEG")[:-100], "text", 5])
def test_what_is_no_image_names_the_sample_and_the_column(data: Any) -> None:
    with pytest.raises(DataError, match="^the column 'photo' cannot be decoded as an image"):
        make().decode({"photo": data, "label": 0}, 17, 0)
    with pytest.raises(DataError, match="its type is not known"):
        make().decode({"photo": b"nothing", "label": 0}, 17, 0)


def test_a_label_that_is_no_number_is_named() -> None:
    data = {"photo": encode(noise(4, 4)), "label": "cat"}
    with pytest.raises(DataError, match="^the label 'label' is 'cat', not a whole number"):
        make().decode(data, 17, 0)
    assert make().decode({**data, "label": b"7"}, 17, 0)["labels"] == 7


@pytest.mark.parametrize(("names", "chosen"), [
    ((("a", "str"), ("b", "png")), "b"), ((("a", "jpeg"), ("image", "jpeg")), "image"),
    ((("x", "int64"), ("image", "bytes")), "image"),
])  # fmt: skip
def test_the_column_of_the_image_is_found(names: Any, chosen: str) -> None:
    columns = tuple(Column(name=name, dtype=dtype) for name, dtype in names)
    assert make(columns=columns).decode({chosen: encode(noise(4, 4))}, 0, 0)["pixel_values"].shape == (
        3,
        4,
        4,
    )


@pytest.mark.parametrize(("options", "reason"), [
    ({"colum": "a"}, r"data.decode_options.colum: unknown option; did you mean 'column'\?"),
    ({"size": 0}, "data.decode_options.size"), ({"size": [1, 2, 3]}, r"write one number, or \[height"),
    ({"resize": "fit"}, "data.decode_options.resize"), ({"mean": [0.5]}, "mean has 1 values for 3 channels"),
    ({"std": [1.0, 0.0, 1.0]}, "are not all above 0"), ({"augment": "crop_flip"}, "crop_flip needs a size"),
    ({"column": "foto"}, r"no column 'foto'; did you mean 'photo'\?"),
    ({"label": "lable"}, "no column 'lable'"),
    ({"size": -1, "channels": 2}, "(?s)size.*channels"),
])  # fmt: skip
def test_wrong_options_are_named_all_at_once(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        make(**options)


def test_a_dataset_without_an_image_is_told() -> None:
    with pytest.raises(RecipeError, match="does not know which column holds the image"):
        make(columns=(Column(name="a", dtype="jpeg"), Column(name="b", dtype="png")))


_SIZE = st.tuples(st.integers(1, 2000), st.integers(1, 2000))


@given(size=_SIZE, target=_SIZE)
def test_the_middle_is_inside_and_of_the_form_of_the_target(size: tuple[int, int], target: Any) -> None:
    box = middle_box(size, target)
    assert 0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1
    width, height = (box.right - box.left) * size[0], (box.bottom - box.top) * size[1]
    assert width / height == pytest.approx(target[1] / target[0], rel=1e-6)
    assert max(box.right - box.left, box.bottom - box.top) == pytest.approx(1)


@given(size=_SIZE, target=_SIZE, seed=st.integers(0, 1000))
def test_a_random_part_is_inside_and_not_too_small(size: tuple[int, int], target: Any, seed: int) -> None:
    box = random_box(np.random.default_rng(seed), size, target)
    if box is not None:
        assert 0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1
        assert (box.right - box.left) * (box.bottom - box.top) > 0.079
