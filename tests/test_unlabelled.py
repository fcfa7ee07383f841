"""Real observations without θ: a sharper range check, an aligned candidate, and folds that stay honest."""

import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from conftest import PRIOR, observe, simulate
from torch.distributions import Independent, Normal

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, Stack, candidates
from fmcpe._checks import as_unlabelled
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.diagnostics import CVPlus
from fmcpe.problem import build_problem, without_pairs

LIGHT = Stack(
    [candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.GaussianTransport()],
    folds=2,
    repeats=1,
)


def real(number, seed):
    with seeded(seed):
        theta = PRIOR.sample((number,))
        return theta, observe(theta)


def fitted(base, pairs, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        method = FMCPE(base, simulate, recipe=options.pop("recipe", LIGHT))
        return method.fit(*pairs, seed=0, show_progress_bars=False, **options)


@pytest.fixture(scope="module")
def few():
    return real(12, 1)


@pytest.fixture(scope="module")
def more():
    return real(300, 2)[1]


@pytest.fixture(scope="module")
def posterior(base, few, more):
    return fitted(base, few, y_unlabelled=more)


def draws(posterior, y):
    return posterior.sample_batched((20,), x=y, seed=0, show_progress_bars=False)


def test_rows_of_the_pairs_are_left_out(base, few, more, posterior):
    """Bits are those of the same fit without these rows: no held-out y reaches a fit that is scored on it."""
    again = fitted(base, few, y_unlabelled=torch.cat([more[:100], few[1], more[100:]]).numpy())
    assert torch.equal(draws(again, more[:20]), draws(posterior, more[:20])) and again.weights == posterior.weights
    without = fitted(base, few)
    nothing = fitted(base, few, y_unlabelled=few[1])
    assert torch.equal(draws(nothing, more[:20]), draws(without, more[:20]))
    assert "gaussian_transport" not in {**without.weights, **without.record.skipped}
    assert without.check(more[:2]).real is None and "real data" not in str(without.check(more[:2]))


def test_the_check_is_sharper_and_never_more_lenient(base, few, posterior):
    without, near = fitted(base, few), real(400, 3)[1]
    far = near + 5 * near.std(0) * torch.tensor([1.0, -1.0, 1.0])
    found = posterior.check(near)
    assert float(found.out_of_range.double().mean()) < 0.01
    assert torch.equal(found.pairs, without.check(near).pairs)
    assert torch.equal(found.p_values, torch.minimum(found.pairs, found.real))
    shares = [float(each.check(far).out_of_range.double().mean()) for each in (without, posterior)]
    assert shares[0] < 0.1 and shares[1] > 0.9
    assert "against all real data" in str(found)
    with pytest.warns(FMCPEWarning, match="like the calibration pairs and the other real observations"):
        posterior.sample((1,), x=far[posterior.check(far).out_of_range][0], show_progress_bars=False)


def test_usual_real_data_do_not_vouch_for_a_range_without_pairs(base):
    """Pairs at low θ_0 alone: an observation at high θ_0 is like other real data, and as far out of range as without these."""
    theta, y = real(400, 4)
    low, high = theta[:, 0] < -1.5, y[:200][theta[:200, 0] > 1.5]
    pairs = theta[low][:20], y[low][:20]
    found, without = fitted(base, pairs, y_unlabelled=y[200:]).check(high), fitted(base, pairs).check(high)
    assert float(found.real.median()) > 0.05 and float(without.pairs.median()) < 0.01
    assert float((found.p_values == without.p_values).double().mean()) > 0.9


def test_saved_and_loaded(posterior, more, tmp_path):
    posterior.save(tmp_path / "run.fmcpe")
    loaded = fmcpe.load(tmp_path / "run.fmcpe")
    assert torch.equal(loaded.check(more[:20]).real, posterior.check(more[:20]).real)
    assert torch.equal(draws(loaded, more[:20]), draws(posterior, more[:20]))


def test_the_report_shows_both_p_values(posterior, more, tmp_path):
    posterior.report(tmp_path / "report.html", x=more[:2])
    assert "p (all real data)" in (tmp_path / "report.html").read_text()
    found = json.loads((tmp_path / "report.json").read_text())["observations"]
    assert found["real"] == pytest.approx(posterior.check(more[:2]).real.tolist())
    assert "300 real observations without θ" in posterior.summary()


def test_folds_of_cv_plus_see_no_y_of_their_pairs(base, few, more):
    both = torch.cat([few[1], more[:50]])
    conformal = fitted(base, few, y_unlabelled=both, conformal=CVPlus(folds=3, num_samples=50)).conformal
    assert [len(model.inner.real.distances) for model in conformal.models] == [8 + 50] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(5, 2), r"^Expected y_unlabelled of shape \(M, 3\), .+ got \(5, 2\)\. Pass one row"),
        (torch.zeros(3), r"^Expected y_unlabelled of shape \(M, 3\), .+ got \(3,\)\."),
        (torch.full((5, 3), math.nan), "^Expected finite numbers in y_unlabelled"),
    ],
)
def test_wrong_observations_are_refused(base, few, given, message):
    with pytest.raises(ValueError, match=message):
        fitted(base, few, y_unlabelled=given)


