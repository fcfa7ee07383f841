"""Base class of closed-form fits, whose tensors are saved with the posterior."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self


class Fitted(nn.Module):
    """Fitted tensors, as buffers in single precision."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.to(torch.float32))

    @classmethod
    def empty(cls, **shapes: int | tuple[int, ...]) -> Self:
        """Zero tensors of these shapes, to be loaded afterwards."""
        return cls(**{name: torch.zeros(shape) for name, shape in shapes.items()})
