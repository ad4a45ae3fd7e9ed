"""How many GPUs this machine offers, without importing torch."""

import os
from collections.abc import Mapping
from pathlib import Path

_DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
"""One folder a GPU where NVIDIA's driver is loaded."""


def count_gpus(variables: Mapping[str, str] = os.environ, driver_folder: Path = _DRIVER_FOLDER) -> int:
    """GPUs that ranks may use: those of the driver, narrowed by CUDA_VISIBLE_DEVICES."""
    try:
        present = len(list(driver_folder.iterdir()))
    except OSError:
        return 0
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))
