// SPDX-License-Identifier: Apache-2.0
//
// The C++ half of data_interop.py: `data_interop write <folder>` writes files for Python to check,
// `data_interop check <folder>` checks files that Python wrote. Both halves compute the expected
// contents of a file by the same formulas.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "tutti/base/error.h"
#include "tutti/data/formats/csv_file.h"
#include "tutti/data/formats/example.h"
#include "tutti/data/formats/idx_file.h"
#include "tutti/data/formats/npy_file.h"
#include "tutti/files/tf_record_file.h"

namespace {

using namespace tutti;
using namespace tutti::data;

constexpr int kRecords = 60;

struct Kind {
  const char* name;
  Compression compression;
};
constexpr Kind kCompressions[] = {
    {"plain", Compression::kNone}, {"gzip", Compression::kGzip}, {"zlib", Compression::kZlib}};

struct Dtype {
  const char* name;
  at::ScalarType dtype;
};
constexpr Dtype kDtypes[] = {{"bool", at::kBool},
                             {"uint8", at::kByte},
                             {"int8", at::kChar},
                             {"int16", at::kShort},
                             {"int32", at::kInt},
                             {"int64", at::kLong},
                             {"float16", at::kHalf},
                             {"float32", at::kFloat},
                             {"float64", at::kDouble},
                             {"complex64", at::kComplexFloat},
                             {"complex128", at::kComplexDouble}};

void require(bool condition, const std::string& what) {
  if (!condition) throw Error(ErrorCode::kDataLoss, "data_interop: wrong: " + what);
}

std::string record_bytes(int i) {
  std::string bytes;
  for (int j = 0; j < i * 37; ++j) bytes += static_cast<char>((i * 7 + j) % 251);
  return bytes;
}

at::Tensor array_of(at::ScalarType dtype) {
  at::Tensor values = at::arange(24).remainder(7) - 2;
  if (dtype == at::kByte) values = values + 2;
  if (dtype == at::kBool) values = values.gt(0);
  if (at::isComplexType(dtype))
    values = at::complex(values.to(at::kDouble), -values.to(at::kDouble));
  return values.to(dtype).reshape({2, 3, 4});
}

std::string example_bytes(int i) {
  const std::string name = "example " + std::to_string(i);
  return ExampleBuilder()
      .floats("floats", {0.5f * static_cast<float>(i), -1.0f})
      .int64s("ints", {i, -i, int64_t{i} << 40})
      .bytes("name", name)
      .int64s("none", {})
      .finish();
}

void check_example(const std::string& bytes, int i) {
  static const ExampleSpec spec = ExampleSpec()
                                      .fixed<float>("floats", {2})
                                      .variable<int64_t>("ints")
                                      .bytes("name")
                                      .variable<int64_t>("none")
                                      .fixed<float>("absent", {}, 9.f);
  ParsedExample example = spec.parse(bytes);
  const std::string what = "example " + std::to_string(i);
  require(example.tensor("floats").equal(at::tensor({0.5f * static_cast<float>(i), -1.0f})), what);
  require(example.tensor("ints").equal(at::tensor({int64_t{i}, int64_t{-i}, int64_t{i} << 40})),
          what);
  require(example.bytes("name") == what, what);
  require(example.tensor("none").numel() == 0, what);
  require(example.tensor("absent").item<float>() == 9.f, what);
}

void write(const std::string& folder) {
  for (const Kind& kind : kCompressions) {
    TfRecordWriter records(folder + "/records." + kind.name, {.compression = kind.compression});
    for (int i = 0; i < kRecords; ++i) records.write(record_bytes(i));
    records.close();
  }
  TfRecordWriter examples(folder + "/examples");
  for (int i = 0; i < kRecords; ++i) examples.write(example_bytes(i));
  examples.close();
  for (const Dtype& each : kDtypes) {
    write_npy(folder + "/" + each.name + ".npy", array_of(each.dtype));
  }
  write_npy(folder + "/scalar.npy", at::scalar_tensor(2.5));
  write_npy(folder + "/empty.npy", at::empty({0, 3}));
}

void check_arrays(const std::string& folder) {
  const NpzFile stored(folder + "/stored.npz");
  const NpzFile deflated(folder + "/deflated.npz");
  for (const Dtype& each : kDtypes) {
    const at::Tensor expected = array_of(each.dtype);
    const std::string name = each.name;
    for (const at::Tensor& read :
         {read_npy(folder + "/" + name + ".npy"), read_npy(folder + "/" + name + ".fortran.npy"),
          stored.read(name), deflated.read(name)}) {
      require(read.scalar_type() == each.dtype && read.equal(expected), name);
    }
  }
  require(stored.names().size() == std::size(kDtypes), "names of the .npz file");
  require(read_npy(folder + "/scalar.npy").item<double>() == 2.5, "scalar.npy");
  for (const char* version : {"v2", "v3"}) {
    require(read_npy(folder + "/" + version + ".npy").equal(array_of(at::kFloat)), version);
  }
}

void check(const std::string& folder) {
  for (const Kind& kind : kCompressions) {
    TfRecordReader records(folder + "/records." + kind.name);
    std::string record;
    for (int i = 0; i < kRecords; ++i) {
      require(records.next(record) && record == record_bytes(i), "record " + std::to_string(i));
    }
    require(!records.next(record), "end of the records");
  }
  TfRecordReader examples(folder + "/examples");
  std::string record;
  int count = 0;
  while (examples.next(record)) check_example(record, count++);
  require(count == kRecords, "number of examples");
  check_arrays(folder);
  for (const char* name : {"uint8", "int8", "int16", "int32", "float32", "float64"}) {
    const at::Tensor expected = read_npy(folder + "/" + name + ".npy");
    require(read_idx(folder + "/" + name + ".idx").equal(expected), std::string(name) + ".idx");
    require(read_idx(folder + "/" + name + ".idx.gz").equal(expected), std::string(name) + ".gz");
  }
  CsvReader table(folder + "/table.csv.gz",
                  {.columns = {csv_column<int64_t>("number"), csv_column<double>("real"),
                               csv_column<std::string>("text")}});
  CsvRow row;
  for (int i = 0; i < kRecords; ++i) {
    const std::string text = "a \"quoted\"\r\nline, " + std::to_string(i);
    require(table.next(row) && row.get<int64_t>(0) == i && row.get<double>(1) == i / 7.0 &&
                row.get<std::string>(2) == text,
            "csv record " + std::to_string(i));
  }
  require(!table.next(row), "end of the csv file");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc == 3 ? argv[1] : "";
  if (mode != "write" && mode != "check") {
    std::fprintf(stderr, "usage: data_interop write|check <folder>\n");
    return 2;
  }
  try {
    mode == "write" ? write(argv[2]) : check(argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
