"""Several networks as one: the same answers as one by one, gradients bounded member by member."""

import torch
from conftest import PRIOR, simulate
from torch import nn

from fmcpe.flows.matching import Field
from fmcpe.flows.velocity import VelocityField
from fmcpe.nn.ensemble import Stacked
from fmcpe.nn.training import descend


def velocity_fields(number=3):
    torch.manual_seed(0)
    return [Field(2, nn.Identity(), 4, (8, 8)) for _ in range(number)]


def test_velocity_fields_answer_together_as_one_by_one():
    modules = velocity_fields()
    rows = torch.rand(3, 7, 1), torch.randn(3, 7, 2), torch.randn(3, 7, 4)
    expected = torch.stack([module(*(r[k] for r in rows)) for k, module in enumerate(modules)])
    for natively in (True, False):
        stacked = Stacked(modules, natively=natively)
        torch.testing.assert_close(stacked(*rows), expected)
        alone = list(stacked.members(stacked.snapshot()))[1]
        torch.testing.assert_close(alone(*(r[1] for r in rows)), expected[1])
    assert not torch.allclose(expected[0], expected[1])


def test_gradients_are_those_of_each_member():
    modules = velocity_fields()
    rows = torch.rand(3, 7, 1), torch.randn(3, 7, 2), torch.randn(3, 7, 4)
    stacked = Stacked(modules, natively=True)
    stacked(*rows).square().mean((1, 2)).sum().backward()
    for k, module in enumerate(modules):
        module(*(r[k] for r in rows)).square().mean().backward()
        for name, value in module.named_parameters():
            torch.testing.assert_close(stacked.weights[name].grad[k], value.grad, atol=1e-5, rtol=1e-4)


def test_each_member_is_clipped_by_its_own_norm():
    stacked = Stacked([nn.Linear(3, 2) for _ in range(2)])
    for value in stacked.weights.values():
        value.grad = torch.stack([torch.full(value.shape[1:], 10.0), torch.full(value.shape[1:], 0.01)])
    stacked.clip(1.0)
    norms = torch.stack([v.grad.flatten(1).square().sum(1) for v in stacked.weights.values()]).sum(0).sqrt()
    torch.testing.assert_close(norms, torch.tensor([1.0, 0.01 * 8**0.5]))


def test_members_come_apart_and_a_snapshot_stays_as_it_was():
    stacked = Stacked(velocity_fields(), natively=True)
    before = stacked.snapshot()
    with torch.no_grad():
        stacked.weights["u.last.weight"].add_(1.0)
    kept, now = (list(stacked.members(weights)) for weights in (before, stacked.snapshot()))
    for k in range(3):
        torch.testing.assert_close(now[k].u.last.weight - kept[k].u.last.weight, torch.ones(2, 8))


def test_what_cannot_be_batched_over_weights_is_asked_one_by_one():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            if float(x.sum()) > 1e9:  # a number asked of a batch of networks: vmap refuses
                return x
            return self.layer(x)[:, 0]

    modules = [Stubborn() for _ in range(2)]
    x = torch.randn(2, 5, 2)
    torch.testing.assert_close(Stacked(modules)(x), torch.stack([m(x[k]) for k, m in enumerate(modules)]))


def test_a_field_without_stacked_weights_is_an_ordinary_network():
    field = VelocityField(2, nn.Identity(), 3, (8,))
    theta = PRIOR.sample((4,))
    context = field.embed(simulate(theta)[:, :3])
    at_once = field(torch.tensor(0.3), theta[:, :2], context)
    torch.testing.assert_close(at_once, field(torch.full((4, 1), 0.3), theta[:, :2], context))


def test_members_train_as_they_would_alone():
    """Each member keeps the weights that are best on its own validation rows, whatever the others do."""
    torch.manual_seed(0)
    x, slopes = torch.linspace(-1, 1, 32)[None, :, None].expand(2, -1, -1), torch.tensor([2.0, -3.0])[:, None, None]
    stacked = Stacked([nn.Linear(1, 1) for _ in range(2)])
    losses = iter([torch.tensor([1.0, 1.0]), torch.tensor([0.5, 2.0]), torch.tensor([0.7, 3.0])])
    start = stacked.snapshot()
    (best,) = descend(
        [stacked],
        lambda step: (stacked(x) - slopes * x).square().mean((1, 2)),
        20,
        0.1,
        validate=lambda: next(losses),
        every=10,
    )
    assert torch.equal(best["weight"][1], start["weight"][1])  # never better than at the start
    assert not torch.equal(best["weight"][0], start["weight"][0])
    (last,) = descend([stacked], lambda step: (stacked(x) - slopes * x).square().mean((1, 2)), 300, 0.1)
    torch.testing.assert_close(last["weight"][:, 0, 0], torch.tensor([2.0, -3.0]), atol=0.02, rtol=0)
