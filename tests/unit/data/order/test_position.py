from dataclasses import replace

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.order.position import DataPosition, check_position

HERE = DataPosition(dataset_version="ab" * 32, seed=7, order_version=1, global_slot=1200)


def test_the_same_data_may_be_anywhere() -> None:
    check_position(HERE, replace(HERE, global_slot=0))


def test_another_version_is_refused_with_both_and_how_to_pin() -> None:
    with pytest.raises(DataError) as caught:
        check_position(HERE, replace(HERE, dataset_version="cd" * 32))
    assert "version abababababab of its data up to sample 1,200" in caught.value.message
    assert "cdcdcdcdcdcd" in caught.value.message
    assert "NAME@abababababab" in caught.value.hint


def test_another_seed_or_order_is_refused_with_both() -> None:
    with pytest.raises(DataError, match=r"run\.seed 7; now the seed is 8"):
        check_position(HERE, replace(HERE, seed=8))
    with pytest.raises(DataError, match="order version 1; this torchrelay has order version 2"):
        check_position(HERE, replace(HERE, order_version=2))
