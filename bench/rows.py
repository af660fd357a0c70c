# SPDX-License-Identifier: MIT
"""Results in files: a JSON object whose arrays have one element a line, as `tutti bench --json` writes them."""
import json


def write(path, result):
    """Writes each element of an array on a line of its own."""
    lines = []
    for key, value in result.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
