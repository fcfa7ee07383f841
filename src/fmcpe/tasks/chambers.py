"""Measured data of the causal chambers (Gamella et al., 2025): reading a folder, and splitting it.

Layouts, as the causalchamber package leaves them below a root folder:

    wt_intake_impulse_v1/load_out_0.5_osr_downwind_4.csv                 50 rows per impulse: hatch, pressure_downwind
    lt_camera_v1/<experiment>/<experiment>.csv and images_64/            red, green, blue, pol_1, pol_2, image_file

Reading needs neither that package nor a network. Rows are split once and for all: two fifths are for tests, and the
others are cut into pools of 1000 (3 of impulses, 6 of images). Seed k draws its calibration sets from pool k modulo their
number. So test sets never meet calibration sets, and seeds 0, 1 and 2 share no impulse; but seeds beyond the number of pools
share them: seeds 0 and 3 have the same 1000 impulses, each in an order of its own, so that their smaller sets differ and
overlap. All seeds have the same test measurements, in different orders.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.tasks.base import Stream
from fmcpe.tasks.wind_tunnel_model import H_MAX, NUM_TIMES

IMPULSES = ("wt_intake_impulse_v1", "load_out_0.5_osr_downwind_4")
IMAGES = ("lt_camera_v1", "uniform_ap_1.8_iso_500.0_ss_0.005")
IMAGE_SIZE = 64

_TEST_SHARE = 0.4
_POOL = 1000
# The recorded hatch is the position of a stepper motor, which may pass a bound by less than a step.
_HATCH_TOLERANCE = 0.2


@dataclass(frozen=True)
class Measurements:
    """Pairs that were measured, and their split.

    Args:
        source: Where they come from, for messages.
        theta: ``(N, p)``.
        read: The data of the rows with these indices, ``(n, *x_shape)``.
    """

    source: str
    theta: Tensor
    read: Callable[[Tensor], Tensor]

    def pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        """The first ``n`` pairs of a stream of ``seed``; seeds beyond the number of pools share those of smaller ones."""
        pool = self._pool(stream, seed)
        if n > len(pool):
            raise ValueError(
                f"n={n} {stream} pairs were asked for, but {self.source} has {len(pool)} for one seed; "
                f"pass n={len(pool)} or less."
            )
        with seeded(derive(seed, self.source_name, stream)):
            rows = pool[torch.randperm(len(pool))][:n]
        return self.theta[rows], self.read(rows)

    @property
    def test_limit(self) -> int:
        """How many test pairs there are."""
        return math.ceil(_TEST_SHARE * len(self.theta))

    @property
    def source_name(self) -> str:
        # Not the whole path: a set must not depend on where the folder lies.
        return Path(self.source).stem

    def no_observe(self, task: str) -> NotImplementedError:
        """What to raise when someone asks for a measurement at any θ."""
        return NotImplementedError(
            f"observe(theta) was called, but the real side of {task!r} is measured, in {self.source}, at the recorded "
            "theta alone; use calibration_set(n, seed) or test_set(n, seed)."
        )

    def _pool(self, stream: Stream, seed: int) -> Tensor:
        total = len(self.theta)
        with seeded(derive(0, self.source_name, "split")):
            order = torch.randperm(total)
        if stream == "test":
            return order[: self.test_limit]
        rest = order[self.test_limit :]
        pools = max(1, len(rest) // _POOL)
        size = len(rest) // pools
        return rest[(seed % pools) * size :][:size]


def fingerprint(data: str | PathLike[str], task: str) -> str:
    """A short hash of a task's measured data: the content of the table and of the images that it lists.

    Args:
        data: As for `read_impulses` and `read_images`.
        task: ``"wind-tunnel"`` or ``"light-tunnel"``.
    """
    images = task == "light-tunnel"
    path = _csv_of(Path(data), IMAGES if images else IMPULSES, in_own_folder=images)
    found = hashlib.sha256(path.read_bytes())
    for name in sorted(set(_columns(path, ("image_file",))["image_file"])) if images else []:
        found.update(name.encode() + (path.parent / f"images_{IMAGE_SIZE}" / name).read_bytes())
    return found.hexdigest()[:12]


def read_impulses(data: str | PathLike[str]) -> Measurements:
    """The wind tunnel's impulses.

    Args:
        data: The root folder, the data set's folder, or the csv file itself.
    """
    path = _csv_of(Path(data), IMPULSES, in_own_folder=False)
    columns = _columns(path, ("hatch", "pressure_downwind"))
    hatch, pressure = (np.asarray(columns[name], dtype=np.float64) for name in ("hatch", "pressure_downwind"))
    whole = len(hatch) > 0 and len(hatch) % NUM_TIMES == 0
    if not whole or not (hatch.reshape(-1, NUM_TIMES) == hatch[::NUM_TIMES, None]).all():
        raise ValueError(
            f"{path} has {len(hatch)} rows that are not runs of {NUM_TIMES} with one hatch position each, as in experiment "
            f"{IMPULSES[1]}; pass that experiment's file, unsorted and complete."
        )
    theta = _inside(torch.from_numpy(hatch[::NUM_TIMES]).float()[:, None], 0.0, H_MAX, _HATCH_TOLERANCE, path, "hatch")
    series = torch.from_numpy(pressure.reshape(-1, NUM_TIMES))
    # Subtracted in double precision: a float32 near 10⁵ Pa has steps of 0.008 Pa.
    y = (series - series[:, :1]).float()
    return Measurements(str(path), theta, lambda rows: y[rows])


def read_images(data: str | PathLike[str]) -> Measurements:
    """The light tunnel's images; each is read from disk when a set asks for it.

    Args:
        data: The root folder, the data set's folder, the experiment's folder, or its csv file.
    """
    path = _csv_of(Path(data), IMAGES, in_own_folder=True)
    columns = _columns(path, ("red", "green", "blue", "pol_1", "pol_2", "image_file"))
    values = {k: torch.tensor([float(v) for v in columns[k]]) for k in ("red", "green", "blue", "pol_1", "pol_2")}
    alpha = torch.cos(torch.deg2rad(values["pol_1"].double() - values["pol_2"])).square().float().clamp(0, 1)
    colour = torch.stack([values["red"], values["green"], values["blue"]], 1)
    theta = torch.cat([_inside(colour, 0.0, 255.0, 0.0, path, "red, green, blue"), alpha[:, None]], 1)
    folder = path.parent / f"images_{IMAGE_SIZE}"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not there, but the {IMAGE_SIZE}-pixel images of {path.stem} were expected in it; unpack the "
            f"data set completely, or download it with fmcpe.tasks.download('light-tunnel', ...)."
        )
    files = columns["image_file"]
    present = {entry.name for entry in folder.iterdir()}
    missing = [name for name in files if name not in present]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(files)} images that {path} lists are not in {folder}, the first {missing[0]!r}; "
            "unpack the data set completely."
        )
    return Measurements(str(path), theta, lambda rows: torch.stack([_image(folder / files[i]) for i in rows.tolist()]))


def _image(path: Path) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path} is not a readable image ({error}); fetch this file again.") from error
    if pixels.shape != (IMAGE_SIZE, IMAGE_SIZE, 3):
        raise ValueError(
            f"{path} is {pixels.shape[1]} by {pixels.shape[0]} pixels, but {IMAGE_SIZE} by {IMAGE_SIZE} were expected; "
            f"put the images of folder images_{IMAGE_SIZE} there."
        )
    return torch.from_numpy(pixels.copy()).float() / 255


def _csv_of(path: Path, names: tuple[str, str], *, in_own_folder: bool) -> Path:
    """The experiment's csv file below `path`, which may be any of the folders on the way to it."""
    dataset, experiment = names
    inner = Path(experiment, f"{experiment}.csv") if in_own_folder else Path(f"{experiment}.csv")
    if path.is_file():
        return path
    if not path.exists():
        raise FileNotFoundError(
            f"There is no folder {path}; the folder that holds {Path(dataset, inner)} was expected. Pass data= that "
            "folder, or leave data out for the stand-in."
        )
    for candidate in (path / dataset / inner, path / inner, path / inner.name):
        if candidate.is_file():
            return candidate
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    raise FileNotFoundError(
        f"Folder {path} holds {found}, but {Path(dataset, inner)} was expected in it; pass data= the folder above "
        f"{dataset}, or download the data set with fmcpe.tasks.download."
    )


