"""The tables of a run directory's SQLite file.

- `units.attempts`: number of times that the worker of the unit died. Units in flight when a run is killed are not charged.
- `files`: SHA-256 of each file of a result, since disks forget. Runs of earlier versions have no rows here.
- `owners.host`: namespace of the run's process id, see `fmcpe.bench.system.namespace`.
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
CREATE TABLE IF NOT EXISTS files (
    unit TEXT NOT NULL, name TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (unit, name));
CREATE TABLE IF NOT EXISTS events (
    time REAL NOT NULL, owner TEXT NOT NULL, unit TEXT NOT NULL, what TEXT NOT NULL);
"""
