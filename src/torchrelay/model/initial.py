"""First values of a decoder's parameters, one by one, so that sharded ones can be filled alone."""

import math

import torch

STD = 0.02


def initial_parameter(
    name: str, shape: torch.Size, generator: torch.Generator, *, scaled: frozenset[str], layers: int
) -> torch.Tensor:
    """A full fp32 CPU tensor: biases zero, norms one, matrices normal with a deviation of 0.02.

    Matrices whose module is named in `scaled` end a residual branch; theirs is divided by the root of
    2 × layers, so that the sum of all branches does not grow with depth.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    ends_branch = name.split(".")[-2] in scaled
    std = STD / math.sqrt(2 * layers) if ends_branch else STD
    return torch.empty(shape).normal_(0.0, std, generator=generator)
