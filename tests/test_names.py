"""Names of parameters are given once, and stay: files, summaries, tables, diagnostics, plots, ArviZ, netCDF."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import PRIOR, TINY, simulate
from sbi.inference import NPE

import fmcpe
from fmcpe import FMCPE, Stack, baselines, candidates, train_npe
from fmcpe.diagnostics import plots

QUICK = Stack([candidates.Prior(), candidates.Uncorrected()])
NAMES = ("offset", "gain")


@pytest.fixture(scope="module")
def named():
    return train_npe(simulate, PRIOR, 500, seed=0, names=NAMES, max_num_epochs=1, show_progress_bars=False)


@pytest.fixture(scope="module")
def posterior(named, pairs):
    return FMCPE(named, simulate, recipe=QUICK).fit(*pairs, seed=0, show_progress_bars=False)


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_names_of_the_base_posterior_stay(posterior, tmp_path):
    assert posterior.names == NAMES
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert loaded.names == loaded.shared.base.posterior.names == NAMES
    assert "Corrected posterior of offset, gain" in loaded.summary() and "gain: median error" in loaded.summary()
    assert fmcpe.diagnostics.calibration(loaded).sbc.names == NAMES
    assert baselines.NPE(FMCPE(posterior.shared.base, simulate).base).fit().names == NAMES


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_names_reach_other_tools(posterior, pairs, tmp_path):
    draws = posterior.draws(20, x=pairs[1][:3], seed=0)
    assert list(draws.to_dataframe().columns) == ["observation", "draw", *NAMES]
    assert [name in draws.summary().splitlines()[0] for name in NAMES] == [True, True]
    theta, y = pairs
    assert fmcpe.diagnostics.sbc(posterior, theta, y, 20).names == NAMES
    assert fmcpe.diagnostics.coverage(posterior, theta, y, num_samples=20).names == NAMES
    figure = plots.corner(draws.to_dataframe()[list(NAMES)])
    labels = {axes.get_xlabel() for axes in figure.axes} | {axes.get_ylabel() for axes in figure.axes}
    assert set(NAMES) <= labels


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_a_data_frame_names_the_parameters_and_its_columns_are_matched_by_name(base, pairs):
    theta, y = pairs
    frame = pd.DataFrame(theta.numpy(), columns=NAMES)
    data = pd.DataFrame(y.numpy(), columns=["a", "b", "c"])
    options = {"seed": 0, "show_progress_bars": False}
    first = FMCPE(base, simulate, recipe=QUICK).fit(frame, data, **options)
    assert first.names == NAMES and first.record.data_names == ("a", "b", "c")
    turned = FMCPE(base, simulate, recipe=QUICK, names=NAMES).fit(frame[["gain", "offset"]], data, **options)
    assert turned.weights == first.weights
    shuffled = data[["c", "a", "b"]]
    same = [first.sample_batched((5,), x=x, seed=0) for x in (y, data, shuffled)]
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    with pytest.raises(ValueError, match="columns offset, gain, got offset, slope"):
        FMCPE(base, simulate, names=NAMES).fit(frame.rename(columns={"gain": "slope"}), data)
    with pytest.raises(ValueError, match="Expected x with the columns a, b, c, got a, b, d"):
        first.sample((5,), x=data.rename(columns={"c": "d"})[:1])


def test_names_come_with_simulations_in_a_data_frame():
    theta = PRIOR.sample((200,))
    frame = pd.DataFrame(theta.numpy(), columns=NAMES)[["gain", "offset"]]
    options = {"seed": 0, "max_num_epochs": 1, "show_progress_bars": False}
    trained = train_npe(None, PRIOR, simulations=(frame, simulate(theta)), names=NAMES, **options)
    assert trained.names == NAMES  # and the columns were brought into that order, or they would lie outside the prior
    assert train_npe(None, PRIOR, simulations=(frame[list(NAMES)], simulate(theta)), **options).names == NAMES


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_without_names_parameters_are_numbered(base, pairs):
    posterior = FMCPE(base, simulate, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False)
    assert posterior.names == ("theta[0]", "theta[1]")
    assert "2 parameter(s)" in posterior.summary()


@pytest.mark.parametrize("wrong", [["offset"], ["a", "a"], ["a", " "]])
def test_wrong_names_are_refused(base, wrong):
    with pytest.raises(ValueError, match="2 different names"):
        FMCPE(base, simulate, names=wrong)
    with pytest.raises(TypeError, match="list of 2 name"):
        FMCPE(base, simulate, names="ab")
    with pytest.raises(ValueError, match="2 different names"):
        train_npe(simulate, PRIOR, 200, names=wrong)


@pytest.mark.parametrize("taken", ["observation", "chain", "draw", "p_value", "out_of_range"])
def test_names_that_tables_of_draws_use_themselves_are_refused(base, taken):
    with pytest.raises(ValueError, match=f"got '{taken}'. Call the parameter e.g. {taken}_0"):
        FMCPE(base, simulate, names=["offset", taken])
    with pytest.raises(ValueError, match="2 different names"):  # netCDF has no slash: both would be a_b
        FMCPE(base, simulate, names=["a/b", "a_b"])


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_arviz_has_the_names(posterior, pairs, tmp_path):
    arviz = pytest.importorskip("arviz")
    draws = posterior.draws(30, x=pairs[1][:2], labels=["run A", "run B"], seed=0)
    for data in (draws.to_arviz(), arviz.from_netcdf(draws.save(tmp_path / "draws.nc"))):
        assert set(data.posterior.data_vars) == set(NAMES)
        assert data.posterior["gain"].dims == ("chain", "draw", "observation")
        assert list(data.posterior.observation.values) == ["run A", "run B"]
        seen = data.posterior["gain"].sel(observation="run B").values
        assert np.array_equal(seen[0], draws.theta[1, :, 1])
        assert data.constant_data["p_value"].shape == (2,)


def test_names_of_a_prior_file_come_back_with_the_posterior_that_sbi_trained(tmp_path):
    """NPE knows no names, but keeps the prior that carries them."""
    table = "[{}]\ndistribution = '{}'\nlow = {}\nhigh = {}\n"
    (tmp_path / "prior.toml").write_text(
        table.format("offset", "loguniform", 0.5, 2) + table.format("gain", "uniform", 0, 1)
    )
    prior = fmcpe.read_prior(tmp_path / "prior.toml")
    trainer, theta = NPE(prior, show_progress_bars=False), prior.sample((100,))
    trainer.append_simulations(theta, simulate(theta)).train(max_num_epochs=1)
    trained = trainer.build_posterior()
    assert FMCPE(trained, simulate).names == NAMES
    assert FMCPE(trained, simulate, names=("a", "b")).names == ("a", "b")


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_units_of_a_prior_file_reach_summaries_reports_files_and_tables(base, pairs, tmp_path):
    box = "distribution = 'uniform'\nlow = {}\nhigh = {}\n"
    text = f"[offset]\n{box.format(-2, 2)}unit = 'mm'\n[gain]\n{box.format(0, 1)}"
    (tmp_path / "prior.toml").write_text(text)
    prior = fmcpe.read_prior(tmp_path / "prior.toml")
    assert prior.units == ("mm", "")
    method = FMCPE(base, simulate, recipe=QUICK, names=prior.names, units=prior.units)
    fitted = method.fit(*pairs, seed=0, show_progress_bars=False)
    posterior = fmcpe.load(fitted.save(tmp_path / "run.fmcpe"))
    assert posterior.units == ("mm", "")
    assert "of offset [mm], gain given" in posterior.summary() and "  offset [mm]: median error" in posterior.summary()
    page = posterior.report(tmp_path / "report.html", x=pairs[1][:2])
    assert "<td >offset [mm]</td>" in page.read_text() and "true offset [mm]" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["units"] == ["mm", ""]
    draws = posterior.draws(20, x=pairs[1][:2], seed=0)
    assert "offset in mm [90 % interval]" in draws.summary()
    with pytest.importorskip("h5netcdf").File(draws.save(tmp_path / "draws.nc")) as file:
        assert file["posterior"]["offset"].attrs["units"] == "mm" and "units" not in file["posterior"]["gain"].attrs
    assert np.load(draws.save(tmp_path / "draws.npz"))["units"].tolist() == ["mm", ""]
    frame = posterior.to_dataframe(pairs[1][0], num_samples=50, seed=0)
    assert frame.attrs["units"] == {"offset": "mm", "gain": ""}
    assert "offset [mm]" in {axes.get_xlabel() for axes in plots.corner(frame).axes}
    pytest.importorskip("xarray")
    for data in (posterior.to_arviz(pairs[1][0], num_samples=20, chains=1), draws.to_arviz()):
        assert data.posterior["offset"].attrs["units"] == "mm"
    (tmp_path / "prior.toml").write_text(text.replace("'mm'", "3"))
    with pytest.raises(ValueError, match=r"a text for unit in \[offset\]"):
        fmcpe.read_prior(tmp_path / "prior.toml")
    with pytest.raises(ValueError, match="2 unit"):
        FMCPE(base, simulate, units=["mm"])
    for wrong in ({"offset": "mm", "gain": "V"}, {"mm", "V"}, "mV"):
        with pytest.raises(TypeError, match="list of 2 unit"):
            FMCPE(base, simulate, units=wrong)
        with pytest.raises(TypeError, match="list of 2 name"):
            FMCPE(base, simulate, names=wrong)
