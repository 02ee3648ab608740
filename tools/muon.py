"""Muon, which steps a weight matrix along its orthogonalised momentum; matrices of one shape go as one batch.

The update is `torch.optim.Muon`'s with `adjust_lr_fn="match_rms_adamw"`. That one takes the matrices singly,
which at the size of the embedded models costs more than the rest of the training step.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalised(batch: torch.Tensor) -> torch.Tensor:
    """Each matrix with its singular values brought near one, by five Newton-Schulz steps in bf16."""
    a, b, c = NEWTON_SCHULZ
    tall = batch.shape[-2] > batch.shape[-1]
    x = (batch.mT if tall else batch).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Its learning rate and weight decay mean what AdamW's mean."""

    def __init__(
        self, matrices: Iterable[torch.Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        by_shape = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        groups = [{"params": same} for same in by_shape.values()]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            weights, lr, momentum = group["params"], group["lr"], group["momentum"]
            gradient = torch.stack([weight.grad for weight in weights])
            state = self.state[weights[0]]
            average = state.setdefault("average", torch.zeros_like(gradient))
            average.lerp_(gradient, 1 - momentum)
            update = orthogonalised(gradient.lerp(average, momentum))
            scale = 0.2 * max(gradient.shape[-2:]) ** 0.5
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            torch._foreach_add_(weights, update.unbind(), alpha=-lr * scale)
