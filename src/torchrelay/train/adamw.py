"""AdamW on each rank's own part of the parameters, with torch's fused kernel and little else.

The update is elementwise, so shards need no DTensor dispatch. `torch.optim.AdamW(fused=True)`
spends most of a small model's update in Python; this spends it once, when state is made. The
results and the names of the state (`step`, `exp_avg`, `exp_avg_sq`) are the same bit for bit.

`torch._fused_adamw_` is not public; this file is the only one that uses it, and a test compares
it with torch's own optimizer.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class FusedAdamW:
    """See `torchrelay.train.optimizer.Optimizer`. For CPU and CUDA parameters."""

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "fused": True}
        self.param_groups: list[dict[str, Any]] = [{**defaults, **group} for group in groups]
        self.state: dict[nn.Parameter, dict[str, torch.Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        if len(parameters) < len(group["params"]):
            self._part_counters(group["params"])
        states = [self.state.get(p) or self._begin(p) for p in parameters]
        steps = [state["step"] for state in states]
        # Parameters begun together share one counter; resumed ones have their own.
        counters = list({id(step): step for step in steps}.values())
        torch._foreach_add_(counters, 1)
        torch._fused_adamw_(
            [_local(p) for p in parameters],
            [_local(p.grad) for p in parameters],
            [_local(state["exp_avg"]) for state in states],
            [_local(state["exp_avg_sq"]) for state in states],
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _part_counters(self, parameters: list[nn.Parameter]) -> None:
        """Parameters that sit this step out stop sharing their counter with those that do not."""
        for parameter in parameters:
            if parameter.grad is None and parameter in self.state:
                self.state[parameter]["step"] = self.state[parameter]["step"].clone()

    def _begin(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        counter = next((s["step"] for s in self.state.values() if not s["step"].any()), None)
        if counter is None:
            counter = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state = {
            "step": counter,
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        self.state[parameter] = state
        return state


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
