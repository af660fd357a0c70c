# SPDX-License-Identifier: MIT
"""The programs in the documents run; the package is typed; `python -m tutti` is the program tutti."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tutti

ROOT = Path(__file__).parents[3]


def run_ranks(tmp_path, program):
    """Runs a program on two ranks of `tutti run`."""
    if not (Path(tutti.__file__).parent / "tutti").exists():
        pytest.skip("this package has no program tutti")
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, "-m", "tutti", "run", "-n", "2", sys.executable, str(path)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme(tmp_path):
    program = re.search(r"^    import numpy, tutti\n(?:    .*\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert run_ranks(tmp_path, textwrap.dedent(program[0])).count("[2. 2. 2. 2.]") == 2


def blocks_of_page():
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)


def test_page(tmp_path):
    start, low, _ = blocks_of_page()
    program = start + textwrap.indent(low + "assert status == 0 and array.tolist() == [2] * 4\n", "    ")
    assert run_ranks(tmp_path, program).split() == "[[3. 3. 3. 3.] [3. 3. 3. 3.]]".split()


def test_page_pytorch(tmp_path):
    pytest.importorskip("torch")
    program = blocks_of_page()[2]
    # The ranks write to one pipe, and a print() may be two writes.
    assert run_ranks(tmp_path, program + "print(tensor[999].item())\n").count("4.0") == 2


def test_page_names_what_there_is():
    page = (ROOT / "docs/python.md").read_text()
    for name in tutti.__all__:
        if isinstance(getattr(tutti, name), type) and issubclass(getattr(tutti, name), Exception):
            assert f"`{name}`" in page or name == "Error", name
    for name in vars(tutti.Communicator):
        if not name.startswith("_") and name not in ("rank", "world_size", "handle", "status", "close"):
            assert name.removesuffix("_v") in page, name


def test_each_collective_of_the_library_is_a_method():
    names = (name for name in dir(tutti._lib) if re.fullmatch("TUTTI_COLLECTIVE_[A-Z_]+", name))
    for name in names:
        assert hasattr(tutti.Communicator, name.removeprefix("TUTTI_COLLECTIVE_").lower()), name


def test_types(tmp_path):
    pytest.importorskip("mypy")
    user = tmp_path / "user.py"
    user.write_text("import numpy\nimport tutti\n\n"
                    "def add(comm: tutti.Communicator) -> tutti.Work:\n"
                    "    comm.all_reduce(numpy.ones(2), op=tutti.MAX, timeout=1.5)\n"
                    "    return tutti.ProcessGroup(comm).all_reduce(numpy.ones(2), tag=3)\n")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import tutti\n\ntutti.Communicator.from_env(nam='a').rank = 'one'\n")
    done = subprocess.run([sys.executable, "-m", "mypy", f"--config-file={ROOT / 'python/pyproject.toml'}",
                           f"--cache-dir={tmp_path / 'cache'}", Path(tutti.__file__).parent, user, wrong], capture_output=True, text=True, timeout=280)
    faults = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(faults) == 2 and all("wrong.py" in line for line in faults), done.stdout
