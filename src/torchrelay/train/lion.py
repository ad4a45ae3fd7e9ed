"""The Lion optimizer (Chen et al. 2023, arXiv 2302.06675, algorithm 2): sign of an averaged gradient."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """One state tensor a parameter (`momentum`), half of AdamW's."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. `closure` is not used."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)

    def _update(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        grads = [p.grad for p in parameters if p.grad is not None]
        momenta = [self.state[p]["momentum"] for p in parameters]
        beta1, beta2 = group["betas"]
        directions = torch._foreach_lerp(grads, momenta, beta1)
        torch._foreach_sign_(directions)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, grads, 1 - beta2)
