"""A baseline as an SQLite file, for large fleets and SQL queries.

Saving a run is one transaction with a rollback journal, which also works on a shared file system (a
write-ahead log needs shared memory).
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from meshrun.jobs.validate.baseline.baseline_run import (
    VERSION,
    BaselineRun,
    FigureRow,
    broken,
    header,
    newer,
    not_a_baseline,
    numbered,
    parse_run,
    unreadable,
    unwritable,
)
from meshrun.runner.files import create

TIMEOUT = 30.0  # seconds to wait for other writers
APPLICATION = 0x4D455348  # "MESH", in the header of the file

# hosts, devices, environment, sizes: JSON, as in the JSON format.
TABLES = (
    """CREATE TABLE runs (id INTEGER PRIMARY KEY, number INTEGER NOT NULL, started TEXT NOT NULL,
    hosts TEXT NOT NULL, devices TEXT NOT NULL, environment TEXT NOT NULL, sizes TEXT NOT NULL)""",
    """CREATE TABLE figures (run INTEGER NOT NULL, rung TEXT NOT NULL, what TEXT NOT NULL, part TEXT NOT NULL,
    rate REAL NOT NULL, PRIMARY KEY (run, rung, what, part)) WITHOUT ROWID""",
)
AS_JSON = ("hosts", "devices", "environment", "sizes")


def read(path: Path) -> list[BaselineRun]:
    """Return all runs, oldest first. Raises UserError."""
    try:
        path.open("rb").close()
    except OSError as reason:
        raise unreadable(path, reason) from reason
    try:
        with closing(opened(path, "ro")) as base:
            base.execute("BEGIN")  # the reads below see one state of the file
            if is_new(path, base):
                return []
            return list(runs_in(base).values())
    except sqlite3.OperationalError as reason:  # locked, no access
        raise unreadable(path, OSError(str(reason))) from reason
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as reason:
        raise broken(path, reason) from reason


def add(path: Path, new: BaselineRun) -> BaselineRun:
    """Save a run. Returns it with its number. Raises UserError, in which case nothing has changed."""
    try:
        if not path.exists():  # it gets its name when it is whole: a failure leaves no part
            with TemporaryDirectory() as folder:
                whole = Path(folder, path.name)
                first = add_in_transaction(whole, new)
                if create(path.resolve(), whole.read_bytes()):
                    return first
        return add_in_transaction(path, new)
    except (sqlite3.OperationalError, OSError) as reason:
        raise unwritable(path, reason) from reason
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as reason:
        raise broken(path, reason) from reason


def add_in_transaction(path: Path, new: BaselineRun) -> BaselineRun:
    """Save a run in a file that others may write at the same time; see `add`."""
    with closing(opened(path, "rwc")) as base:
        base.execute("PRAGMA journal_mode = DELETE")
        base.execute("BEGIN IMMEDIATE")  # waits for other writers before reading
        if is_new(path, base):
            for table in TABLES:
                base.execute(table)
            base.execute(f"PRAGMA application_id = {APPLICATION}")
            base.execute(f"PRAGMA user_version = {VERSION}")
        runs = runs_in(base, figures=False)
        new, gone = numbered(list(runs.values()), new)
        insert(base, new)
        left = {(run.fleet, run.number) for run in gone}
        old = [(key,) for key, run in runs.items() if (run.fleet, run.number) in left]
        base.executemany("DELETE FROM figures WHERE run = ?", old)
        base.executemany("DELETE FROM runs WHERE id = ?", old)
        base.execute("COMMIT")  # closing the connection before this changes nothing
    return new


def opened(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(address, TIMEOUT, isolation_level=None, uri=True)


def is_new(path: Path, base: sqlite3.Connection) -> bool:
    """Return whether the file is empty. Raises UserError if it is no baseline or of a newer version."""
    owner = base.execute("PRAGMA application_id").fetchone()[0]
    if owner == 0 and not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return True
    if owner != APPLICATION:
        raise not_a_baseline(path)
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise newer(path, version)
    return False


def runs_in(base: sqlite3.Connection, figures: bool = True) -> dict[int, BaselineRun]:
    """Return runs by id, in the order in which they were saved."""
    rows: dict[int, list[FigureRow]] = defaultdict(list)
    if figures:
        for run, *row in base.execute("SELECT run, rung, what, part, rate FROM figures"):
            rows[run].append((row[0], row[1], row[2], row[3]))
    found = {}
    columns = ("id", "number", "started", *AS_JSON)
    for values in base.execute(f"SELECT {', '.join(columns)} FROM runs ORDER BY id"):
        kept = dict(zip(columns, values, strict=True))
        kept |= {name: json.loads(kept[name]) for name in AS_JSON}
        found[kept["id"]] = parse_run(kept, rows[kept["id"]])
    return found


def insert(base: sqlite3.Connection, run: BaselineRun) -> None:
    kept = header(run)
    values = [json.dumps(kept[name]) if name in AS_JSON else kept[name] for name in kept]
    marks = ", ".join("?" * len(values))
    key = base.execute(f"INSERT INTO runs ({', '.join(kept)}) VALUES ({marks})", values).lastrowid
    rows = ((key, *figure, rate) for figure, rate in run.figures.items())
    base.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?)", rows)
