"""What a simulator may return."""

import math

import pytest
import torch

from fmcpe._simulator import CheckedSimulator


def returned(*values):
    """What comes through of a simulator that returns these numbers in its second row."""
    x = torch.zeros(3, 2, 2)
    x[1].view(-1)[: len(values)] = torch.tensor(values)
    return CheckedSimulator(lambda theta: x[theta[:, 0].long()], None)(torch.arange(3.0)[:, None])


@pytest.mark.parametrize("values", [(math.nan,), (math.inf,), (-math.inf, math.inf), (3e38, 3e38, math.nan)])
def test_simulations_that_are_not_finite_are_refused(values):
    with pytest.raises(ValueError, match="NaN or infinite values for 1 of 3 rows"):
        returned(*values)


def test_large_simulations_are_fine_though_their_sum_overflows():
    assert returned(3e38, 3e38)[1].flatten().tolist() == pytest.approx([3e38, 3e38, 0, 0])
