"""Export of a run: the page, all tables as CSV and text, all numbers, and the finished units."""

from __future__ import annotations

from pathlib import Path

from fmcpe._disk import write_whole
from fmcpe.bench import zoo
from fmcpe.bench.numbers import all_numbers
from fmcpe.bench.report import BEYOND, SECTIONS, claims_table, whole_page
from fmcpe.bench.restore import UNITS_FILE, finished_units
from fmcpe.bench.results import Results
from fmcpe.bench.table import Table


def keep(directory: str | Path, target: str | Path, preset: str | None = None) -> list[Path]:
    """Write the results of a run directory to a folder.

    Args:
        directory: The run directory.
        target: The folder; created if missing. Existing files of the same names are replaced.
        preset: The preset to export; the most complete one of each experiment if None.

    Returns:
        The files: the page, one CSV file per table and per experiment, all tables as text, and units for `restore`.
    """
    results, folder = Results.read(directory, preset), Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, str] = {"report.html": whole_page(results)}
    texts = []
    for section in SECTIONS:
        if not results.done(section.experiment):
            continue
        content[f"{section.experiment}-units.csv"] = all_numbers(results, section.experiment)
        for _, item in section.content(results):
            if isinstance(item, Table) and item.rows:
                content[f"{section.key}-{item.name}.csv"] = item.as_csv()
                texts.append(f"[{section.key}] {item.as_text()}")
    if any(results.done(section.experiment) for section in SECTIONS if section.key not in BEYOND):
        claims = claims_table(results)
        content["claims.csv"] = claims.as_csv()
        texts.insert(0, f"[claims] {claims.as_text()}")
    if results.done("zoo"):
        content["zoo.json"] = zoo.as_json(results)
    content["tables.txt"] = "\n\n\n".join(texts) + "\n"
    for name, text in content.items():
        write_whole(folder / name, text.encode())
        (folder / name).chmod(0o644)
    write_whole(folder / UNITS_FILE, finished_units(results))
    (folder / UNITS_FILE).chmod(0o644)
    return [folder / name for name in (*content, UNITS_FILE)]
