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
 * licence, the ggml authors). Byte k of a row, lowest first, is column k.
 *
 * A column has one of a few values, so a row is written as a code: 2 bits for a column of 8, 3 bits
 * for one of 4, column 0 lowest. VALUES has the values that the codes stand for, code 0 lowest. */
#include "loader/quant_tables.h"

#define COLUMN8(code, k) ((uint64_t)(VALUES >> 8 * ((code) >> 2 * (k) & 3) & 255) << 8 * (k))
#define ROW8(code) \\
    (COLUMN8(code, 0) | COLUMN8(code, 1) | COLUMN8(code, 2) | COLUMN8(code, 3) | \\
     COLUMN8(code, 4) | COLUMN8(code, 5) | COLUMN8(code, 6) | COLUMN8(code, 7))
#define COLUMN4(code, k) ((uint32_t)(VALUES >> 8 * ((code) >> 3 * (k) & 7) & 255) << 8 * (k))
#define ROW4(code) (COLUMN4(code, 0) | COLUMN4(code, 1) | COLUMN4(code, 2) | COLUMN4(code, 3))

/* Sixteen rows, in hexadecimal. */
#define ROWS(row, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \\
    row(0x##a), row(0x##b), row(0x##c), row(0x##d), row(0x##e), row(0x##f), row(0x##g), \\
    row(0x##h), row(0x##i), row(0x##j), row(0x##k), row(0x##l), row(0x##m), row(0x##n), \\
    row(0x##o), row(0x##p)
#define R8(...) ROWS(ROW8, __VA_ARGS__)
#define R4(...) ROWS(ROW4, __VA_ARGS__)
"""


def table(name, file, rows, cols, allowed):
    """The C definition of one grid."""
    data = (GRIDS / file).read_bytes()
    if len(data) != rows * cols:
        sys.exit(f"{GRIDS / file}: {len(data)} bytes, expected {rows} x {cols}")
    values = sorted({b - 256 if b > 127 else b for b in data})
    if not set(values) <= allowed or len(values) > (4 if cols == 8 else 8):
        sys.exit(f"{GRIDS / file}: unexpected values {values}")
    bits = 2 if cols == 8 else 3
    codes = [sum(values.index(b - 256 if b > 127 else b) << bits * k
                 for k, b in enumerate(data[i:i + cols])) for i in range(0, len(data), cols)]
    if len(set(codes)) != rows:
        sys.exit(f"{GRIDS / file}: a row occurs twice")
    packed = sum((v & 255) << 8 * k for k, v in enumerate(values))
    lines = [f"\n#define VALUES 0x{packed:0{2 * len(values)}x}u",
             f"const uint{8 * cols}_t {name}[{rows}] = {{"]
    for i in range(0, rows, 16):
        some = ",".join(f"{c:0{bits * cols // 4}x}" for c in codes[i:i + 16])
        lines.append(f"    R{cols}({some}),")
    lines += ["};", "#undef VALUES"]
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
