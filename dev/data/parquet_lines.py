#!/usr/bin/env python3
"""Prints the rows of Parquet files as JSON lines, for build/make_tokens --documents json and
build/make_hellaswag. Reads a few thousand rows at a time.

    pip install pyarrow
    dev/data/parquet_lines.py FILE.parquet... |
        build/make_tokens -o data/my --documents json --val N /dev/stdin
"""
import json
import sys

import pyarrow.parquet

if len(sys.argv) < 2:
    sys.exit(__doc__)
for path in sys.argv[1:]:
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(4096):
        for row in batch.to_pylist():
            print(json.dumps(row, default=str))
