"""Finding a job: in a user's file by path, in a module by name, or among the installed ones."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find, load_file, names

ONE = """
import meshrun

@meshrun.map_blocks(halo=1)
def edges(block):
    "Edges."
    return block
"""
TWO = (
    ONE
    + """
@meshrun.map_blocks
def blur(block):
    return block

def plain(block):
    return block
"""
)


@pytest.fixture(autouse=True)
def own_import_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0].startswith(("meshrun_user_", "neighbour")):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_a_job_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    found = find(f"{path}:blur")
    assert isinstance(found, Job)
    assert found.name == "blur"


def test_the_only_job_of_a_file_needs_no_name(tmp_path: Path) -> None:
    assert find(str(write(tmp_path, ONE))).name == "edges"


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ONE)
    monkeypatch.chdir(tmp_path)
    assert find("mine.py:edges").name == find("./mine.py").name == "edges"


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (TWO, "", r"declares 2 jobs: expected one of .*mine\.py:edges, .*mine\.py:blur"),
        (
            TWO,
            ":plain",
            "declares no job 'plain': function `plain` has no decorator. Try: put @meshrun.distribute",
        ),
        (TWO, ":missing", "declares no job 'missing': its jobs are edges, blur"),
        (
            "x = 1\n",
            "",
            r"mine\.py declares no job: it has no function. Try: a function under @meshrun.distribute",
        ),
        ("x = 1\n", ":x", r"mine\.py declares no job 'x': `x` is an object of int$"),
        (
            "def f(a): ...\n",
            "",
            r"declares no job: function `f` has no decorator. Try: put @meshrun.distribute, or .* above it",
        ),
        (
            "def f(a): ...\ndef g(a): ...\ndef _h(a): ...",
            "",
            "functions `f`, `g` have no decorator. Try: put .* above one",
        ),
        ("from json import loads\n", "", "it has no function"),
        ("def broken(:\n", "", r"^syntax error in .*mine\.py, line 1: invalid syntax$"),
        ("x = 1\0\n", "", r"^syntax error in .*mine\.py: source code string cannot contain null bytes$"),
        (
            "import no_such_module_anywhere\n",
            "",
            r"No module named 'no_such_module_anywhere' \(.*mine\.py:1\)",
        ),
        (
            "from json import nothing\n",
            "",
            r"cannot be imported: cannot import name 'nothing' from 'json' .*mine\.py:1",
        ),
        ("import json\njson.loads('{')\n", "", r"JSONDecodeError: .*\(.*mine\.py:2\)"),
        (
            "import meshrun\nmeshrun.mapblocks\n",
            "",
            r"no attribute 'mapblocks'; did you mean map_blocks\? \(.*mine\.py:2\)",
        ),
    ],
)
def test_files_without_the_job(tmp_path: Path, text: str, name: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=words):
        find(f"{path}{name}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.py", tmp_path):
        with pytest.raises(UserError, match=r"does not exist|unknown job"):
            find(str(path))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UserError, match=r"folder\.py is no file"):
        find(f"{tmp_path}/folder.py:edges")
    write(tmp_path, ONE)
    with pytest.raises(UserError, match=r"min\.py does not exist. Try: .*mine\.py$"):
        find(f"{tmp_path}/min.py:edges")


def test_a_syntax_error_in_a_neighbour_names_both_files(tmp_path: Path) -> None:
    (tmp_path / "faulty_neighbour.py").write_text("x = (\n")
    path = write(tmp_path, "import faulty_neighbour\n")
    with pytest.raises(
        UserError, match=r"mine\.py cannot be imported: syntax error in .*neighbour\.py, line 1: '\('"
    ):
        find(str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("class Odd(Exception): ...\nraise Odd('very')\n", "Odd: very"),
        ("import sys\nsys.exit(0)\n", "it ends the program, SystemExit: 0"),
    ],
)
def test_an_error_in_the_users_code_is_a_sentence_and_keeps_its_traceback(
    tmp_path: Path, text: str, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=rf"mine\.py cannot be imported: {words} \(.*mine\.py:\d\)") as caught:
        find(str(path))
    cause = caught.value.__cause__
    assert cause is not None
    assert traceback.extract_tb(cause.__traceback__)[-1].filename == str(path)


def test_ctrl_c_in_the_users_code_stays_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        find(str(write(tmp_path, "raise KeyboardInterrupt\n")))


def test_a_file_may_import_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, "NAME = 'from next door'\n", "neighbour_of_mine.py")
    path = write(tmp_path, "from neighbour_of_mine import NAME\n" + ONE)
    assert load_file(path).NAME == "from next door"


def test_a_neighbour_cannot_take_our_place(tmp_path: Path) -> None:
    for name in ("runner.py", "jobs.py", "numpy.py", "json.py"):
        write(tmp_path, "raise AssertionError('a user file shadows a package')\n", name)
    path = write(tmp_path, "import json, numpy\n" + ONE)
    assert find(str(path)).name == "edges"
    assert str(tmp_path) == sys.path[-1]


def test_dataclasses_and_names_with_odd_letters(tmp_path: Path) -> None:
    """`dataclasses` looks its class's module up by name."""
    future, point = "from __future__ import annotations\n", "@dataclass\nclass Point:\n    x: int\n"
    text = f"{future}from dataclasses import dataclass\n{ONE}\n{point}"
    assert find(str(write(tmp_path, text, "my job-2.py"))).name == "edges"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    first = load_file(write(tmp_path / "a", "WHERE = 'a'\n" + ONE))
    second = load_file(write(tmp_path / "b", "WHERE = 'b'\n" + ONE))
    assert (first.WHERE, second.WHERE) == ("a", "b")


