from itertools import product

import numpy as np

from torchrelay.data.readings.randomness import sample_generator


def test_what_is_drawn_belongs_to_seed_epoch_and_sample() -> None:
    keys = list(product((0, 1, 2, 2**63 - 1), range(4), (0, 1, 7, 2**40)))
    drawn = {key: tuple(sample_generator(*key).integers(0, 2**60, 3).tolist()) for key in keys}
    assert len(set(drawn.values())) == len(keys)
    assert drawn == {key: tuple(sample_generator(*key).integers(0, 2**60, 3).tolist()) for key in keys}


def test_neighbours_have_nothing_to_do_with_each_other() -> None:
    drawn = np.array([sample_generator(1, epoch, n).random() for epoch in range(20) for n in range(100)])
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.08
    assert abs(drawn.mean() - 0.5) < 0.03
