"""Measured data of the causal chambers (Gamella et al., 2025): reading and splitting.

Layout of the causalchamber package below a root folder:

    wt_intake_impulse_v1/load_out_0.5_osr_downwind_4.csv                 50 rows per impulse: hatch, pressure_downwind
    lt_camera_v1/<experiment>/<experiment>.csv and images_64/            red, green, blue, pol_1, pol_2, image_file

Reading needs neither that package nor a network. The split of the rows is fixed: two fifths are for tests, and the rest is
divided into pools of 1000 (3 of impulses, 6 of images). Seed k draws its calibration sets from pool k modulo the number of
pools. So test and calibration sets are disjoint, and seeds 0, 1 and 2 share no impulse, but seeds 0 and 3 have the same 1000
impulses in different orders: their smaller sets overlap. All seeds have the same test measurements, in different orders.
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
# The recorded hatch is the position of a stepper motor, which may exceed a bound by less than a step.
_HATCH_TOLERANCE = 0.2


@dataclass(frozen=True)
class Measurements:
    """Measured pairs and their split.

    Args:
        source: Origin of the data, for messages.
        theta: ``(N, p)``.
        read: Function from row indices to their data, ``(n, *x_shape)``.
    """

    source: str
    theta: Tensor
    read: Callable[[Tensor], Tensor]

    def pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        """The first ``n`` pairs of a stream of ``seed``; seeds beyond the number of pools reuse them."""
        pool = self._pool(stream, seed)
        if n > len(pool):
            raise ValueError(
                f"Expected at most {len(pool)} {stream} pairs, as {self.source} has {len(pool)} for one seed, got n={n}. "
                f"Pass n={len(pool)} or less."
            )
        with seeded(derive(seed, self.source_name, stream)):
            rows = pool[torch.randperm(len(pool))][:n]
        return self.theta[rows], self.read(rows)

    @property
    def test_limit(self) -> int:
        """Number of test pairs."""
        return math.ceil(_TEST_SHARE * len(self.theta))

    @property
    def source_name(self) -> str:
        # not the whole path: a set must not depend on the location of the folder
        return Path(self.source).stem

    def no_observe(self, task: str) -> NotImplementedError:
        """The error of `observe`: measurements exist at the recorded θ only."""
        return NotImplementedError(
            f"Expected a task whose real process can be run, got {task!r} with measured data ({self.source}), which has "
            "observations at the recorded theta only. Use calibration_set(n, seed) or test_set(n, seed)."
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
    """A short hash of a task's measured data: the content of the table and its images.

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
            f"Expected impulses of {NUM_TIMES} rows with one hatch position each, as in experiment {IMPULSES[1]}, got "
            f"{len(hatch)} rows in {path} that are not. Pass that experiment's file, unsorted and complete."
        )
    theta = _inside(torch.from_numpy(hatch[::NUM_TIMES]).float()[:, None], 0.0, H_MAX, _HATCH_TOLERANCE, path, "hatch")
    series = torch.from_numpy(pressure.reshape(-1, NUM_TIMES))
    # in double precision, since float32 has steps of 0.008 Pa near 10⁵ Pa
    y = (series - series[:, :1]).float()
    return Measurements(str(path), theta, lambda rows: y[rows])


def read_images(data: str | PathLike[str]) -> Measurements:
    """The light tunnel's images, read from disk on use.

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
            f"Expected the {IMAGE_SIZE}-pixel images of {path.stem} in {folder}, got no such folder. Unpack the data set "
            "completely, or download it with fmcpe.tasks.download('light-tunnel', ...)."
        )
    files = columns["image_file"]
    present = {entry.name for entry in folder.iterdir()}
    missing = [name for name in files if name not in present]
    if missing:
        raise FileNotFoundError(
            f"Expected all images that {path} lists in {folder}, got {len(missing)} of {len(files)} images missing, the first "
            f"{missing[0]!r}. Unpack the data set completely."
        )
    return Measurements(str(path), theta, lambda rows: torch.stack([_image(folder / files[i]) for i in rows.tolist()]))


def _image(path: Path) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"Expected a readable image, got {path} ({error}). Fetch this file again.") from error
    if pixels.shape != (IMAGE_SIZE, IMAGE_SIZE, 3):
        raise ValueError(
            f"Expected {IMAGE_SIZE} by {IMAGE_SIZE} pixels, got {pixels.shape[1]} by {pixels.shape[0]} in {path}. "
            f"Use the images of folder images_{IMAGE_SIZE}."
        )
    return torch.from_numpy(pixels.copy()).float() / 255


def _csv_of(path: Path, names: tuple[str, str], *, in_own_folder: bool) -> Path:
    """The experiment's csv file; `path` is the file or any of the folders above it."""
    dataset, experiment = names
    inner = Path(experiment, f"{experiment}.csv") if in_own_folder else Path(f"{experiment}.csv")
    if path.is_file():
        return path
    if not path.exists():
        raise FileNotFoundError(
            f"Expected the folder that contains {Path(dataset, inner)}, got {path}, which does not exist. Pass data= that "
            "folder, or leave data out for the stand-in."
        )
    for candidate in (path / dataset / inner, path / inner, path / inner.name):
        if candidate.is_file():
            return candidate
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    raise FileNotFoundError(
        f"Expected {Path(dataset, inner)} in folder {path}, got {found}. Pass data= the folder above {dataset}, or download "
        "the data set with fmcpe.tasks.download."
    )


def _columns(path: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    rows = csv.reader(io.StringIO(_text(path), newline=""))
    try:
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in names if name not in header]
        if missing:
            raise ValueError(
                f"Expected columns {', '.join(names)} in {path}, got no column {', '.join(map(repr, missing))} among "
                f"{', '.join(header) or 'none'}. Pass another file, or rename its columns."
            )
        places = [header.index(name) for name in names]
        records = [[row[i] for i in places] for row in rows if row]
    except IndexError:
        raise ValueError(
            f"Expected {len(header)} values in line {rows.line_num} of {path}, got a truncated line. Fetch the file again."
        ) from None
    except csv.Error as error:
        raise ValueError(
            f"Expected a csv file, got invalid text in line {rows.line_num} of {path} ({error}). Fetch the file again."
        ) from error
    if not records:
        raise ValueError(f"Expected measurements in {path}, got a header without rows. Fetch the file again.")
    values = {name: [record[i] for record in records] for i, name in enumerate(names)}
    _check_numbers(path, {name: column for name, column in values.items() if name != "image_file"})
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected a csv file in UTF-8, got other bytes in {path} (byte {error.start} is "
            f"{error.object[error.start]:#04x}). Save it as csv in UTF-8, or fetch the file again."
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
                    f"Expected a finite number in column {name!r}, line {line} of {path}, got {value!r}. Correct or "
                    "remove that measurement."
                )


def _inside(value: Tensor, low: float, high: float, tolerance: float, path: Path, name: str) -> Tensor:
    outside = (value < low - tolerance) | (value > high + tolerance)
    if outside.any():
        raise ValueError(
            f"Expected {name} from {low:g} to {high:g} in {path}, got {float(value[outside][0]):g}. Check the units."
        )
    return value.clamp(low, high)
