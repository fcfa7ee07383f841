"""Settings of the authors' published code for the tasks of the paper."""

from __future__ import annotations

from typing import Any

from fmcpe.candidates.paper import Paper


def paper_settings(task: str) -> Paper:
    """The settings of the authors' published code for a task of the paper.

    Learning rate 1e-3 with cosine decay, gradients clipped at 5 per network, 50 Euler steps, and epochs, batch size,
    source and widths by task. ``docs/deviations.md`` lists other differences of the published code.

    Args:
        task: ``"gaussian"``, ``"pendulum"``, ``"wind-tunnel"`` or ``"light-tunnel"``.

    Example:
        >>> recipe = fmcpe.paper_settings("pendulum")
        >>> recipe.epochs, recipe.sigma
        (300, 0.05)
        >>> method = fmcpe.FMCPE(base, simulator, recipe=recipe)
    """
    up = (32, 64, 128, 256)
    down = up[::-1]
    embedded = {"x_head": "embedding", "embedding_dim": 10, "hidden_theta": up + down}
    settings: dict[str, dict[str, Any]] = {
        "gaussian": {"epochs": 200, "source": "normal", "hidden_x": (64,) * 5, "hidden_theta": (64,) * 5},
        "pendulum": embedded | {"epochs": 300, "sigma": 0.05, "hidden_x": (*up, 512, *down)},
        "wind-tunnel": embedded
        | {"epochs": 200, "sigma": 0.5, "batch_size": 100, "hidden_x": up + down, "hidden_theta": up + down[1:]},
        "light-tunnel": embedded | {"epochs": 500, "sigma": 0.05, "batch_size": 16, "hidden_x": up[:3] + down[1:]},
    }
    if not isinstance(task, str) or task not in settings:
        raise ValueError(
            f"Expected one of the paper's tasks ({', '.join(settings)}), got {task!r}. For other problems use "
            'recipe="paper", or Paper(sigma=...).'
        )
    return Paper(clip=5.0, schedule="cosine", **settings[task])
