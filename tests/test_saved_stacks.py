"""Stacks of many kinds, saved and loaded: equal draws and intervals, members without weight included."""

import warnings

import pytest
import torch
from conftest import PRIOR, simulate
from sbi.inference import FMPE
from sbi.utils import BoxUniform, MultipleIndependent
from torch.distributions import Beta, Normal

import fmcpe
from fmcpe import FMCPE, Stack, as_base_posterior, candidates
from fmcpe.serialization.container import FORMAT, read, to_bytes

SMALL = Stack(
    [
        candidates.Uncorrected(),
        candidates.Prior(),
        candidates.ResidualShift(),
        candidates.SyntheticLikelihood(),
        candidates.JointFlow(steps=5),
        candidates.FineTuned(steps=5),
    ],
    folds=2,
    repeats=1,
)
QUICK = Stack([candidates.Prior(), candidates.SyntheticLikelihood(), candidates.ResidualShift()], folds=2, repeats=1)
Y = torch.tensor([1.0, 0.5, 1.2])


def fitted(method, pairs, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fmcpe.FMCPEWarning)
        return method.fit(*pairs, seed=0, show_progress_bars=False, **options)


def assert_same(posterior, loaded, y):
    assert torch.equal(loaded.sample((50,), x=y, seed=1), posterior.sample((50,), x=y, seed=1))
    if posterior.conformal is not None:
        one, two = (each.interval(0.8, x=y) for each in (posterior, loaded))
        assert torch.equal(one.low, two.low) and torch.equal(one.high, two.high)


def a_member_has_no_weight(base, pairs):
    posterior = fitted(FMCPE(base, simulate, recipe=SMALL), pairs)
    assert min(posterior.weights.values()) < 1e-6
    return posterior


def held_out_pairs(base, pairs):
    theta, y = pairs
    return fitted(FMCPE(base, simulate, recipe=QUICK), (theta[:15], y[:15])).conformalize(theta[15:], y[15:])


def cross_validated_intervals(base, pairs):
    return fitted(FMCPE(base, simulate, recipe=QUICK), pairs, conformal="cv+")


def another_prior_in_use(base, pairs):
    narrow = BoxUniform(torch.tensor([-1.0, 0.2]), torch.tensor([1.0, 0.8]))
    return fitted(FMCPE(base, simulate, target_prior=narrow, recipe=QUICK), pairs)


def a_vector_field(base, pairs):
    theta = PRIOR.sample((200,))
    trainer = FMPE(PRIOR, show_progress_bars=False)
    trainer.append_simulations(theta, simulate(theta)).train(max_num_epochs=1)
    return fitted(FMCPE(trainer.build_posterior(), simulate, recipe=QUICK), pairs)


CASES = (a_member_has_no_weight, held_out_pairs, cross_validated_intervals, another_prior_in_use, a_vector_field)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_draws_and_intervals_are_equal(case, base, pairs, tmp_path):
    torch.manual_seed(2)
    posterior = case(base, pairs)
    assert_same(posterior, fmcpe.load(posterior.save(tmp_path / "run.fmcpe")), Y)


def test_the_same_posterior_gives_the_same_bytes():
    """Stores compare files by their checksum."""
    found = {to_bytes({"format": FORMAT}, {"a": torch.ones(2), "b": torch.zeros(3)}) for _ in range(20)}
    assert len(found) == 1


def test_a_function_as_base_posterior(pairs, tmp_path):
    def draw(x):
        return PRIOR.sample((len(x),))

    posterior = fitted(FMCPE(draw, simulate, prior=PRIOR, recipe=QUICK), pairs)
    with pytest.warns(fmcpe.FMCPEWarning, match="load with"):
        path = posterior.save(tmp_path / "run.fmcpe")
    with pytest.raises(fmcpe.FileError, match="posterior=the_base_posterior"):
        fmcpe.load(path)
    assert_same(posterior, fmcpe.load(path, posterior=draw), Y)


def test_a_beta_prior_and_observations_of_one_number(tmp_path):
    """Parameters of a Beta distribution of one number have a stride of 2, and count as contiguous in torch."""
    prior = MultipleIndependent(
        [Beta(torch.full((1,), 2.0), torch.full((1,), 3.0)), Normal(torch.zeros(1), torch.ones(1))]
    )

    def simulator(theta):
        return theta.sum(1, keepdim=True) + 0.1 * torch.randn(len(theta), 1)

    torch.manual_seed(0)
    theta = prior.sample((30,))
    base = fmcpe.train_npe(simulator, prior, 500, seed=0, max_num_epochs=1, show_progress_bars=False)
    posterior = fitted(FMCPE(base, simulator, recipe=SMALL), (theta, simulator(theta) + 0.3))
    assert_same(posterior, fmcpe.load(posterior.save(tmp_path / "run.fmcpe")), torch.tensor([1.0]))


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_a_file_that_needs_its_base_posterior_is_refused_in_the_same_way(pairs, tmp_path):
    """With `posterior=`, the argument is not blamed for the file, and a wrong argument is no damaged file."""
    draw = as_base_posterior(lambda x: PRIOR.sample((len(x),)), prior=PRIOR)
    path = fitted(FMCPE(draw, simulate, recipe=QUICK), pairs).save(tmp_path / "run.fmcpe")
    fmcpe.load(path, posterior=draw)
    manifest, tensors = read(path)
    together = r"parts do not fit together .* Pass the posterior"
    for message, says, others in (
        (together, {"report": {"a": 1}}, {}),
        (together, {"conformal": {"kind": "split"}}, {}),
        (together, {}, {"posterior.measured": torch.zeros(3, 3)}),
        (
            r"numbers in the tensor posterior\.measured .* got NaN",
            {},
            {"posterior.measured": torch.full((4, 2), torch.nan)},
        ),
        ("Expected a prior that fmcpe can save", {"base": manifest["base"] | {"support": {"family": "x"}}}, {}),
        (r"parts do not fit together .* Save the posterior again", {"base": manifest["base"] | {"support": 3}}, {}),
    ):
        (tmp_path / "bad.fmcpe").write_bytes(to_bytes(manifest | says, tensors | others))
        with pytest.raises(fmcpe.FileError, match=message):
            fmcpe.load(tmp_path / "bad.fmcpe", posterior=draw)
    with pytest.raises(TypeError, match="Expected an sbi DirectPosterior"):
        fmcpe.load(path, posterior=3)
    wide = as_base_posterior(lambda x: torch.zeros(len(x), 3), prior=BoxUniform(-torch.ones(3), torch.ones(3)))
    with pytest.raises(fmcpe.FileError, match="Pass the base posterior that was corrected"):
        fmcpe.load(path, posterior=wide)
