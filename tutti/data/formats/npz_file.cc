// SPDX-License-Identifier: Apache-2.0
//
// The parts of a zip archive that matter here: the end record locates the directory, the directory
// lists the members, and a local header precedes the bytes of each member.

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/data/formats/internal/npy_header.h"
#include "tutti/data/formats/npy_file.h"
#include "tutti/files/byte_order.h"
#include "tutti/files/mapped_file.h"

namespace tutti::data {

namespace {

constexpr size_t kEndRecordSize = 22;
constexpr size_t kDirectoryEntrySize = 46;
constexpr size_t kLocalHeaderSize = 30;
constexpr uint32_t kEndRecordMark = 0x06054b50;
constexpr uint32_t kDirectoryMark = 0x02014b50;
constexpr uint32_t kLocalMark = 0x04034b50;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;
constexpr size_t kMaxComment = 65535;

Error npz_error(ErrorCode code, std::string_view path, const std::string& text) {
  return Error(code, message("NpzFile: ", path, ": ", text));
}

template <class T>
T zip_field(std::string_view bytes, size_t offset) {
  return load_little<T>(bytes.data() + offset);
}

// Only a comment may follow the end record.
size_t find_end_record(std::string_view bytes, std::string_view path) {
  if (bytes.size() >= kEndRecordSize) {
    const size_t last = bytes.size() - kEndRecordSize;
    const size_t first = last > kMaxComment ? last - kMaxComment : 0;
    for (size_t at = last + 1; at-- > first;) {
      if (zip_field<uint32_t>(bytes, at) == kEndRecordMark &&
          at + kEndRecordSize + zip_field<uint16_t>(bytes, at + 20) == bytes.size()) {
        return at;
      }
    }
  }
  throw npz_error(ErrorCode::kDataLoss, path,
                  message("this is not a zip archive, or it is truncated; found no end record in ",
                          bytes.size(), " bytes."));
}

Error zip64_error(std::string_view path) {
  return npz_error(ErrorCode::kUnimplemented, path,
                   "archives that need zip64 (4 GiB or 65535 members) cannot be read. Save large "
                   "arrays as .npy files.");
}

// Inflates raw deflate data into exactly `size` bytes.
bool inflate_member(std::string_view packed, char* to, size_t size) {
  z_stream stream = {};
  if (::inflateInit2(&stream, -15) != Z_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(to);
  stream.avail_out = static_cast<uInt>(size);
  const int result = ::inflate(&stream, Z_FINISH);
  const bool complete = result == Z_STREAM_END && stream.avail_out == 0;
  ::inflateEnd(&stream);
  return complete;
}

}  // namespace

NpzFile::NpzFile(const std::string& path) : path_(path) {
  auto file = std::make_shared<MappedFile>(path, "NpzFile");
  bytes_ = std::string_view(file->data(), file->size());
  owner_ = std::move(file);
  read_contents();
}

NpzFile NpzFile::from_memory(std::string_view bytes, std::string name) {
  NpzFile file;
  file.path_ = std::move(name);
  file.bytes_ = bytes;
  file.read_contents();
  return file;
}

void NpzFile::read_contents() {
  const size_t end = find_end_record(bytes_, path_);
  const size_t count = zip_field<uint16_t>(bytes_, end + 10);
  const size_t size = zip_field<uint32_t>(bytes_, end + 12);
  const size_t start = zip_field<uint32_t>(bytes_, end + 16);
  if (count == UINT16_MAX || size == UINT32_MAX || start == UINT32_MAX) throw zip64_error(path_);
  if (start > end || size > end - start) {
    throw npz_error(ErrorCode::kDataLoss, path_,
                    message("at byte ", end, ": the directory of the archive (", size,
                            " bytes from byte ", start, ") lies outside of the file."));
  }
  const std::string_view directory = bytes_.substr(start, size);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool has_entry = directory.size() - at >= kDirectoryEntrySize &&
                           zip_field<uint32_t>(directory, at) == kDirectoryMark;
    const size_t name_size = has_entry ? zip_field<uint16_t>(directory, at + 28) : 0;
    const size_t entry_size = has_entry ? kDirectoryEntrySize + name_size +
                                              zip_field<uint16_t>(directory, at + 30) +
                                              zip_field<uint16_t>(directory, at + 32)
                                        : 0;
    if (!has_entry || entry_size > directory.size() - at) {
      throw npz_error(ErrorCode::kDataLoss, path_,
                      message("at byte ", start + at, ": the directory is damaged; expected entry ",
                              i + 1, " of ", count, "."));
    }
    const Member member{.header = zip_field<uint32_t>(directory, at + 42),
                        .packed_size = zip_field<uint32_t>(directory, at + 20),
                        .size = zip_field<uint32_t>(directory, at + 24),
                        .crc = zip_field<uint32_t>(directory, at + 16),
                        .method = zip_field<uint16_t>(directory, at + 10)};
    if (member.header == UINT32_MAX || member.packed_size == UINT32_MAX ||
        member.size == UINT32_MAX) {
      throw zip64_error(path_);
    }
    std::string name(directory.substr(at + kDirectoryEntrySize, name_size));
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    if (!members_.emplace(name, member).second) {
      throw npz_error(ErrorCode::kDataLoss, path_,
                      message("there are two members \"", name, "\"."));
    }
    names_.push_back(std::move(name));
    at += entry_size;
  }
}

bool NpzFile::contains(std::string_view name) const { return members_.count(name) > 0; }

at::Tensor NpzFile::read(std::string_view name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) {
    throw npz_error(
        ErrorCode::kNotFound, path_,
        message("there is no array \"", name, "\"; the file has: ", joined(names_), "."));
  }
  const Member& member = found->second;
  const std::string label = message(path_, "(", name, ")");
  const auto damaged = [&](const std::string& text) {
    return npz_error(ErrorCode::kDataLoss, label, message("at byte ", member.header, ": ", text));
  };
  if (member.header > bytes_.size() || bytes_.size() - member.header < kLocalHeaderSize ||
      zip_field<uint32_t>(bytes_, member.header) != kLocalMark) {
    throw damaged("expected the header of the member, found something else.");
  }
  if ((zip_field<uint16_t>(bytes_, member.header + 6) & 1) != 0) {
    throw npz_error(ErrorCode::kUnimplemented, label, "encrypted members cannot be read.");
  }
  const size_t start = member.header + kLocalHeaderSize +
                       zip_field<uint16_t>(bytes_, member.header + 26) +
                       zip_field<uint16_t>(bytes_, member.header + 28);
  if (start > bytes_.size() || member.packed_size > bytes_.size() - start) {
    throw damaged(message("the archive is truncated; expected ", member.packed_size,
                          " bytes of the member."));
  }
  std::string_view content = bytes_.substr(start, member.packed_size);
  std::shared_ptr<void> owner = owner_;
  if (member.method == kDeflated) {
    // Deflate compresses by a factor of 1032 at most.
    const bool plausible = member.size / 1032 <= member.packed_size;
    auto inflated = std::make_shared<std::vector<char>>(plausible ? member.size : 0);
    if (!plausible || !inflate_member(content, inflated->data(), inflated->size())) {
      throw damaged(message("the compressed bytes are damaged; expected ", member.size,
                            " bytes from ", member.packed_size, "."));
    }
    content = std::string_view(inflated->data(), inflated->size());
    owner = std::move(inflated);
  } else if (member.method != kStored) {
    throw npz_error(ErrorCode::kUnimplemented, label,
                    message("the compression method ", member.method,
                            " is not supported; stored and deflated members can be read."));
  }
  const auto crc = static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
  if (crc != member.crc) throw damaged("the member is damaged; its checksum does not match.");
  return npy_tensor(content, label, std::move(owner));
}

std::map<std::string, at::Tensor> read_npz(const std::string& path) {
  const NpzFile file(path);
  std::map<std::string, at::Tensor> arrays;
  for (const std::string& name : file.names()) arrays.emplace(name, file.read(name));
  return arrays;
}

}  // namespace tutti::data
