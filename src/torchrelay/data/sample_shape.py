"""What is known of decoded samples before any is read: their arrays, and what their classes are called."""

from torchrelay.data.decode import IMAGE
from torchrelay.data.image_decode import choose_label, parse_image_options, read_size
from torchrelay.data.manifest import Content
from torchrelay.recipe.data_schema import DataSection

_NOTED = "label"
"""The column that a build makes of the classes."""


def find_arrays(section: DataSection, content: Content) -> dict[str, tuple[int, ...] | None] | None:
    """See `DataFacts.arrays`; RecipeError when the options of the image decoder do not fit."""
    if content.kind != "samples" or section.collate is not None:
        return None
    if section.decode is None:
        return {column.name: column.shape for column in content.columns}
    if section.decode != IMAGE:
        return None
    options = parse_image_options(section.decode_options)
    arrays: dict[str, tuple[int, ...] | None] = {
        "pixel_values": (options.channels, *(read_size(options) or (-1, -1)))
    }
    if choose_label(options, content.columns) is not None:
        arrays["labels"] = ()
    return arrays


def find_label_names(section: DataSection, content: Content) -> tuple[str, ...] | None:
    """See `DataFacts.label_names`; a column that the recipe chooses itself has no known names."""
    is_other = section.decode == IMAGE and section.decode_options.get("label", _NOTED) != _NOTED
    return None if is_other else content.label_names
