"""Powers and products of a few numbers, against products one by one."""

import pytest
import torch

from fmcpe.candidates.emulator import Powers, count


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize(("numbers", "degree"), [(1, 3), (3, 1), (2, 2), (4, 3)])
def test_all_powers(numbers, degree):
    powers, u = Powers(numbers, degree), torch.randn(5, numbers, dtype=torch.float64)
    found = powers(u)
    assert found.shape == (5, count(numbers, degree)) and len(set(powers.terms)) == len(powers.terms)
    for column, term in enumerate(powers.terms):
        torch.testing.assert_close(found[:, column], u[:, list(term)].prod(1))
    assert all(len(a) <= len(b) for a, b in zip(powers.terms, powers.terms[1:], strict=False))
