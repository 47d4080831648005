#!/usr/bin/env python3
"""Writes engine/text/tokenizer/unicode_tables.c from the class and normalization data.

    tools/gen_unicode_tables.py > engine/text/tokenizer/unicode_tables.c

Reads tests/golden/tokenizer/unicode16-classes.tsv.xz (general classes and white space, Unicode 16.0)
and nfc-data.tsv.xz (canonical decompositions, compositions and combining classes). The output depends
on those two files alone: running this twice gives the same bytes.
"""
import lzma
import os
import sys

TOP = 0x110000
PAGE = 16                                # characters
BLOCK = 64                               # pages
WIDTH = 100

# Bits of engine/text/tokenizer/unicode.h
OTHER, LETTER, UPPER, LOWER, MARK, NUMBER, SPACE, NEWLINE = (1 << i for i in range(8))
CLASS_BITS = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER, "M": MARK,
              "N": NUMBER, "Ws": SPACE}
NFC_LOOK, NFC_DECOMPOSES = 1, 2


def rows(path):
    with lzma.open(path, "rt", encoding="ascii") as f:
        for line in f:
            line = line.rstrip("\n")
            if line and not line.startswith("#"):
                yield line.split("\t")


def read_classes(path):
    classes = [OTHER] * TOP
    for first, last, name in rows(path):
        for cp in range(int(first, 16), int(last, 16) + 1):
            classes[cp] = CLASS_BITS[name]
    classes[0x0A] = classes[0x0D] = NEWLINE
    return classes


def read_nfc(path):
    """Combining classes, one-step decompositions, compositions (first, second) -> composed."""
    ccc, step, pairs = {}, {}, {}
    for row in rows(path):
        if row[0] == "C":
            for cp in range(int(row[1], 16), int(row[2], 16) + 1):
                ccc[cp] = int(row[3])
        elif row[0] == "D":
            parts = [int(x, 16) for x in row[2:-1]]
            step[int(row[1], 16)] = parts
            if row[-1] == "P":
                pairs[tuple(parts)] = int(row[1], 16)
        else:
            sys.exit(f"{path}: unknown row {row}")
    return ccc, step, pairs


def expand(cp, step):
    return [x for part in step[cp] for x in expand(part, step)] if cp in step else [cp]


def nfc_properties(ccc, step, pairs):
    """One byte per code point: an index into the list of (flags, class) that occur."""
    composed = set(pairs.values())
    second = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    kinds = [(0, 0)]
    index_of = {(0, 0): 0}
    props = [0] * TOP
    for cp in sorted(set(ccc) | set(step) | second):
        flags = NFC_DECOMPOSES if cp in step else 0
        # text without these, whose marks stand in order, is normalized already
        if cp in second or (cp in step and cp not in composed):
            flags |= NFC_LOOK
        kind = (flags, ccc.get(cp, 0))
        if kind not in index_of:
            index_of[kind] = len(kinds)
            kinds.append(kind)
        props[cp] = index_of[kind]
    return props, kinds


def share(values, size):
    """Cuts values into parts of that size: the number of each part, and the parts that differ."""
    number, parts, index = {}, [], []
    for at in range(0, len(values), size):
        part = tuple(values[at:at + size])
        if part not in number:
            number[part] = len(number)
            parts += part
        index.append(number[part])
    return index, parts


def emit(declaration, values, form="{}"):
    print(f"const {declaration} = {{")
    line = "    "
    for v in values:
        item = (form.format(*v) if isinstance(v, tuple) else form.format(v)) + ","
        if len(line) + len(item) > WIDTH:
            print(line)
            line = "    "
        line += item
    print(line)
    print("};\n")


def emit_property(name, values, block_bits):
    """A three-stage table of one byte per code point."""
    page_of, pages = share(values, PAGE)
    index, blocks = share(page_of, BLOCK)
    assert max(index) < 256 and max(blocks) < 1 << block_bits
    emit(f"uint8_t unicode_{name}_index[{len(index)}]", index)
    emit(f"uint{block_bits}_t unicode_{name}_blocks[{len(blocks)}]", blocks)
    emit(f"uint8_t unicode_{name}_pages[{len(pages)}]", pages)


def main():
    data = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/golden/tokenizer")
    classes = read_classes(os.path.join(data, "unicode16-classes.tsv.xz"))
    ccc, step, pairs = read_nfc(os.path.join(data, "nfc-data.tsv.xz"))

    print("""/* unicode_tables.c - character classes (Unicode 16.0) and normalization data (Unicode 14.0).
 *
 * Written by tools/gen_unicode_tables.py; change that, not this. Each property is a three-stage
 * table: an index of blocks of 64 pages, the blocks that differ, then the pages of 16 characters
 * that differ. engine/text/tokenizer/unicode.h says what the values mean. */
#include "engine/text/tokenizer/unicode.h"
""")
    emit("uint8_t unicode_ascii[128]", classes[:128])
    emit_property("class", classes, 16)

    props, kinds = nfc_properties(ccc, step, pairs)
    assert len(kinds) <= 256
    print("/* {flags, combining class} */")
    emit(f"nfc_kind unicode_nfc_kinds[{len(kinds)}]", kinds, "{{{},{}}}")
    emit_property("nfc", props, 8)

    whole = {cp: "".join(map(chr, expand(cp, step))) for cp in sorted(step)}
    pool = ""
    for text in sorted(whole.values(), key=len, reverse=True):   # long ones contain short ones
        if text not in pool:
            pool += text
    assert len(pool) < 65536
    entries = [(cp, len(text), pool.index(text)) for cp, text in whole.items()]
    print("/* {character, length, start in the pool} of full decompositions, by character */")
    emit(f"nfc_decomposition unicode_nfc_decompositions[{len(entries)}]", entries, "{{{},{},{}}}")
    print(f"const int unicode_n_nfc_decomposition = {len(entries)};\n")
    emit(f"uint32_t unicode_nfc_pool[{len(pool)}]", [ord(c) for c in pool])

    composed = [(a, b, pairs[a, b]) for a, b in sorted(pairs)]
    print("/* {first, second, composed}, by first, then second */")
    emit(f"nfc_composition unicode_nfc_compositions[{len(composed)}]", composed,
         "{{{},{},{}}}")
    print(f"const int unicode_n_nfc_composition = {len(composed)};")


main()
