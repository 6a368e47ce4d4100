#!/usr/bin/env python3
"""Reads a checkpoint of llmc_zero (docs/reference/formats.md) with only Python's standard library.

    dev/read_checkpoint.py FOLDER                         lists its tensors
    dev/read_checkpoint.py FOLDER STATE [TENSOR [LAYER]]  writes values to stdout, fp32

STATE is master, moment1 or moment2. Without TENSOR, the output has all tensors in the order of the table, all
layers of each. Frozen tensors have no moments. Verifies checksums if the module xxhash is installed.
"""
import json
import math
import os
import sys

try:
    import xxhash
except ImportError:
    xxhash = None


def die(message):
    sys.exit("read_checkpoint: " + message)


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as f:
        raw = f.read()
    manifest = json.loads(raw)
    if manifest.get("format") != "llmc_zero checkpoint" or manifest.get("version") != 4:
        die("not a checkpoint of version 4")
    text = raw[:raw.rindex(b',\n"xxh3": ')]
    if xxhash and xxhash.xxh3_64_hexdigest(text) != manifest["xxh3"]:
        die("the manifest is damaged")
    return manifest


def check_file(folder, file, block):
    with open(os.path.join(folder, file["name"]), "rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size != file["bytes"]:
            die("%s has %d bytes, not %d" % (file["name"], size, file["bytes"]))
        for at in range(0, size if xxhash else 0, block):
            digest = file["xxh3"][at // block * 16:][:16]
            if xxhash.xxh3_64_hexdigest(f.read(block)) != digest:
                die("%s: the block at offset %d is damaged" % (file["name"], at))


def write_values(folder, manifest, state, tensor, layer, out):
    row = manifest["tensors"][tensor]
    number, place = next((i, p) for i, unit in enumerate(manifest["units"]) for p in unit["tensors"]
                         if (p["tensor"], p["layer"]) == (tensor, layer))
    at, end = place["offset"], place["offset"] + math.prod(row["dims"])
    for file in manifest["files"]:
        for part in file["parts"]:
            begin, stop = max(at, part["from"]), min(end, part["from"] + part["elems"])
            if part["unit"] != number or begin >= stop:
                continue
            with open(os.path.join(folder, file["name"]), "rb") as f:
                f.seek(part[state] + 4 * (begin - part["from"]))
                out.write(f.read(4 * (stop - begin)))


def main(folder, state=None, name=None, layer=None):
    manifest = read_manifest(folder)
    if state in ["moment1", "moment2"][manifest.get("update_states", 2):]:
        die("it has no " + state)
    for file in manifest["files"]:
        check_file(folder, file, manifest["block_bytes"])
    if not state:
        print("%s, saved by %d ranks" % (manifest["dtype"], manifest["ranks"]))
        for row in manifest["tensors"]:
            print("%-10s %s x %d" % (row["name"], row["dims"], row["layers"]))
        return
    for tensor, row in enumerate(manifest["tensors"]):
        for l in range(row["layers"]):
            has_state = state == "master" or not row.get("frozen")
            if has_state and name in (None, row["name"]) and layer in (None, str(l)):
                write_values(folder, manifest, state, tensor, l, sys.stdout.buffer)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
