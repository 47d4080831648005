#!/usr/bin/env python3
"""Writes loader/quant_tables.c from the codebooks in tests/golden/quants/grids/*.i8.

  tools/gen_quant_tables.py            write the file
  tools/gen_quant_tables.py --check    exit 1 if the file is not what would be written

The same input gives the same bytes. Only the standard library is needed.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GRIDS = ROOT / "tests" / "golden" / "quants" / "grids"
OUT = ROOT / "loader" / "quant_tables.c"

# C name, file, rows, columns, values that may occur
TABLES = [
    ("quant_grid_iq1", "IQ1.i8", 2048, 8, {-1, 0, 1}),
    ("quant_grid_iq2_xxs", "IQ2_XXS.i8", 256, 8, {8, 25, 43}),
    ("quant_grid_iq2_xs", "IQ2_XS.i8", 512, 8, {8, 25, 43}),
    ("quant_grid_iq2_s", "IQ2_S.i8", 1024, 8, {8, 25, 43}),
    ("quant_grid_iq3_xxs", "IQ3_XXS.i8", 256, 4, set(range(4, 63))),
    ("quant_grid_iq3_s", "IQ3_S.i8", 512, 4, set(range(1, 16))),
]

HEAD = """\
/* quant_tables.c - the codebooks of the IQ1, IQ2 and IQ3 formats. Written by
 * tools/gen_quant_tables.py: change that, not this.
 *
 * The tables are part of the file format and cannot be computed. They come from llama.cpp (MIT
 * licence, the ggml authors). Byte k of a row, lowest first, is column k. */
#include "loader/quant_tables.h"
"""


def table(name, file, rows, cols, allowed):
    """The C definition of one grid."""
    data = (GRIDS / file).read_bytes()
    if len(data) != rows * cols:
        sys.exit(f"{GRIDS / file}: {len(data)} bytes, expected {rows} x {cols}")
    strange = {b - 256 if b > 127 else b for b in data} - allowed
    if strange:
        sys.exit(f"{GRIDS / file}: unexpected values {sorted(strange)}")
    words = [int.from_bytes(data[i:i + cols], "little") for i in range(0, len(data), cols)]
    if len(set(words)) != rows:
        sys.exit(f"{GRIDS / file}: a row occurs twice")
    per_line = 5 if cols == 8 else 8     # as many as 100 columns hold
    lines = [f"\nconst uint{8 * cols}_t {name}[{rows}] = {{"]
    for i in range(0, rows, per_line):
        lines.append("    " + "".join(f"0x{w:0{2 * cols}x}," for w in words[i:i + per_line]))
    lines.append("};")
    return "\n".join(lines) + "\n"


def main():
    text = HEAD + "".join(table(*t) for t in TABLES)
    if sys.argv[1:] == ["--check"]:
        if not OUT.exists() or OUT.read_text() != text:
            sys.exit(f"{OUT} is not up to date: run tools/gen_quant_tables.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
