// SPDX-License-Identifier: Apache-2.0
//
// NumPy's files: .npy holds one array, .npz is a zip archive of them.

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti::data {

/// Maps the array of an .npy file (format 1, 2 or 3): nothing is read until it is used, and the
/// file may be larger than memory. Writing to the tensor does not change the file. The file must
/// not be shortened while the tensor exists.
///
/// Arrays in Fortran order keep it: the tensor has the same shape with different strides. Throws
/// kNotFound for a missing file, kDataLoss for a damaged one, kUnimplemented for dtypes that
/// LibTorch does not have: big-endian, unsigned of more than a byte, objects, text, structures.
at::Tensor read_npy(const std::string& path);

/// The same from bytes, which are copied; messages show `name` instead of a path.
at::Tensor parse_npy(std::string_view bytes, std::string_view name = "memory");

/// Writes a tensor in C order. Throws kInvalidArgument for bfloat16 and quantized tensors,
/// which NumPy does not have.
void write_npy(const std::string& path, const at::Tensor& tensor);

/// An .npz file: arrays by name. Members may be stored or deflated. Thread-safe.
class NpzFile {
 public:
  /// Reads the table of contents. Throws kNotFound, kDataLoss, and kUnimplemented for
  /// archives of more than 4 GiB (zip64).
  explicit NpzFile(const std::string& path);
  /// Reads from bytes, which must outlive this object; arrays are copies.
  static NpzFile from_memory(std::string_view bytes, std::string name = "memory");

  /// The names of the arrays, without ".npy", in the order of the archive.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const;

  /// Reads one array and verifies its checksum. Throws kNotFound for an unknown name.
  at::Tensor read(std::string_view name) const;

 private:
  struct Member {
    size_t header = 0;  ///< offset of the local header
    size_t packed_size = 0;
    size_t size = 0;
    uint32_t crc = 0;
    uint16_t method = 0;
  };

  NpzFile() = default;
  void read_contents();

  std::string path_;
  std::shared_ptr<void> owner_;
  std::string_view bytes_;
  std::vector<std::string> names_;
  std::map<std::string, Member, std::less<>> members_;
};

/// All arrays of an .npz file.
std::map<std::string, at::Tensor> read_npz(const std::string& path);

}  // namespace tutti::data
