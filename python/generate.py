# SPDX-License-Identifier: MIT
"""Writes the C source of the extension module tutti._tutti, from the public headers.

cffi reads neither includes nor attributes nor macros. So the preprocessor expands the headers first. It finds empty
system headers: cffi knows their types by itself. The macros with values become constants.

usage: generate.py CC INCLUDE MODULE_C OUTPUT
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# What module.c adds to the headers.
ADDED = """
struct dl_dtype { uint8_t code; uint8_t bits; uint16_t lanes; };
struct dl_tensor {
    void *data; int device_type; int device_id; int dims; struct dl_dtype dtype; int64_t *shape; int64_t *strides;
    uint64_t byte_offset;
};
struct dl_managed { struct dl_tensor tensor; void (*deleter)(struct dl_managed *); ...; };
struct dl_managed_versioned { uint64_t flags; struct dl_tensor tensor; ...; };
static void tutti_python_capsule_end(void *capsule);
extern "Python" void tutti_python_released(struct dl_managed *managed);
struct tutti_python_progress { void *interrupt; long thread; int64_t due_ns; };
int tutti_python_progress(void *progress);
static char *const TUTTI_PYTHON_DIGEST;
extern "Python" int tutti_python_signals(void *interrupt);
extern "Python" void tutti_python_done(void *context, tutti_work_t *work, enum tutti_status status);
extern "Python" {
    enum tutti_status tutti_python_set(void *context, const char *key, const void *value, size_t size);
    enum tutti_status tutti_python_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                       size_t capacity, size_t *size);
    enum tutti_status tutti_python_wait(void *context, const char *const *keys, size_t count, int64_t timeout_ms);
    enum tutti_status tutti_python_add(void *context, const char *key, int64_t amount, int64_t *result);
    enum tutti_status tutti_python_check(void *context, const char *const *keys, size_t count, bool *exists);
    enum tutti_status tutti_python_compare_set(void *context, const char *key, const void *expected,
                                               size_t expected_size, const void *desired, size_t desired_size,
                                               void *value, size_t capacity, size_t *size);
    enum tutti_status tutti_python_delete_key(void *context, const char *key, bool *deleted);
    enum tutti_status tutti_python_num_keys(void *context, int64_t *count);
    void tutti_python_close(void *context);
}
int tutti_python_callers(const void *handle);
void tutti_python_forked(void);
extern "Python" void tutti_python_log(void *context, enum tutti_log_level level, const char *line);
"""


def headers(include: Path) -> str:
    return "".join(f"#include <tutti/{path.name}>\n" for path in sorted(include.glob("tutti/*.h")))


def declarations(cc: str, include: Path) -> str:
    """All that the public headers declare, as cffi reads it."""
    with tempfile.TemporaryDirectory() as system:
        for name in ("stdbool.h", "stddef.h", "stdint.h"):
            Path(system, name).touch()

        def preprocess(*options: str) -> str:
            # Without __GNUC__ the headers have no attributes.
            command = [cc, "-E", "-P", *options, "-U__GNUC__", "-nostdinc", f"-I{system}", f"-I{include}", "-x", "c", "-"]
            return subprocess.run(command, input=headers(include), text=True, stdout=subprocess.PIPE, check=True).stdout

        text = preprocess()
        macros = preprocess("-dM")
    constants = []
    for name, value in sorted(re.findall(r"^#define (TUTTI_[A-Z0-9_]+) +(\S.*)$", macros, re.MULTILINE)):
        if pointer := re.match(r"\(\((tutti_\w+_t)\)", value):
            constants.append(f"static {pointer[1]} const {name};")
        elif re.match(r"[-(\d]", value):  # an integer
            constants.append(f"#define {name} ...")
        else:
            raise SystemExit(f"generate.py: what is {name}, {value}?")
    return text + "\n".join(constants) + "\n"


# A call that passes one of these is in module.c's list while it runs. The calls of symmetric memory pass its address first.
HANDLE = re.compile(r"^  (?:tutti_(?:comm|pg|store|symm_group)_t(?: const)?) \* (x\d+);$", re.MULTILINE)
MEMORY = re.compile(r"^  void \* (x0);$", re.MULTILINE)


def count_callers(source: str) -> str:
    """cffi's source, in which calls enter the list of module.c before they release the GIL."""
    pieces = re.split(r"^(?=_cffi_f_(\w+)\()", source, flags=re.MULTILINE)
    for i in range(2, len(pieces), 2):
        handles = HANDLE.findall(pieces[i])
        if pieces[i - 1].startswith("tutti_symm_") and not handles:
            handles = MEMORY.findall(pieces[i])
        for handle in handles:
            begin = f"  struct tutti_python_call of_{handle};\n  tutti_python_enter(&of_{handle}, {handle});\n"
            body = pieces[i].replace("  Py_BEGIN_ALLOW_THREADS\n", f"{begin}  Py_BEGIN_ALLOW_THREADS\n", 1)
            end = f"  Py_END_ALLOW_THREADS\n  tutti_python_leave(&of_{handle});\n"
            pieces[i] = body.replace("  Py_END_ALLOW_THREADS\n", end, 1)
            if begin not in pieces[i] or end not in pieces[i]:
                raise SystemExit(f"generate.py: where does {pieces[i - 1]}() release the GIL?")
    return "".join(pieces[::2])


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    cc, include, module, output = sys.argv[1], *map(Path, sys.argv[2:5])
    text = declarations(cc, include)
    import cffi

    builder = cffi.FFI()
    builder.cdef(text + ADDED)
    # A test compares the digest with that of the headers of its tree.
    source = f'#define TUTTI_PYTHON_DIGEST "{digest(text)}"\n' + module.read_text()
    builder.set_source("tutti._tutti", headers(include) + source, py_limited_api=True)
    builder.emit_c_code(str(output))
    output.write_text(count_callers(output.read_text()))


if __name__ == "__main__":
    main()
