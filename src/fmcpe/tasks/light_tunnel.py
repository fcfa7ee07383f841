"""A light tunnel: infer the colour of a light and the angle of two polarisers from a photograph.

    θ = (R, G, B, α) ~ U([0, 255]³ × [0, 1]),   x = α (R, G, B)/255 inside a hexagon, black outside

is model F1 of the causal chambers, which has no noise; α = cos² of the angle between the polarisers. Real photographs are
either measured (``data=``) or come from a **stand-in**: model F3 with the published constants, a blurred edge, a dark offset,
shot noise and 8-bit quantisation (`light_tunnel_model`).

Under F1 a dim light and crossed polarisers give the same image: the posterior is a curve. Under the stand-in they differ,
since the polarisers leak differently in each channel.
"""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn

from fmcpe.nn.embeddings import ChannelsFirst
from fmcpe.tasks.base import RealSide, Reference, Side, Stream, Task
from fmcpe.tasks.chambers import Measurements, read_images
from fmcpe.tasks.light_tunnel_model import SIZE, Camera, Photographs, hexagon
from fmcpe.tasks.light_tunnel_reference import CameraReference, F1Reference


class LightTunnel(Task):
    """The light tunnel. Images are ``(64, 64, 3)``: row, column and channel, from 0 to 1.

    50 000 images take 2.3 GiB: simulate in batches.

    Args:
        data: Folder with the measured data set ``lt_camera_v1`` (see `fmcpe.tasks.download`); without it the task uses a
            stand-in.
        camera: Constants of the stand-in.
    """

    name = "light-tunnel"
    theta_names = ("R", "G", "B", "α")
    simulator_is_noisy = False
    data_label = "brightness"
    real_side: RealSide = "stand-in"

    def __init__(self, data: str | PathLike[str] | None = None, *, camera: Camera | None = None):
        from sbi.utils import BoxUniform

        self.x_shape = (SIZE, SIZE, 3)
        self.prior = BoxUniform(torch.zeros(4), torch.tensor([255.0, 255.0, 255.0, 1.0]))
        self._mask = hexagon().float()[:, :, None]
        self._photographs = Photographs(camera or Camera())
        self._measured: Measurements | None = None
        if data is not None:
            self._measured, self.real_side = read_images(data), "measured"

    @property
    def test_limit(self) -> int | None:
        """Number of measured test pairs; None for the stand-in."""
        return None if self._measured is None else self._measured.test_limit

    def embedding_net(self) -> nn.Module:
        """Two strided 2-d convolutions, the first over patches: (B, 64, 64, 3) to (B, 16).

        Disjoint 8 by 8 patches reach a lower validation loss than overlapping ones (stride 4, one more layer), in half the
        time.
        """
        return nn.Sequential(
            ChannelsFirst(),
            nn.Conv2d(3, 32, 8, stride=8),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 16, 64),
            nn.ReLU(),
            nn.Linear(64, 16),
        )

    def _simulate(self, theta: Tensor) -> Tensor:
        colour = (theta[:, :3].double() / 255 * theta[:, 3:]).float()
        return self._mask * colour[:, None, None]

    def _observe(self, theta: Tensor) -> Tensor:
        if self._measured is not None:
            raise self._measured.no_observe(self.name)
        return self._photographs.draw(theta)

    def _pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        if self._measured is None:
            return super()._pairs(n, stream, seed)
        return self._measured.pairs(n, stream, seed)

    def _reference(self, y: Tensor, side: Side) -> Reference:
        if side == "simulator":
            return F1Reference(y)
        if self._measured is not None:
            return super()._reference(y, side)
        return CameraReference(y, self._photographs)