def test_the_folder_is_listed_once(tmp_path: Path) -> None:
    path = write(tmp_path, ONE)
    for _ in range(3):
        find(str(path))
    assert sys.path.count(str(tmp_path)) == 1


# Modules by name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a package of jobs."""
    write(tmp_path / "neighbour", "", "__init__.py")
    both = "from neighbour.one import edges\nimport meshrun\n" + TWO.replace(ONE, "")
    write(tmp_path / "neighbour", both, "two.py")
    write(tmp_path / "neighbour", ONE, "one.py")
    write(tmp_path / "neighbour" / "inner", "x = 1\n", "none.py")  # a package without __init__.py
    write(tmp_path / "neighbour", "import no_such_module_anywhere\n", "needs.py")
    write(tmp_path / "neighbour", "from neighbour.missing import x\n", "half.py")
    write(tmp_path / "neighbour", "1 / 0\n", "broken.py")
    write(tmp_path / "neighbour", "import sys\nsys.exit(0)\n", "leaves.py")
    write(tmp_path, ONE, "neighbour_alone.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("neighbour.two:blur", "blur"),
        ("neighbour.two:edges", "edges"),
        ("neighbour.one:", "edges"),
        ("neighbour_alone:edges", "edges"),
        ("meshrun.jobs.filters.laplacian:laplacian", "laplacian"),
    ],
)
def test_a_job_in_a_module(name: str, found: str) -> None:
    assert find(name).name == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "nosuch:edges",
            r"module nosuch does not exist: got nosuch:edges, expected .* installed or in .*Try: meshrun",
        ),
        ("neighbour.nosuch:edges", r"module neighbour\.nosuch does not exist"),
        ("nosuch.one:edges", r"module nosuch\.one does not exist"),
        ("neighbour.one.deeper:edges", r"module neighbour\.one\.deeper does not exist"),
        (
            "neighbour.two:",
            r"module neighbour\.two .* declares 2 jobs: expected one of neighbour.two:edges, .*:blur",
        ),
        (
            "neighbour.two:plain",
            r"module neighbour\.two \(.*two\.py\) declares no job 'plain': function `plain`",
        ),
        ("neighbour.inner.none:edges", "no job .edges.: it has no function"),
        ("neighbour.inner:edges", r"module neighbour\.inner declares no job 'edges'"),
        ("json:edges", r"module json \(.*\) declares no job 'edges'"),
        (
            "neighbour.needs:edges",
            r"module neighbour\.needs cannot be imported: No module named .no_such_module_anywhere",
        ),
        (
            "neighbour.half:edges",
            r"module neighbour\.half cannot be imported: No module named .neighbour\.missing",
        ),
        ("neighbour.broken:edges", r"broken cannot be imported: ZeroDivisionError.*broken\.py:1"),
        ("neighbour.leaves:edges", r"neighbour\.leaves cannot be imported: it ends the program, SystemExit"),
        ("neighbour/one:edges", r"unknown job.*MODULE:NAME\. Try: neighbour/one\.py:edges"),
        ("neighbour.one", r"unknown job.*Try: neighbour\.one:NAME"),
        ("text.txt", "unknown job.*Try: meshrun jobs$"),
        ("nowhere.txt", "unknown job.*Try: meshrun jobs$"),
        ("../one:edges", "unknown job"),
        ("neighbour..one:edges", "unknown job"),
        (":edges", "unknown job"),
        ("import:edges", "unknown job"),
    ],
)
def test_modules_without_the_job(package: Path, name: str, words: str) -> None:
    (package / "text.txt").write_text("no module")
    with pytest.raises(UserError, match=words):
        find(name)


