"""The one small exchange of every step: what all ranks must know before the weights change."""

from dataclasses import dataclass

import torch

from torchrelay.parallel.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One rank's part of a step, or the sum over all ranks."""

    loss_sum: float
    norm_share: float
    """Part of the squared norm of all gradients."""
    tokens: int
    bad_ranks: int
    """1 where this rank's loss is not finite."""
    stop: int
    """1 where this rank was asked to stop."""
    save: int
    """1 from rank 0 when a save is due."""
    validate: int
    """1 from rank 0 when a validation is due."""
    fetch: tuple[float, ...] = ()
    """What reading has cost this rank since its last vote, as `data.figures.Figures` counts it; empty on
    every rank where nothing is fetched."""


def count_votes(world: World, vote: Vote) -> Vote:
    """The sum of all ranks' votes, the same on every rank. A collective."""
    if world.size == 1:
        return vote
    values = torch.tensor(
        [
            vote.loss_sum,
            vote.norm_share,
            vote.tokens,
            vote.bad_ranks,
            vote.stop,
            vote.save,
            vote.validate,
            *vote.fetch,
        ],
        dtype=torch.float64,
    )
    loss_sum, norm_share, tokens, bad_ranks, stop, save, validate, *fetch = world.sum(values).tolist()
    return Vote(
        loss_sum=loss_sum,
        norm_share=norm_share,
        tokens=int(tokens),
        bad_ranks=int(bad_ranks),
        stop=int(stop),
        save=int(save),
        validate=int(validate),
        fetch=tuple(fetch),
    )
