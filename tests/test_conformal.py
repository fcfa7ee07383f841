"""Split conformal intervals: the promise is kept for biased and over-confident posteriors, in the law that theory gives."""

import ast
import json
from pathlib import Path

import pytest
import torch
from conftest import PRIOR, observe
from safetensors import safe_open
from safetensors.torch import save_file
from scipy import stats

import fmcpe
from fmcpe.diagnostics.conformal import SplitConformal, median_and_width, physical, scores_of


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def drawn(number):
    theta = PRIOR.sample((number,))
    return theta, observe(theta)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("number", [20, 50])
def test_coverage_is_at_least_what_is_promised(posteriors, number, joint):
    """A biased posterior (the uncorrected one): 300 held-out sets, each with new pairs, and the Beta law of the coverage."""
    posterior, level = posteriors("npe"), 0.9
    theta, y = drawn(4000)
    median, width = median_and_width(posterior, y, 200, 0)
    scores = ((posterior.space.to_z_safely(theta) - median) / width).abs()
    plain = (scores < stats.norm.ppf(0.95)).float().mean(0)  # a credible interval of a normal posterior
    assert float(plain.min()) < 0.8
    inside = scores.amax(1, keepdim=True) if joint else scores
    coverages = []
    for _ in range(300):
        reach, _ = SplitConformal(scores[torch.randperm(4000)[:number]], 200).threshold(level, joint)
        coverages.append((inside <= reach[: inside.shape[1]]).float().mean(0))
    coverages = torch.stack(coverages)
    rank = -int(-(number + 1) * level // 1)
    law = stats.beta(rank, number + 1 - rank)
    for column in coverages.T:
        assert float(column.mean()) == pytest.approx(law.mean(), abs=4 * law.std() / 300**0.5 + 0.005)
        assert float(column.mean()) > level - 4 * law.std() / 300**0.5
        assert float(column.quantile(0.05)) == pytest.approx(law.ppf(0.05), abs=0.03)


def test_intervals_hold_new_observations(posteriors, tmp_path):
    posterior = posteriors("npe")
    posterior.conformalize(*drawn(100))
    theta, y = drawn(400)
    found = posterior.interval(0.8, x=y)
    assert found.low.shape == found.high.shape == (400, 2) and found.num_pairs == 100
    inside = ((theta >= found.low) & (theta <= found.high)).float().mean(0)
    assert bool((inside > 0.8 - 4 * (0.16 / 400 + 0.16 / 100) ** 0.5).all())
    together = posterior.interval(0.8, x=y, joint=True)
    assert bool((together.low <= found.low + 1e-6).all()) and bool((together.high >= found.high - 1e-6).all())
    one = posterior.interval(0.8, x=y[0])
    head, *rows = str(posterior.interval(0.8, x=y[:3])).splitlines()[:-1]
    assert head.split() == list(posterior.names) and len(rows) == 3
    at = head.index(posterior.names[1])  # a column begins below its name
    assert all(row[0] == row[at] == "[" for row in rows)
    assert one.low.shape == (2,) and "probability at least 0.8" in str(one) and "exchangeable" in one.guarantee
    assert bool(posterior.space.contains(torch.cat([found.low, found.high])).all())
    again = fmcpe.load(posterior.save(tmp_path / "a.fmcpe")).interval(0.8, x=y[0])
    assert torch.equal(again.low, one.low) and torch.equal(again.high, one.high)
    posterior.conformal = None


def test_pairs_with_the_same_parameters_count_once(posteriors):
    posterior = posteriors("npe")
    theta = PRIOR.sample((12,))
    theta = torch.cat([theta, theta[:11]])
    assert len(posterior.conformalize(theta, observe(theta)).conformal.scores) == 12
    posterior.conformal = None


def test_a_design_with_a_few_fixed_values_is_refused(posteriors):
    """Nothing is known between the values: "θ from the same distribution" would promise intervals there."""
    posterior = posteriors("npe")
    repeated = PRIOR.sample((5,)).repeat(5, 1)
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 5), torch.linspace(0.1, 0.9, 5))  # 25 different θ
    for theta in (repeated, grid):
        with pytest.raises(
            ValueError, match=r"drawn from a density, got 5 value\(s\) of parameter 0 in 25 .*pass one pair"
        ):
            posterior.conformalize(theta, observe(theta))
    assert posterior.conformal is None
    assert posterior.conformalize(*drawn(9)).interval(0.9, x=observe(grid)).num_pairs == 9
    posterior.conformal = None


