"""Files of users: priors in TOML, tables of four kinds, what is said of wrong ones, and files of draws."""

import importlib
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.io import netcdf_file
from torch.distributions import biject_to

import fmcpe
from fmcpe.distributions import LogUniform
from fmcpe.io.draws import Draws
from fmcpe.io.pairs import read_observations, read_pairs
from fmcpe.io.prior_file import EXAMPLE, FAMILIES, read_prior_file
from fmcpe.io.tables import read_table
from fmcpe.nn.describe import build_prior, describe_prior
from fmcpe.spaces import ParameterSpace

NAMES = ("mass", "length")
THETA = np.array([[1.25, 0.5], [1.5, 0.75], [2.0, 1.0]])
Y = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]])
COLUMNS = ["r_1", "r_2", "r_3"]


def write_csv(path, header, rows, delimiter=","):
    lines = [delimiter.join(header), *(delimiter.join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# ------------------------------------------------------------------ priors

SCIPY = {
    "uniform": lambda low, high: stats.uniform(low, high - low),
    "loguniform": stats.loguniform,
    "normal": stats.norm,
    "lognormal": lambda log_mean, log_std: stats.lognorm(log_std, scale=math.exp(log_mean)),
    "halfnormal": lambda scale: stats.halfnorm(scale=scale),
    "exponential": lambda rate: stats.expon(scale=1 / rate),
    "gamma": lambda shape, rate: stats.gamma(shape, scale=1 / rate),
    "beta": stats.beta,
}


def family_file(path, *kinds):
    tables = []
    for k, kind in enumerate(kinds):
        values = "\n".join(f"{key} = {v}" for key, v in zip(FAMILIES[kind].keys, FAMILIES[kind].example, strict=True))
        tables.append(f'[p{k}]\ndistribution = "{kind}"\n{values}\nunit = "m"\n')
    path.write_text("\n".join(tables))
    return path


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_that_of_scipy_and_maps_to_z_and_back(tmp_path, kind):
    prior = fmcpe.read_prior(family_file(tmp_path / "prior.toml", kind))
    expected = SCIPY[kind](*FAMILIES[kind].example)
    torch.manual_seed(0)
    theta = prior.sample((4000,))
    assert theta.shape == (4000, 1)
    assert stats.kstest(theta[:, 0].numpy(), expected.cdf).pvalue > 1e-3
    assert prior.log_prob(theta).numpy() == pytest.approx(expected.logpdf(theta[:, 0].numpy()), abs=1e-3)
    space = ParameterSpace.of(prior)
    assert space.to_theta(space.to_z(theta))[:, 0].numpy() == pytest.approx(theta[:, 0].numpy(), rel=1e-3, abs=1e-4)
    again = build_prior(*describe_prior(prior))
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))


def test_a_prior_of_all_families_is_their_product_and_can_be_saved(tmp_path):
    said = read_prior_file(family_file(tmp_path / "prior.toml", *FAMILIES))
    theta = said.prior.sample((100,))
    assert said.names == said.prior.names == tuple(f"p{k}" for k in range(len(FAMILIES)))
    each = [SCIPY[k](*FAMILIES[k].example).logpdf(theta[:, i].numpy()) for i, k in enumerate(FAMILIES)]
    assert said.prior.log_prob(theta).numpy() == pytest.approx(sum(each), abs=1e-2)
    assert torch.equal(build_prior(*describe_prior(said.prior)).log_prob(theta), said.prior.log_prob(theta))
    assert "p0: uniform, low 0, high 1 m" in said.descriptions


