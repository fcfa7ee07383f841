"""Ridge regression, against a solution of the normal equations and leave-one-out by hand."""

import pytest
import torch

from fmcpe.nn.ridge import fit_ridge


def by_hand(f, t, penalty):
    """Minimises |t - b - (f - mean) w|² + penalty |w|², with a free intercept: w and b."""
    centred = f - f.mean(0)
    w = torch.linalg.solve(
        centred.T @ centred + penalty * torch.eye(f.shape[1], dtype=f.dtype), centred.T @ (t - t.mean(0))
    )
    return w, t.mean(0) - f.mean(0) @ w


@pytest.mark.parametrize("targets", [1, 2])
def test_the_penalty_is_that_of_leave_one_out(targets):
    torch.manual_seed(0)
    f = torch.randn(12, 5, dtype=torch.float64)
    t = f @ torch.randn(5, targets, dtype=torch.float64) + 2 * torch.randn(12, targets, dtype=torch.float64)

    def error(penalty):
        total = 0.0
        for i in range(12):
            rest = torch.arange(12) != i
            # the shortcut leaves a row out of the fit about the mean of all rows' features
            centred = f - f.mean(0)
            a = torch.cat([torch.ones(12, 1, dtype=f.dtype), centred], dim=1)[rest]
            ridge = torch.diag(torch.tensor([0.0] + [penalty] * 5, dtype=f.dtype))
            w = torch.linalg.solve(a.T @ a + ridge, a.T @ t[rest])
            total += float((t[i] - w[0] - centred[i] @ w[1:]).square().mean())
        return total

    grid = torch.logspace(-4, 5, 37, dtype=torch.float64).tolist()
    w, b = by_hand(f, t, min(grid, key=error))
    ridge = fit_ridge(f, t)
    torch.testing.assert_close(ridge(torch.eye(5)), (w + b).float())


def test_mapped_targets_are_those_of_the_mapped_regression():
    torch.manual_seed(0)
    ridge, matrix, offset = fit_ridge(torch.randn(20, 3), torch.randn(20, 2)), torch.randn(2, 4), torch.randn(4)
    f = torch.randn(6, 3)
    torch.testing.assert_close(ridge.mapped(matrix, offset)(f), ridge(f) @ matrix + offset)
