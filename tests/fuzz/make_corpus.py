#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the small files that fuzzing starts from: tests/fuzz/corpus/<format>/*."""
import gzip
import io
import struct
import sys
import zipfile
import zlib
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
HELLO = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")
EMPTY = bytes.fromhex("000000000000000029039807d8ea82a2")
GOLDEN = bytes.fromhex("0a1f0a110a0178120c120a0a080000c03f000000c00a0a0a017912051a030a0107")


def npy(descr, order, shape, data, version=1):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def npz(method, **members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name + ".npy"), data, method)
    return out.getvalue()


def idx(code, shape, data):
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


def files():
    small = npy("'|u1'", False, "(2, 3)", b"123456")
    return {
        "tf_record": {
            "empty": b"",
            "hello": HELLO,
            "three": HELLO + EMPTY + HELLO,
            "gzip": gzip.compress(HELLO + EMPTY, mtime=0),
            "two_members": gzip.compress(HELLO, mtime=0) + gzip.compress(EMPTY, mtime=0),
            "zlib": zlib.compress(HELLO * 3),
        },
        "example": {
            "empty": b"",
            "golden": GOLDEN,
            "strings": bytes.fromhex("0a130a110a0173120c0a0a0a01610a0562636465660a00"),
            "unpacked": bytes.fromhex("0a110a0f0a0179120a1a0808050807080a0801"),
            "group": bytes.fromhex("3b08013c0a0a0a080a017912031a010b"),
        },
        "csv": {
            "plain": b"i,f,d,b,s\n1,2.5,-3e8,true,x\n,,,,\n",
            "quotes": b'i,f,d,b,s\r\n"1","2","3","0","a ""b""\r\nc"\r\n',
            "mark": b"\xef\xbb\xbfi,f,d,b,s\n9223372036854775807,nan,inf,FALSE,\n",
            "open_quote": b'a,b\n1,"x\n',
            "gzip": gzip.compress(b"i,f,d,b,s\n1,1,1,1,1\n", mtime=0),
        },
        "npy": {
            "bytes": small,
            "fortran": npy("'<f4'", True, "(2, 1)", bytes(8)),
            "bool": npy("'|b1'", False, "(2,)", b"\0\1"),
            "complex": npy("'<c16'", False, "()", bytes(16), 3),
            "huge": npy("'<f8'", False, "(4294967296, 4294967296)", b"", 2),
            "structure": npy("[('a', '<f4')]", False, "(1,)", bytes(4)),
            "stored": npz(zipfile.ZIP_STORED, a=small),
            "deflated": npz(zipfile.ZIP_DEFLATED, a=small, b=small),
        },
        "idx": {
            "bytes": idx(8, (2, 3), b"123456"),
            "floats": idx(13, (2,), bytes(8)),
            "doubles": idx(14, (), bytes(8)),
            "huge": idx(12, (0xFFFFFFFF, 0xFFFFFFFF), b"x"),
            "gzip": gzip.compress(idx(11, (1, 2), b"1234"), mtime=0),
        },
    }


def main():
    for name, contents in files().items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in contents.items():
            (folder / file).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
