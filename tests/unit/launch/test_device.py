from pathlib import Path

import pytest

from torchrelay.launch.device import count_gpus


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """What NVIDIA's driver shows on a machine with four GPUs."""
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    return tmp_path


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert count_gpus({}, tmp_path / "missing") == 0
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path / "missing") == 0


def test_every_gpu_of_the_driver_counts(four: Path) -> None:
    assert count_gpus({}, four) == 4


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0", 1), ("1,3", 2), (" 0 , 2 ", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4), ("GPU-5ac1,GPU-77e0", 2)],
)
def test_only_visible_gpus_count(four: Path, visible: str, count: int) -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}, four) == count