def test_the_papers_recipe_refuses_them(base, few, more):
    with pytest.raises(ValueError, match=r"^Expected no y_unlabelled with the paper's recipe"):
        fitted(base, few, y_unlabelled=more, recipe="paper")


def test_a_stack_that_needs_them_says_so(base, few):
    with pytest.raises(ValueError, match=r"got none \(gaussian_transport: it needs y_unlabelled=\)"):
        fitted(base, few, recipe=Stack([candidates.GaussianTransport()]))


def test_a_number_each_may_be_flat():
    assert as_unlabelled([1.0, 2.0], torch.zeros(4, 1)).shape == (2, 1)


# ---------------------------------------------------------------------- Gaussian transport


def problem_of(base, unlabelled, target=None):
    theta, y = real(12, 1)
    with seeded(0):
        return build_problem(
            as_base_posterior(base), CheckedSimulator(simulate, torch.Size((3,))), target or PRIOR, theta, y, None,
            unlabelled=unlabelled,
        )  # fmt: skip


def test_transport_gives_real_summaries_mean_and_covariance_of_simulations(base):
    """A gain and an offset of each number: the map is exact in the first two moments, up to shrinkage, and symmetric."""
    problem = problem_of(base, real(2000, 5)[1])
    (member,) = candidates.GaussianTransport().fit_members(problem, [torch.arange(12)])
    moved, simulated = member.source(real(4000, 6)[1], 1)[:, 0], problem.bank_seen
    assert torch.allclose(moved.mean(0), simulated.mean(0), atol=0.15)
    assert torch.allclose(moved.T.cov(), simulated.T.cov(), atol=0.15 * float(simulated.var(0).max()))
    unit = simulated.std(0)
    standard = member.matrix * unit[:, None] / unit
    assert torch.allclose(standard, standard.T, atol=1e-4)


def test_transport_uses_no_pair(base, more):
    problem = problem_of(base, more)
    other = replace(problem, y=problem.y + 5, z=problem.z.flip(0), theta=problem.theta.flip(0), seen=problem.seen + 5)
    both = [candidates.GaussianTransport().fit_members(each, [torch.arange(12)])[0] for each in (problem, other)]
    assert torch.equal(both[0].matrix, both[1].matrix) and torch.equal(both[0].mean, both[1].mean)


def test_transport_compares_with_simulations_from_the_target_prior(base):
    """Real θ follow another prior than simulations and the simulator is right: the map is the identity."""
    target = Independent(Normal(torch.tensor([0.8, 0.5]), torch.tensor([0.3, 0.1])), 1)
    with seeded(0):
        y = simulate(target.sample((3000,)))
    (member,) = candidates.GaussianTransport().fit_members(problem_of(base, y, target), [torch.arange(12)])
    assert torch.allclose(member.matrix, torch.eye(3), atol=0.2)
    assert torch.allclose(member.mean, member.target, atol=0.15)
    (wrong,) = candidates.GaussianTransport().fit_members(problem_of(base, y), [torch.arange(12)])
    assert not torch.allclose(wrong.mean, wrong.target, atol=0.5)  # negative control


def test_transport_says_what_it_needs(base, more):
    problem = problem_of(base, more)
    assert candidates.GaussianTransport().skipped(problem) is None
    assert "two real observations" in candidates.GaussianTransport().skipped(replace(problem, unlabelled=more[:1]))
    assert "simulator" in candidates.GaussianTransport().skipped(replace(problem, bank_seen=None))


def test_zeros_of_either_sign_are_one_number():
    """An observation with -0.0 is that of the pair with 0.0."""
    y = torch.tensor([[1.0, 0.0], [2.0, -0.0]])
    unlabelled = torch.tensor([[1.0, -0.0], [2.0, 0.0], [3.0, 0.0]])
    assert without_pairs(unlabelled, y).tolist() == [[3.0, 0.0]]
