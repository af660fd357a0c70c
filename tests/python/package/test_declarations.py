# SPDX-License-Identifier: MIT
"""The extension module has all that the public headers of this tree declare."""

import importlib.util
import os
import re
from pathlib import Path

import tutti

ROOT = Path(__file__).parents[3]
INCLUDE = ROOT / "include"


def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "python/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_function_is_reachable():
    text = "".join(path.read_text() for path in INCLUDE.glob("tutti/*.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    declared = set(re.findall(r"TUTTI_API\s[^;(]*?\b(tutti_\w+)\s*\(", text))
    assert len(declared) > 60
    reachable = {name for name in dir(tutti._lib) if re.match("tutti_(?!python_)", name)}
    assert reachable == declared


def test_module_was_built_from_these_headers():
    module = generate()
    text = module.declarations(os.environ.get("CC", "cc"), INCLUDE)
    assert tutti._ffi.string(tutti._lib.TUTTI_PYTHON_DIGEST).decode() == module.digest(text)


def test_constants():
    assert tutti._lib.TUTTI_MAX_RANKS == 64
    ranks = (ROOT / "src/base/rank_set.h").read_text(encoding="utf-8")
    assert f"enum {{ WORLD_RANKS = {tutti._options._MOST_RANKS} }};" in ranks
    assert tutti._lib.TUTTI_BFLOAT16 == 3
    assert int(tutti._ffi.cast("intptr_t", tutti._lib.TUTTI_BXOR)) == 8
    assert tutti.__version__ == ".".join(str(getattr(tutti._lib, f"TUTTI_VERSION_{part}"))
                                         for part in ("MAJOR", "MINOR", "PATCH"))
