"""The tables of a run directory's SQLite file, and what in them is not plain from its name.

- `units.attempts`: tries that count against a unit, those during which its worker died. A run that was killed is no fault of
  the units it had in flight.
- `owners.host`: where a run's process number means something, see `fmcpe.bench.system.namespace`.
"""

SCHEMA = """
CREATE TABLE IF NOT EXISTS units (
    id TEXT PRIMARY KEY, unit TEXT NOT NULL, label TEXT NOT NULL, seed INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'running', 'done', 'failed')),
    owner TEXT, attempts INTEGER NOT NULL DEFAULT 0, started REAL, finished REAL, seconds REAL,
    versions TEXT, metrics TEXT, traceback TEXT);
CREATE TABLE IF NOT EXISTS plans (
    experiment TEXT NOT NULL, preset TEXT NOT NULL, position INTEGER NOT NULL, unit TEXT NOT NULL REFERENCES units (id),
    PRIMARY KEY (experiment, preset, position));
CREATE TABLE IF NOT EXISTS owners (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL, heartbeat REAL NOT NULL,
    command TEXT NOT NULL, started REAL NOT NULL, ended REAL);
CREATE TABLE IF NOT EXISTS events (
    time REAL NOT NULL, owner TEXT NOT NULL, unit TEXT NOT NULL, what TEXT NOT NULL);
"""
