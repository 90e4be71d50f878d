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


def message(valid, bytes_=0, offset=0, is_inline=0, ready=0):
    """A slot of shared memory, as shared_memory_link_fuzz.cc reads it."""
    return (struct.pack("<BII4QQQ", valid, ready, is_inline, 0, 0, 0, 0, bytes_, offset)
            + b"inline bytes ..." + bytes(120))


def frame(kind, status=0, version=1):
    return b"tuttirpc" + bytes([version, kind, status]) + bytes(5) + bytes(range(32)) + bytes(16)


def wire(kind=0, operation=3, dims=2, name=b"dense/weight", magic=b"tutwire1", data=b"the bytes"):
    """A message over the network, as remote_peer.h has it."""
    return (magic + struct.pack("<Q4Q4Q4BI4q48s", kind, 1, 2, 9, 0, 1, 7, 0, 5, operation, 0, 6, dims,
                                0, 3, 4, 0, 0, name) + data)


def files():
    small = npy("'|u1'", False, "(2, 3)", b"123456")
    return {
        "tf_record": {
            "empty": b"",
            "hello": HELLO,
            "three": HELLO + EMPTY + HELLO,
            "two_damaged": HELLO[:-1] + b"\0" + EMPTY + bytes(12),
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
        "tf_config": {
            "two_workers": b'{"cluster": {"worker": ["hostA:4321", "hostB:4321"]}, '
            b'"task": {"type": "worker", "index": 1}}',
            "all_jobs": b'{"cluster": {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1", "q:1"], '
            b'"evaluator": ["e:1"]}, "task": {"type": "ps", "index": "1"}}',
            "sparse": b'{"cluster": {"worker": {"3": "d:4", "1": "b:2"}}, "task": {"index": 3}}',
            "kubeflow": b'{"cluster":{"worker":["j-worker-0.ns.svc:2222"]},"task":{"type":"worker",'
            b'"index":0},"environment":"cloud"}',
            "rpc": b'{"rpc_layer": "grpc", "session_master": "grpc://m:1", "other": [null, 1.5e3]}',
            "ipv6": b'{"cluster": {"worker": ["[::1]:80", "[fe80::1%eth0]:80"]}}',
            "ipv4": b'{"cluster": {"worker": ["10.0.0.1:65535", "300.0.0.1:1"]}}',
            "lines": b'{\n  "cluster": {\n    "worker": [\n      "a:1"\n    ]\n  }\n}\n',
            "empty_object": b"{}",
            "empty_cluster": b'{"cluster": {}}',
            "empty_job": b'{"cluster": {"worker": []}}',
            "single_quotes": b"{'cluster': {'worker': ['a:1']}}",
            "no_quotes": b"{cluster: {worker: [a:1]}}",
            "twice": b'{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}',
            "index_twice": b'{"cluster": {"worker": {"1": "a:1", "01": "b:1"}}}',
            "deep": b'{"a":' + b"[" * 20 + b"]" * 20 + b"}",
            "big_index": b'{"cluster": {"worker": {"99999999999": "a:1"}}, "task": {"index": 1e400}}',
            "numbers": b'{"task": {"index": -1}, "cluster": {"worker": {"-1": "a:1"}}}',
            "escapes": b'{"cluster": {"w\\u00f6rker\\n": ["\\ud83d\\ude00:1"]}}',
            "not_utf8": b'{"cluster": {"\xff\xfe": ["\xc3:1"]}}',
            "mark": b'\xef\xbb\xbf{"cluster": {"worker": ["a:1"]}}',
            "cut": b'{"cluster": {"worker": ["hostA:43',
        },
        "shared_memory_link": {
            "all_gather": b"\0\0" + message(31),
            "broadcast": b"\1\0" + message(31),
            "exchange_in_two": b"\2\0" + message(23, 2048, 4096) + message(23, 2048, 4096),
            "small_reduction": b"\3\0" + message(31),
            "large_reduction": b"\4\0" + message(31) + message(31),
            "inline": b"\0\0" + message(19, 16, 0, 1),
            "beyond_the_end": b"\0\0" + message(23, 1, 1 << 60),
            "over_the_end": b"\0\0" + message(63),
            "other_operation": b"\3\0" + message(30),
            "not_ready": b"\3\0" + message(15, ready=7),
            "failed": b"\3\1\6\4gone",
        },
        "rpc": {
            "hello_and_proof": frame(1) + frame(3),
            "challenge_and_verdict": frame(2) + frame(4),
            "refused": frame(2, status=1),
            "other_version": frame(1, version=2),
            "join": b'{"rank":1,"world":2,"job":"j","instance":"x","address":"h:1",'
            b'"facts":{"a":"1"},"info":{}}',
            "done": b'{"state":"done","epoch":"7","addresses":["h:1"],"info":[{"a":"b"}]}',
            "waiting": b'{"state":"waiting","missing":"worker 1 of 2"}',
            "deep": b'{"a":' + b"[" * 20 + b"]" * 20 + b"}",
        },
        "wire": {
            "data": b"\xff\0" + wire(),
            "cut_in_the_head": b"\xff\x20" + wire(),
            "cut_after_the_head": b"\xff\xa8" + wire(),
            "two": b"\xb0\xa8" + wire() + wire(data=b"others"),
            "no_bytes": b"\xff\0" + wire(data=b""),
            "abort": b"\xff\0" + wire(kind=1, data=b"the disk is on fire"),
            "goodbye": b"\xff\0" + wire(kind=2),
            "no_such_kind": b"\xff\0" + wire(kind=3),
            "no_such_operation": b"\xff\0" + wire(operation=200, dims=255),
            "long_name": b"\xff\0" + wire(name=b"n" * 48),
            "other_magic": b"\xff\0" + wire(magic=b"tutwire2"),
            "short": b"\xff\0" + wire()[:100],
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