def test_the_log_uniform_has_its_moments_and_stays_inside():
    prior = LogUniform(torch.tensor([0.1]), torch.tensor([0.3]))
    draws = prior.sample((20_000,))
    assert bool(prior.support.check(draws).all())
    assert float(draws.mean()) == pytest.approx(float(prior.mean), rel=0.01)
    assert float(draws.var()) == pytest.approx(float(prior.variance), rel=0.05)
    assert prior.expand((3,)).sample((2,)).shape == (2, 3)
    assert bool(prior.support.check(biject_to(prior.support)(torch.tensor([-3.0, 0.0, 5.0]))).all())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["prior.toml", "a table for each parameter", EXAMPLE]),
        ("[mass\nlow = 1", ["prior.toml", "TOML", "line 1"]),
        ("low = 1.0", ["low = 1.0", "outside of any"]),
        ("[mass]\nlow = 1.0", ["[mass]", "no distribution", "loguniform"]),
        ('[mass]\ndistribution = "cauchy"', ["'cauchy'", "uniform, loguniform"]),
        ('[mass]\ndistribution = "uniform"\nlow = 1.0', ["a number for high in [mass]", "no such key", "high = 1.0"]),
        ('[mass]\ndistribution = "uniform"\nlow = "a"\nhigh = 2', ["a number for low", "low = 'a'"]),
        ('[mass]\ndistribution = "uniform"\nlow = 3.0\nhigh = 2.0', ["low below high", "low = 3.0 and high = 2.0"]),
        ('[mass]\ndistribution = "normal"\nmean = 0\nsigma = 2', ["keys mean, std", "the key sigma"]),
        ('[mass]\ndistribution = "normal"\nmean = 0\nstd = -2', ["a positive std", "std = -2"]),
        (f"{EXAMPLE}\n[data]\nprefixes = 1", ["[data]", "prefix ="]),
    ],
)
def test_a_wrong_prior_is_answered_by_file_table_key_and_an_example(tmp_path, text, words):
    path = tmp_path / "prior.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="Expected") as refused:
        read_prior_file(path)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        read_prior_file(tmp_path / "nowhere.toml")


# ------------------------------------------------------------------ tables


def as_csv(path):
    return write_csv(
        path / "pairs.csv", ["length", *COLUMNS, "mass"], [[t[1], *y, t[0]] for t, y in zip(THETA, Y, strict=True)]
    )


def as_semicolons(path):
    rows = [[*t, *y] for t, y in zip(THETA, Y, strict=True)]
    file = write_csv(path / "pairs.csv", [*NAMES, *COLUMNS], rows, ";")
    file.write_text("\ufeff# measured on Monday\n\n" + file.read_text(), encoding="utf-8")
    return file


def as_columns_npz(path):
    np.savez(path / "pairs.npz", mass=THETA[:, 0], length=THETA[:, 1], **{n: Y[:, k] for k, n in enumerate(COLUMNS)})
    return path / "pairs.npz"