def _columns(path: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    rows = csv.reader(io.StringIO(_text(path), newline=""))
    try:
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in names if name not in header]
        if missing:
            raise ValueError(
                f"{path} has no column {', '.join(map(repr, missing))}; {', '.join(names)} were expected. Its columns are "
                f"{', '.join(header) or 'none'}: pass another file, or rename them."
            )
        places = [header.index(name) for name in names]
        records = [[row[i] for i in places] for row in rows if row]
    except IndexError:
        raise ValueError(
            f"{path} breaks off in line {rows.line_num}, where {len(header)} values were expected; fetch the file again."
        ) from None
    except csv.Error as error:
        raise ValueError(
            f"{path} is not a csv file from line {rows.line_num} on ({error}), which was expected; fetch the file again."
        ) from error
    if not records:
        raise ValueError(f"{path} has a header and no rows, but measurements were expected; fetch the file again.")
    values = {name: [record[i] for record in records] for i, name in enumerate(names)}
    _check_numbers(path, {name: column for name, column in values.items() if name != "image_file"})
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets put a byte-order mark before the first name
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in UTF-8 (byte {error.start} is {error.object[error.start]:#04x}), but a csv file was "
            "expected; save it as csv in UTF-8, or fetch the file again."
        ) from None


def _check_numbers(path: Path, columns: dict[str, list[str]]) -> None:
    for name, column in columns.items():
        for line, value in enumerate(column, start=2):
            try:
                finite = math.isfinite(float(value))
            except ValueError:
                finite = False
            if not finite:
                raise ValueError(
                    f"{path} has {value!r} in column {name!r}, line {line}, but a finite number was expected; mend or "
                    "remove that measurement."
                )


def _inside(value: Tensor, low: float, high: float, tolerance: float, path: Path, name: str) -> Tensor:
    outside = (value < low - tolerance) | (value > high + tolerance)
    if outside.any():
        raise ValueError(
            f"{path} has {name} = {float(value[outside][0]):g}, but {low:g} to {high:g} were expected; check the units."
        )
    return value.clamp(low, high)
