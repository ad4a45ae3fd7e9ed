from dataclasses import astuple, fields

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpoint.support import ALONE
from torchrelay.train.agreement import Vote, count_votes

flags = st.integers(0, 1)
votes = st.builds(
    Vote,
    loss_sum=st.floats(-1e6, 1e6),
    norm_share=st.floats(0, 1e6),
    tokens=st.integers(0, 2**40),
    bad_ranks=flags,
    stop=flags,
    save=flags,
    validate=flags,
    fetch=st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)),
)


class Together:
    """Ranks that exchange through one another's hands: `sum` adds what the others brought."""

    def __init__(self, others: list[Vote]) -> None:
        self.size = len(others) + 1
        self._others = others

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        for vote in self._others:
            values += torch.tensor([*astuple(vote)[:-1], *vote.fetch], dtype=torch.float64)
        return values


@given(st.lists(votes, min_size=2, max_size=5))
def test_all_votes_are_added_field_by_field(cast: list[Vote]) -> None:
    total = count_votes(Together(cast[1:]), cast[0])  # type: ignore[arg-type]  # size and sum are all it needs
    columns = zip(*(vote.fetch for vote in cast), strict=True)
    assert total.fetch == tuple(sum(column, 0.0) for column in columns)
    for field in fields(Vote)[:-1]:
        expected = 0.0
        for vote in cast:
            expected += getattr(vote, field.name)
        assert getattr(total, field.name) == expected
        assert isinstance(getattr(total, field.name), float if field.type is float else int)


def test_one_rank_that_was_asked_to_stop_stops_all() -> None:
    quiet = Vote(loss_sum=1.0, norm_share=0.0, tokens=8, bad_ranks=0, stop=0, save=0, validate=0)
    asked = Vote(loss_sum=1.0, norm_share=0.0, tokens=8, bad_ranks=0, stop=1, save=0, validate=0)
    for own, others in ((quiet, [quiet, asked]), (asked, [quiet, quiet])):
        assert count_votes(Together(others), own).stop == 1  # type: ignore[arg-type]  # as above
    assert count_votes(Together([quiet]), quiet).stop == 0  # type: ignore[arg-type]  # as above


@given(votes)
def test_alone_one_vote_is_the_result(vote: Vote) -> None:
    assert count_votes(ALONE, vote) is vote