def as_parquet(path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {"mass": THETA[:, 0], "length": THETA[:, 1]} | {n: Y[:, k] for k, n in enumerate(COLUMNS)}
    pq.write_table(pa.table(columns), path / "pairs.parquet")
    return path / "pairs.parquet"


def as_netcdf4_columns(path):
    h5netcdf = pytest.importorskip("h5netcdf")
    columns = {"mass": THETA[:, 0], "length": THETA[:, 1]} | {n: Y[:, k] for k, n in enumerate(COLUMNS)}
    with h5netcdf.File(path / "pairs.nc", "w") as file:
        file.dimensions = {"pair": 3}
        file.create_variable("pair", ("pair",), data=np.arange(3))
        for name, values in columns.items():
            file.create_variable(name, ("pair",), data=values)
    return path / "pairs.nc"


@pytest.mark.parametrize("write", [as_csv, as_semicolons, as_columns_npz, as_parquet, as_netcdf4_columns])
def test_columns_are_found_by_name_in_every_kind_of_file(tmp_path, write):
    pairs = read_pairs(write(tmp_path), NAMES)
    assert np.array_equal(pairs.theta, THETA) and np.array_equal(pairs.y, Y)
    assert pairs.data_names == tuple(COLUMNS)


def test_row_numbers_of_pandas_are_no_data(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(np.hstack([THETA, Y]), columns=[*NAMES, *COLUMNS])
    for index in ([2, 0, 1], ["a", "b", "c"]):
        frame.set_index(pandas.Index(index)).to_parquet(tmp_path / "pairs.parquet")
        pairs = read_pairs(tmp_path / "pairs.parquet", NAMES)
        assert pairs.data_names == tuple(COLUMNS) and np.array_equal(pairs.y, Y)
    frame.insert(0, "Unnamed: 0", range(3))  # a file with row numbers, read and written again
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    with pytest.raises(ValueError, match="got Unnamed: 0 for column 1 of 6"):
        read_pairs(tmp_path / "pairs.csv", NAMES)


@pytest.mark.parametrize("engine", ["h5netcdf", "scipy"])
@pytest.mark.parametrize("labels", [["run A", "Lauf ß", "c"], [7, 8, 9]])
def test_labels_of_a_netcdf_file_are_its_coordinate_observation(tmp_path, engine, labels):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    found = xarray.Dataset({"y": (("observation", "time"), Y)}, {"observation": labels, "time": [0.0, 1.0, 2.0]})
    found.to_netcdf(tmp_path / "y.nc", engine=engine)
    read, y = read_observations(tmp_path / "y.nc", COLUMNS, (3,))
    assert read == [str(each) for each in labels] and np.array_equal(y, Y)


SERIES = np.arange(24.0).reshape(3, 2, 4)


def series_npz(path):
    np.savez(path / "pairs.npz", theta=THETA, y=SERIES)
    return path / "pairs.npz"


def series_classic(path):
    with netcdf_file(path / "pairs.nc", "w") as file:
        for name, size in (("pair", 3), ("parameter", 2), ("channel", 2), ("time", 4)):
            file.createDimension(name, size)
        file.createVariable("time", "d", ("time",))[:] = np.arange(4)
        file.createVariable("theta", "d", ("pair", "parameter"))[:] = THETA
        file.createVariable("y", "d", ("pair", "channel", "time"))[:] = SERIES
    return path / "pairs.nc"


def series_netcdf4(path):
    h5netcdf = pytest.importorskip("h5netcdf")
    with h5netcdf.File(path / "pairs.nc", "w") as file:
        file.dimensions = {"pair": 3, "parameter": 2, "channel": 2, "time": 4}
        file.create_variable("theta", ("pair", "parameter"), data=THETA)
        y = file.create_variable("y", ("pair", "channel", "time"), data=(2 * SERIES).astype(np.int16))
        y.attrs["scale_factor"] = 0.5
    return path / "pairs.nc"


@pytest.mark.parametrize("write", [series_npz, series_classic, series_netcdf4])
def test_series_come_as_arrays(tmp_path, write):
    pairs = read_pairs(write(tmp_path), NAMES)
    assert np.array_equal(pairs.theta, THETA) and np.array_equal(pairs.y, SERIES) and pairs.data_names == ()
    labels, y = read_observations(write(tmp_path), (), (2, 4))
    assert np.array_equal(y, SERIES) and labels == ["1", "2", "3"]


def test_a_prior_file_can_say_which_columns_are_data(tmp_path):
    rows = [[*t, *y, "fine"] for t, y in zip(THETA, Y, strict=True)]
    path = write_csv(tmp_path / "pairs.csv", [*NAMES, *COLUMNS, "comment"], rows)
    assert np.array_equal(read_pairs(path, NAMES, prefix="r_").y, Y)
    assert np.array_equal(read_pairs(path, NAMES, columns=["r_3", "r_1"]).y, Y[:, [2, 0]])
    with pytest.raises(ValueError, match=r"column 'comment' of .*pairs.csv, got 'fine' in line 2"):
        read_pairs(path, NAMES)


WRONG = {
    "no column": (["mass", "r_1"], [[1, 2]], ["pairs.csv", "no 'length'", "mass, r_1", "mass,length,reading_1"]),
    "no data": (NAMES, [[1, 2]], ["pairs.csv", "columns of data beside the parameters", "mass,length,reading_1"]),
    "text": ([*NAMES, "r_1"], [[1, 2, 3], [1, "n/a", 3]], ["column 'length'", "'n/a' in line 3", "12.5"]),
    "comma": ([*NAMES, "r_1"], [[1.5, 2, '"3,5"']], ["column 'r_1'", "'3,5' in line 2", "write 3.5"]),
    "empty cell": ([*NAMES, "r_1"], [[1, 2, ""]], ["column 'r_1'", "an empty cell in line 2"]),
    "NaN": ([*NAMES, "r_1"], [[1, 2, 3], [1, 2, "nan"]], ["finite numbers in 'r_1'", "line 3"]),
    "short line": ([*NAMES, "r_1"], [[1, 2, 3], [1, 2]], ["3 cells in each line", "got 2 in line 3"]),
    "no names": (["1.5", "2"], [[1, 2]], ["a line of names first", "got numbers"]),
    "twice": (["mass", "mass"], [[1, 2]], ["different names of columns", "'mass' 2 times"]),
    "row numbers": (["", *NAMES, "r_1"], [[0, 1, 2, 3]], ["none for column 1 of 4", "index=False"]),
    "line break": ([*NAMES, "r_1"], [[1, 2, 3], [1, 2, '"3\n"'], [1, 2, 3]], ["in one line", "goes on after line 3"]),
    "open quote": ([*NAMES, "r_1"], [[1, 2, '"3'], *[[1, 2, 3]] * 30_000], ["in one line", "goes on after line 2"]),
    "numpy's header": (["# mass", "length"], [[1, 2]] * 2, ["names first", "got numbers: 1,2", "'# mass,length'"]),
    "numpy's header, one row": (["# mass", "length"], [[1, 2]], ["line of names", "'# mass,length'", 'comments=""']),
    "nothing": ([*NAMES], [], ["a line of names and one line per row", "got 1"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_answered_by_file_column_and_an_example(tmp_path, case):
    header, rows, words = WRONG[case]
    path = write_csv(tmp_path / "pairs.csv", header, rows)
    with pytest.raises(ValueError, match="Expected") as refused:
        read_pairs(path, NAMES)
    assert all(word in str(refused.value) for word in [*words, "pairs.csv"]), str(refused.value)


@pytest.mark.parametrize("number", [5, 12, 40])
def test_the_example_has_every_column_or_says_that_there_are_more(tmp_path, number):
    columns = [f"r_{k}" for k in range(number)]
    path = write_csv(tmp_path / "y.csv", ["r_0"], [[1], [2]])
    with pytest.raises(ValueError, match="no 'r_1'") as refused:
        read_observations(path, columns, (number,))
    example = str(refused.value).split("Write e.g.\n")[1]
    if number > 12:
        assert all(line.endswith(",...") for line in example.splitlines())
    else:
        path.write_text(example)
        assert read_observations(path, columns, (number,))[1].shape == (1, number)


def test_other_wrong_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.csv, which does not exist"):
        read_table(tmp_path / "nowhere.csv")
    (tmp_path / "pairs.xlsx").write_text("x")
    with pytest.raises(ValueError, match=r"\.csv, \.tsv, \.npz, \.parquet or \.nc, got .*pairs.xlsx"):
        read_table(tmp_path / "pairs.xlsx")
    np.savez(tmp_path / "objects.npz", theta=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"numpy.savez\(path, theta=theta, y=y\)"):
        read_table(tmp_path / "objects.npz")
    for name in ("a.npz", "a.nc"):
        (tmp_path / name).write_bytes(b"not what it says")
        with pytest.raises(ValueError, match=name) as refused:
            read_table(tmp_path / name)
        assert "pickle" not in str(refused.value)
    with pytest.raises(ValueError, match="which is a folder"):
        read_table(tmp_path)
    np.savez(tmp_path / "b.npz", theta=THETA.T, y=Y)
    with pytest.raises(ValueError, match=r"theta of shape \(N, 2\) in .*b.npz.*got \(2, 3\)"):
        read_pairs(tmp_path / "b.npz", NAMES)
    np.savez(tmp_path / "c.npz", theta=THETA[:2], y=Y)
    with pytest.raises(ValueError, match="got 2 and 3"):
        read_pairs(tmp_path / "c.npz", NAMES)
    np.savez(tmp_path / "d.npz", parameters=THETA, readings=Y)
    with pytest.raises(ValueError, match=r"d.npz, got no 'mass' among parameters, readings. Write arrays: numpy.savez"):
        read_pairs(tmp_path / "d.npz", NAMES)
    path = write_csv(tmp_path / "e.csv", ["Mass", "length", "r"], [[1, 2, 3]])
    with pytest.raises(ValueError, match=r"no 'mass' among Mass, length, r. Rename 'Mass'"):
        read_pairs(path, NAMES)
    with pytest.raises(ValueError, match=r"no names yet.* --names Mass,length"):
        read_pairs(path, ["theta[0]", "theta[1]"])


def test_observations_are_matched_by_name_and_may_have_labels(tmp_path):
    rows = [["run A", *Y[0, ::-1], 7.0], ["run B", *Y[1, ::-1], 7.0]]
    path = write_csv(tmp_path / "y.csv", ["observation", *COLUMNS[::-1], "humidity"], rows)
    labels, y = read_observations(path, COLUMNS, (3,))
    assert labels == ["run A", "run B"] and np.array_equal(y, Y[:2])
    with pytest.raises(ValueError, match=r"columns r_1, r_2, r_3, r_4 in .*y.csv.*no 'r_4'"):
        read_observations(path, [*COLUMNS, "r_4"], (4,))
    with pytest.raises(ValueError, match=r"shape \(3,\) in .*y.csv.*got \(4,\)"):
        read_observations(path, (), (3,))
    np.savez(tmp_path / "one.npz", y=Y[0])
    assert np.array_equal(read_observations(tmp_path / "one.npz", COLUMNS, (3,))[1], Y[:1])
    assert np.array_equal(read_observations(write_csv(tmp_path / "s.csv", ["y"], [[1], [2]]), (), (1,))[1], [[1], [2]])


def test_a_package_that_is_missing_is_named_with_what_to_type(tmp_path, monkeypatch):
    def without(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", without)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.nc").write_bytes(b"\x89HDF")
    for name in ("a.parquet", "a.nc"):
        with pytest.raises(ImportError, match=rf"{name}.*pip install 'fmcpe\[files\]'"):
            read_table(tmp_path / name)
    with pytest.raises(ImportError, match=r"pip install 'fmcpe\[files\]'"):
        drawn().save(tmp_path / "draws.nc")
    assert not (tmp_path / "draws.nc").exists() and drawn().save(tmp_path / "draws.csv").exists()


# ------------------------------------------------------------------ draws


def drawn():
    theta = np.random.default_rng(0).normal(size=(3, 50, 2)).astype(np.float32)
    return Draws(theta, NAMES, ("a", "b", "c"), np.array([0.5, 1e-9, 0.3]))


def test_draws_are_the_same_in_every_file(tmp_path):
    draws = drawn()
    with np.load(draws.save(tmp_path / "draws.npz"), allow_pickle=False) as file:
        assert np.array_equal(file["theta"], draws.theta)
        assert file["names"].tolist() == list(NAMES) and file["out_of_range"].tolist() == [False, True, False]
    table = read_table(draws.save(tmp_path / "draws.csv"))
    assert list(table.columns) == ["observation", "draw", *NAMES, "p_value", "out_of_range"]
    assert table.text("observation")[50] == "b" and table.numbers("p_value")[50] == 1e-9
    assert table.numbers("out_of_range").reshape(3, 50).mean(1).tolist() == [0, 1, 0]
    assert table.numbers("mass") == pytest.approx(draws.theta[..., 0].reshape(-1), rel=1e-6)
    frame = draws.to_dataframe()
    assert np.array_equal(frame["length"].to_numpy(), draws.theta[..., 1].reshape(-1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draws.csv", "draws.npz"]  # and nothing half written
    with pytest.raises(ValueError, match=r"\.csv, \.npz or \.nc"):
        draws.save(tmp_path / "draws.xlsx")
    with pytest.raises(FileNotFoundError, match="Create the folder"):
        draws.save(tmp_path / "none" / "draws.csv")


def test_netcdf_is_read_back(tmp_path):
    h5netcdf = pytest.importorskip("h5netcdf")
    draws = drawn()
    with h5netcdf.File(draws.save(tmp_path / "draws.nc"), "r") as file:
        assert file["posterior"]["length"].dimensions == ("chain", "draw", "observation")
        assert np.array_equal(file["posterior"]["length"][0, :, 2], draws.theta[2, :, 1])
        assert file["constant_data"]["out_of_range"][...].tolist() == [0, 1, 0]


def test_the_summary_of_draws_names_what_is_out_of_range():
    text = drawn().summary()
    low, high = np.quantile(drawn().theta[0, :, 0], [0.05, 0.95])
    assert f"[{low:.4g}, {high:.4g}]" in text and "OUT OF RANGE" in text.splitlines()[2]
    assert "1 of 3 observation(s) are out of range (b; p < 0.001; about 0.003 expected by chance)" in text
    many = Draws(np.zeros((30, 5, 1)), ("m",), tuple(map(str, range(30))), np.full(30, np.nan))
    assert "... and 10 more" in many.summary() and "keeps no pairs" in many.summary()
    usual = Draws(np.zeros((2, 5, 1)), ("m",), ("1", "2"), np.array([0.4, 0.002]))
    assert "None of 2 observation(s) is called out of range (p < 0.001)." in usual.summary()


@pytest.mark.parametrize(("delimiter", "quote"), [(";", ""), ("\t", ""), (",", '"')])
def test_decimal_commas_of_european_tables(tmp_path, delimiter, quote):
    file = tmp_path / "pairs.csv"
    rows = [["mass", "first", "label"], ["0,5", "1,25", "a, b"], ["2", "-3,5e2", "1,5"]]
    file.write_text("\n".join(delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in rows) + "\n")
    pairs = fmcpe.read_pairs(file, ["mass"], columns=["first"])
    assert pairs.theta.ravel().tolist() == [0.5, 2] and pairs.y.ravel().tolist() == [1.25, -350]
    assert pairs.table.text("label") == ["a, b", "1,5"] and "decimal commas" in pairs.table.notation


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0,5;1.25", "2;3"], r"'mass' of .*got '0,5' in line 2 and '1.25' in line 2. Use one of them: write 0.5"),
        (["1.234,5;1,25", "2;3"], r"got '1.234,5' in line 2, which has both.* write 1234.5"),
        (["1,250;1", "2;3,125"], r"got '1,250' in line 2, whose comma may separate thousands.* Write 1.250 or 1250"),
    ],
)
def test_ambiguous_commas_are_refused(tmp_path, lines, message):
    file = tmp_path / "pairs.csv"
    file.write_text("\n".join(["mass;first", *lines]) + "\n")
    with pytest.raises(ValueError, match=message):
        fmcpe.read_pairs(file, ["mass"])


def test_decimal_commas_between_commas_are_refused(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("mass,first\n0,5,1,25\n")
    with pytest.raises(ValueError, match=r"got 4 in line 2. If its commas begin decimals, separate .* with semicolons"):
        fmcpe.read_pairs(file, ["mass"])