def test_the_working_directory_takes_nobodys_place(package: Path) -> None:
    for name in ("json.py", "numpy.py", "msvcrt.py", "runner.py"):
        write(package, "raise AssertionError('a user file shadows a package')\n", name)
    write(package / "tasks", ONE, "mine.py")
    write(package, "import json, numpy\n" + ONE, "neighbour_careful.py")
    assert find("neighbour_careful:edges").name == "edges"
    assert sys.path[-1] == str(package)
    with pytest.raises(UserError, match="module msvcrt does not exist"):
        find("msvcrt:edges")
    with pytest.raises(UserError, match=r"module json \(.*\) declares no job.*Try: json\.py:edges"):
        find("json:edges")
    assert find("tasks.mine:edges").name == "edges"


@pytest.mark.usefixtures("package")
def test_a_module_is_imported_once() -> None:
    assert find("neighbour.one:edges") is find("neighbour.two:edges")


def test_an_installed_module_comes_before_one_of_the_working_directory(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(package / "site", TWO, "neighbour_alone.py")
    monkeypatch.syspath_prepend(str(package / "site"))
    assert find("neighbour_alone:blur").name == "blur"


# Installed jobs


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with entry points, as pip leaves it."""
    folder = tmp_path / "site"
    write(folder, TWO, "neighbour_jobs.py")
    write(folder, "import no_such_module_anywhere\n", "neighbour_broken.py")
    info = folder / "samples-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: samples\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[meshrun.jobs]\n"
        "sample-blur = neighbour_jobs:blur\n"
        "sample-plain = neighbour_jobs:plain\n"
        "sample-missing = neighbour_jobs:missing\n"
        "sample-broken = neighbour_broken:job\n"
    )
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.usefixtures("installed")
def test_an_installed_job() -> None:
    assert find("sample-blur").name == "blur"
    assert {"sample-blur", "sample-broken"} <= set(names())
    assert names() == sorted(names())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sample-broken", "sample-broken.*cannot be imported.*no_such_module_anywhere"),
        ("sample-missing", "sample-missing.*missing"),
        ("sample-plain", "sample-plain.*neighbour_jobs:plain.*is not a job: got function"),
        ("nothing", "unknown job: got nothing, expected .*sample-blur.*FILE.py:NAME or MODULE:NAME"),
        ("sample-blur:blur", "unknown job"),
    ],
)
def test_installed_jobs_that_cannot_be_used(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find(name)


def test_every_job_this_package_declares_is_one() -> None:
    entries = importlib.metadata.entry_points(group="meshrun.jobs")
    ours = {entry.name for entry in entries if entry.value.startswith("meshrun.jobs.")}
    assert ours == {
        "airflow",
        "convolve",
        "elementwise",
        "fft",
        "grayscale",
        "heat",
        "laplacian",
        "matmul",
        "statistics",
        "transpose",
    }
    assert all(isinstance(find(name), Job) for name in ours)


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python started in `folder`, which then stands first on the import path."""
    words = [sys.executable, "-c", code]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["jobs", "runner", "launch"])
def test_a_folder_of_the_users_hides_no_job(tmp_path: Path, name: str) -> None:
    """Beside a script, where Python looks first; and the script can import it."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("MINE = 1\n")
    code = (
        f"import meshrun, {name}\nfrom meshrun.runner.job.discover import find\n"
        f"print({name}.MINE, find('laplacian').name, meshrun.matmul.__name__)"
    )
    ended = python(code, tmp_path)
    assert ended.stdout.split() == ["1", "laplacian", "matmul"], ended.stderr
