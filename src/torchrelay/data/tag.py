"""Tags: names of one's own for versions. A tag is created once and never moved."""

import json

from torchrelay.core.clock import Clock, iso_time, system_clock
from torchrelay.core.errors import AlreadyExistsError, DataError
from torchrelay.data.dataset import read_tag
from torchrelay.data.layout import check_tag, tag_key
from torchrelay.data.manifest import SHOWN_DIGITS, Manifest
from torchrelay.store.base import Store


def create_tag(store: Store, manifest: Manifest, tag: str, *, clock: Clock = system_clock) -> bool:
    """Name a version; False where it has this tag already, DataError when another version has it."""
    check_tag(tag)
    content = json.dumps({"version": manifest.version, "created": iso_time(clock())}).encode() + b"\n"
    try:
        store.put(tag_key(manifest.name, tag), content, if_absent=True)
    except AlreadyExistsError as error:
        tagged = read_tag(store, manifest.name, tag)
        if tagged == manifest.version:
            return False
        raise DataError(
            f"{manifest.name}@{tag} is version {tagged[:SHOWN_DIGITS]} already; a tag is never moved, "
            "because runs rely on it",
            hint=f"choose another tag for version {manifest.short_version}, such as {tag}-2",
        ) from error
    return True