def test_too_few_pairs_are_refused_with_the_number_that_is_needed():
    for number, level, least in ((8, 0.9, 9), (18, 0.95, 19), (0, 0.5, 1)):
        with pytest.raises(ValueError, match=f"at least {least} held-out pairs .* got {number}"):
            SplitConformal(torch.rand(number, 2), 100).threshold(level, False)
    assert float(SplitConformal(torch.arange(9.0)[:, None], 100).threshold(0.9, False)[0]) == 8.0
    with pytest.raises(ValueError, match="level between 0 and 1"):
        SplitConformal(torch.rand(30, 2), 100).threshold(1.0, False)
    promise = SplitConformal(torch.rand(30, 2), 100).promise(1e-12, False)
    assert 0 < promise.coverage_5 < 0.01


@pytest.mark.parametrize(
    ("number", "says"), [(0, "held-out pairs, got none.* need 9"), (1, "at least 9 held-out .* got 1")]
)
def test_no_pairs_and_one_pair_are_refused_for_the_level(posteriors, number, says):
    posterior, (theta, y) = posteriors("npe"), drawn(2)
    with pytest.raises(ValueError, match=says):
        posterior.conformalize(theta[:number], y[:number]).interval(0.9, x=y[0])
    posterior.conformal = None


def test_pairs_of_the_fit_are_refused(posteriors, pairs):
    posterior = posteriors("default")
    with pytest.raises(ValueError, match="not used in the fit, got 30 of 30"):
        posterior.conformalize(*pairs)
    with pytest.raises(ValueError, match="conformalize"):
        posterior.interval(0.9, x=pairs[1][0])


def test_files_of_format_5_still_load(posteriors, tmp_path):
    """They hold the scores under another name, and no kind."""
    posterior = posteriors("npe").conformalize(*drawn(40))
    path, y = posterior.save(tmp_path / "a.fmcpe"), drawn(1)[1][0]
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        says = json.loads(file.metadata()["fmcpe"])
    tensors["conformal"] = tensors.pop("conformal.scores")
    says |= {"format": 5, "conformal": {"num_samples": says["conformal"]["num_samples"]}}
    save_file(tensors, path, metadata={"fmcpe": json.dumps(says)})
    assert torch.equal(fmcpe.load(path).interval(0.9, x=y).low, posterior.interval(0.9, x=y).low)
    posterior.conformal = None
    says["conformal"]["kind"] = "other"
    save_file(tensors, path, metadata={"fmcpe": json.dumps(says | {"format": 6})})
    with pytest.raises(ValueError, match="got 'other'"):
        fmcpe.load(path)


def test_an_end_beyond_the_limit_of_the_scores_is_the_bound(posteriors):
    """Scores of bounded parameters are clamped, so that z = 7 has the score of z = 6 and must be inside when that is."""
    space = posteriors("npe").space
    low, high = physical(space, torch.tensor([[-6.1, -1.0]]), torch.tensor([[1.0, 6.0]]))
    assert torch.allclose(torch.stack([low[0, 0], high[0, 1]]), torch.tensor([-2.0, 1.0]), atol=1e-6)
    assert -2 < float(high[0, 0]) < 2 and 0 < float(low[0, 1]) < 1


def test_scores_do_not_depend_on_the_batch(posteriors):
    """RoPE's answer does: each observation is asked about alone, or scores would not be exchangeable with a new one's."""
    theta, y = drawn(6)
    posterior = posteriors("rope")
    together, alone = scores_of(posterior, theta, y, 50, 0), scores_of(posterior, theta[:1], y[:1], 50, 0)
    assert torch.equal(together[:1], alone)


def test_the_core_imports_diagnostics_only_where_they_are_asked_for():
    package = Path(fmcpe.__file__).parent
    folders = [package, *(package / name for name in ("candidates", "serialization", "nn", "flows", "base_posteriors"))]
    for file in (file for folder in folders for file in folder.glob("*.py")):
        imports = [node.module for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)]
        assert not any((name or "").startswith("fmcpe.diagnostics") for name in imports), file
