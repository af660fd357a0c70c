# SPDX-License-Identifier: MIT
"""Results in files: a JSON object whose arrays have one element a line, as `tutti bench --json` writes them.

usage: rows.py FILE.json...    rewrites files that way
"""
import json
import sys


def write(path, result):
    """An array's elements stand on a line each."""
    lines = []
    for key, value in result.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        write(path, result)
        with open(path, encoding="utf-8") as file:
            assert json.load(file) == result, path


if __name__ == "__main__":
    main()
