#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exchanges files with NumPy, gzip, zlib, crc32c and protobuf, in both directions.

data_interop.py <path of the program data_interop>: the program writes files that are checked here;
then files are written here that the program checks. data_interop.py --probe only checks that the
Python packages are installed.
"""
import csv
import gzip
import io
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

RECORDS = 60
DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
IDX_CODES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
PACK = {"plain": bytes, "gzip": gzip.compress, "zlib": zlib.compress}
UNPACK = {"plain": bytes, "gzip": gzip.decompress, "zlib": zlib.decompress}


def example_class():
    """tf.train.Example, described here instead of in a .proto file."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name, *fields):
        result = file.message_type.add(name=name)
        for number, (label, kind, field_name, type_name) in enumerate(fields, 1):
            result.field.add(name=field_name, number=number, label=label, type=kind,
                             type_name=type_name)
        return result

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("BytesList", (many, field.TYPE_BYTES, "value", None))
    message("FloatList", (many, field.TYPE_FLOAT, "value", None))
    message("Int64List", (many, field.TYPE_INT64, "value", None))
    feature = message("Feature",
                      (one, field.TYPE_MESSAGE, "bytes_list", ".t.BytesList"),
                      (one, field.TYPE_MESSAGE, "float_list", ".t.FloatList"),
                      (one, field.TYPE_MESSAGE, "int64_list", ".t.Int64List"))
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    features = message("Features", (many, field.TYPE_MESSAGE, "feature", ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=field.TYPE_MESSAGE,
                    type_name=".t.Feature")
    message("Example", (one, field.TYPE_MESSAGE, "features", ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("t.Example"))


def masked_crc(data):
    crc = crc32c.crc32c(data)
    return ((((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record):
    length = struct.pack("<Q", len(record))
    return (length + struct.pack("<I", masked_crc(length)) + record
            + struct.pack("<I", masked_crc(record)))


def records_of(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8])
        record = data[12:12 + length]
        assert struct.unpack("<I", data[12 + length:16 + length])[0] == masked_crc(record)
        yield record
        data = data[16 + length:]


def record_bytes(i):
    return bytes((i * 7 + j) % 251 for j in range(i * 37))


def array_of(dtype):
    values = np.arange(24) % 7 - 2
    if dtype == "uint8":
        values = values + 2
    if dtype == "bool":
        values = values > 0
    if dtype.startswith("complex"):
        values = values - 1j * values
    return values.astype(dtype).reshape(2, 3, 4)


def fill_example(example, i):
    feature = example.features.feature
    feature["floats"].float_list.value.extend([0.5 * i, -1.0])
    feature["ints"].int64_list.value.extend([i, -i, i << 40])
    feature["name"].bytes_list.value.append(b"example %d" % i)
    feature["none"].int64_list.SetInParent()
    return example


def check(folder, example):
    for kind, unpack in UNPACK.items():
        records = list(records_of(unpack((folder / f"records.{kind}").read_bytes())))
        assert records == [record_bytes(i) for i in range(RECORDS)], kind
    examples = list(records_of((folder / "examples").read_bytes()))
    assert len(examples) == RECORDS
    for i, record in enumerate(examples):
        assert example.FromString(record) == fill_example(example(), i), i
    for dtype in DTYPES:
        array = np.load(folder / f"{dtype}.npy")
        assert array.dtype == dtype and np.array_equal(array, array_of(dtype)), dtype
    assert np.load(folder / "scalar.npy").shape == () and np.load(folder / "scalar.npy") == 2.5
    assert np.load(folder / "empty.npy").shape == (0, 3)


def write_idx(folder, dtype, array):
    data = struct.pack(">BBBB", 0, 0, IDX_CODES[dtype], array.ndim)
    data += struct.pack(f">{array.ndim}I", *array.shape)
    data += array.astype(array.dtype.newbyteorder(">")).tobytes()
    (folder / f"{dtype}.idx").write_bytes(data)
    (folder / f"{dtype}.idx.gz").write_bytes(gzip.compress(data))


def write(folder, example):
    for kind, pack in PACK.items():
        data = b"".join(frame(record_bytes(i)) for i in range(RECORDS))
        (folder / f"records.{kind}").write_bytes(pack(data))
    (folder / "examples").write_bytes(
        b"".join(frame(fill_example(example(), i).SerializeToString()) for i in range(RECORDS)))
    arrays = {dtype: array_of(dtype) for dtype in DTYPES}
    for dtype, array in arrays.items():
        np.save(folder / f"{dtype}.npy", array)
        np.save(folder / f"{dtype}.fortran.npy", np.asfortranarray(array))
        if dtype in IDX_CODES:
            write_idx(folder, dtype, array)
    np.save(folder / "scalar.npy", np.float64(2.5))
    for version in (2, 3):
        with open(folder / f"v{version}.npy", "wb") as file:
            np.lib.format.write_array(file, arrays["float32"], version=(version, 0))
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "deflated.npz", **arrays)
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["number", "text", "real"])
    for i in range(RECORDS):
        table.writerow([i, f'a "quoted"\r\nline, {i}', i / 7])
    (folder / "table.csv.gz").write_bytes(gzip.compress(text.getvalue().encode()))


def main():
    if sys.argv[1:] == ["--probe"]:
        return
    (program,) = sys.argv[1:]
    example = example_class()
    with tempfile.TemporaryDirectory() as name:
        theirs, ours = Path(name, "theirs"), Path(name, "ours")
        theirs.mkdir()
        ours.mkdir()
        subprocess.run([program, "write", theirs], check=True, timeout=60)
        check(theirs, example)
        write(ours, example)
        subprocess.run([program, "check", ours], check=True, timeout=60)
    print("data_interop: files pass in both directions.")


if __name__ == "__main__":
    main()
