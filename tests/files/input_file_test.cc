// SPDX-License-Identifier: Apache-2.0

#include "tutti/files/input_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/thread.h"
#include "tutti/files/output_file.h"

#include "tests/support/damage.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {
namespace {

using test::read_file;
using test::TempFolder;
using test::write_file;

constexpr Compression kKinds[] = {Compression::kNone, Compression::kGzip, Compression::kZlib};

std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i * i) + "\n";
  return text;
}

std::string pack(const TempFolder& folder, std::string_view bytes, Compression kind) {
  const std::string path = folder.path("packed");
  OutputFile file(path, {.compression = kind});
  file.write(bytes);
  file.close();
  return read_file(path);
}

std::string read_all(InputFile& file, size_t step) {
  std::string all;
  while (true) {
    const std::string_view part = file.read(step);
    all += part;
    if (part.size() < step) return all;
  }
}

TEST(InputFile, ReadsBackWhatWasWritten) {
  TempFolder folder;
  const std::string text = numbered_lines(3000);
  for (const Compression kind : kKinds) {
    write_file(folder.path("file"), pack(folder, text, kind));
    for (const size_t buffer : {size_t{1}, size_t{7}, size_t{4096}, size_t{1} << 20}) {
      for (const size_t step : {size_t{1}, size_t{100}, size_t{50000}}) {
        InputFile file(folder.path("file"), {.compression = kind, .buffer_size = buffer});
        EXPECT_EQ(read_all(file, step), text) << to_string(kind) << " " << buffer << " " << step;
        EXPECT_EQ(file.offset(), text.size());
        EXPECT_TRUE(file.at_end());
      }
    }
  }
}

TEST(InputFile, ReadsMemory) {
  TempFolder folder;
  const std::string text = numbered_lines(500);
  for (const Compression kind : kKinds) {
    const std::string packed = pack(folder, text, kind);
    InputFile file = InputFile::from_memory(packed, "x", {.compression = kind});
    EXPECT_EQ(read_all(file, 77), text);
  }
  InputFile plain = InputFile::from_memory(text);
  EXPECT_EQ(plain.read(4).data(), text.data()) << "plain memory is not copied";
  InputFile nothing = InputFile::from_memory({});
  EXPECT_TRUE(nothing.at_end());
  EXPECT_EQ(nothing.read(10), "");
}

TEST(InputFile, RecognizesGzip) {
  TempFolder folder;
  const std::string text = "hello, hello, hello";
  const std::string packed = pack(folder, text, Compression::kGzip);
  InputFile file = InputFile::from_memory(packed);
  EXPECT_EQ(file.read(100), text);
  write_file(folder.path("packed"), packed);
  InputFile from_disk(folder.path("packed"), {.buffer_size = 2});
  EXPECT_EQ(from_disk.read(100), text);
}

TEST(InputFile, RefusesAGzNameWithoutGzipMagic) {
  TempFolder folder;
  const std::string packed = pack(folder, numbered_lines(100), Compression::kGzip);
  const std::string path = folder.path("text.gz");
  for (size_t i = 0; i < 3; ++i) {
    std::string damaged = packed;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    write_file(path, damaged);
    EXPECT_TUTTI_ERROR(InputFile{path}, ErrorCode::kDataLoss, path, "compressed byte 0",
                       "the name ends in .gz", "Compression::kNone");
  }
  write_file(path, "plain");
  InputFile plain(path, {.compression = Compression::kNone});
  EXPECT_EQ(plain.read(100), "plain");
  write_file(path, "");
  EXPECT_TUTTI_ERROR(InputFile{path}, ErrorCode::kDataLoss, path);
  write_file(path, packed);
  EXPECT_EQ(InputFile{path}.read(6), "line 0");
}

TEST(InputFile, PeekDoesNotAdvance) {
  TempFolder folder;
  write_file(folder.path("file"), "abcdef");
  InputFile file(folder.path("file"), {.buffer_size = 2});
  EXPECT_EQ(file.peek(4), "abcd");
  EXPECT_EQ(file.offset(), 0u);
  EXPECT_EQ(file.read(2), "ab");
  EXPECT_EQ(file.peek(100), "cdef");
  EXPECT_EQ(file.read(100), "cdef");
  EXPECT_EQ(file.peek(1), "");
}

TEST(InputFile, ReadsLines) {
  const std::vector<std::string> texts = {
      "",       "\n",         "a",      "a\n",
      "a\n\nb", "a\r\nb\r\n", "\n\n\n", "long " + std::string(1000, 'x') + "\nb"};
  TempFolder folder;
  for (const std::string& text : texts) {
    std::vector<std::string> expected;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      expected.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    write_file(folder.path("file"), text);
    for (const size_t buffer : {size_t{1}, size_t{3}, size_t{10000}}) {
      InputFile file(folder.path("file"), {.buffer_size = buffer});
      std::vector<std::string> lines;
      std::string_view line;
      while (file.read_line(line)) lines.emplace_back(line);
      EXPECT_EQ(lines, expected) << text;
      EXPECT_EQ(file.offset(), text.size());
    }
  }
}

TEST(InputFile, LimitsTheLengthOfALine) {
  const std::string text(100, 'x');
  InputFile file = InputFile::from_memory(text, "x.txt", {.max_read_size = 99});
  std::string_view line;
  EXPECT_TUTTI_ERROR(file.read_line(line), ErrorCode::kDataLoss, "x.txt", "at byte 0",
                     "exceeds the limit of 99 bytes");
}

TEST(InputFile, SeeksForwardAndBack) {
  TempFolder folder;
  const std::string text = numbered_lines(2000);
  for (const Compression kind : kKinds) {
    const std::string packed = pack(folder, text, kind);
    write_file(folder.path("file"), packed);
    InputFile on_disk(folder.path("file"), {.compression = kind, .buffer_size = 64});
    InputFile in_memory = InputFile::from_memory(packed, "x", {.compression = kind});
    for (InputFile* file : {&on_disk, &in_memory}) {
      for (const size_t offset :
           {size_t{10}, size_t{0}, size_t{5000}, size_t{5010}, size_t{4}, text.size()}) {
        file->seek(offset);
        EXPECT_EQ(file->offset(), offset);
        EXPECT_EQ(file->read(9), text.substr(offset, 9));
      }
      EXPECT_TUTTI_ERROR(file->seek(text.size() + 1), ErrorCode::kDataLoss, "cannot seek here",
                         std::to_string(text.size()) + " bytes");
    }
  }
}

TEST(InputFile, AcceptsSeveralGzipMembersAndZeroPadding) {
  TempFolder folder;
  const std::string one = pack(folder, "one ", Compression::kGzip);
  const std::string two = pack(folder, "two", Compression::kGzip);
  const std::string none = pack(folder, "", Compression::kGzip);
  for (const std::string& tail : {std::string(), std::string(100, '\0')}) {
    const std::string packed = message(one, none, two, tail);
    InputFile file = InputFile::from_memory(packed, "x", {.buffer_size = 3});
    EXPECT_EQ(file.read(100), "one two");
  }
  const std::string garbage = one + "garbage";
  InputFile file = InputFile::from_memory(garbage, "x.gz");
  EXPECT_TUTTI_ERROR(file.read(100), ErrorCode::kDataLoss, "x.gz",
                     "expected another gzip member or the end");
  const std::string zlib = pack(folder, "one", Compression::kZlib) + "x";
  InputFile more = InputFile::from_memory(zlib, "x", {.compression = Compression::kZlib});
  EXPECT_TUTTI_ERROR(more.read(100), ErrorCode::kDataLoss, "expected the end after the zlib");
}

TEST(InputFile, ShowsTheMessageOfTheSystem) {
  TempFolder folder;
  EXPECT_TUTTI_ERROR(InputFile(folder.path("nothing")), ErrorCode::kNotFound,
                     "InputFile: cannot open", "nothing", "No such file or directory");
  EXPECT_TUTTI_ERROR(InputFile(folder.path("")), ErrorCode::kFailedPrecondition, "Is a directory");
}

TEST(InputFile, ReportsTruncation) {
  const std::string text = "0123456789";
  InputFile file = InputFile::from_memory(text, "x.bin", {.reader = "Someone"});
  file.read(4);
  EXPECT_TUTTI_ERROR(file.read_exactly(7, "a thing"), ErrorCode::kDataLoss,
                     "Someone: x.bin: at byte 4: the file is truncated",
                     "expected 7 bytes of a thing, found 6");
  char memory[10];
  EXPECT_TUTTI_ERROR(file.read_exactly(memory, 7, "a thing"), ErrorCode::kDataLoss, "at byte 4",
                     "expected 7 bytes of a thing, found 6");
}

TEST(InputFile, DetectsTruncatedCompressedBytes) {
  TempFolder folder;
  const std::string text = numbered_lines(50);
  for (const Compression kind : {Compression::kGzip, Compression::kZlib}) {
    const std::string packed = pack(folder, text, kind);
    const size_t errors = test::truncate_everywhere(packed, [&](const std::string& part) {
      InputFile file = InputFile::from_memory(part, "x", {.compression = kind, .buffer_size = 16});
      read_all(file, 100);
    });
    EXPECT_EQ(errors, packed.size()) << "every shorter file is an error";
    const size_t damaged = test::damage_at_random(packed, 2000, [&](const std::string& part) {
      InputFile file = InputFile::from_memory(part, "x", {.compression = kind});
      read_all(file, 100);
    });
    EXPECT_GT(damaged, 1500u);
  }
}

TEST(InputFile, DoesNotTrustALength) {
  TempFolder folder;
  write_file(folder.path("plain"), "x");
  InputFile plain(folder.path("plain"), {.max_read_size = uint64_t{1} << 50});
  EXPECT_TUTTI_ERROR(plain.read_exactly(uint64_t{1} << 49, "a"), ErrorCode::kDataLoss, "found 1.");
  EXPECT_TUTTI_ERROR(plain.read_exactly(uint64_t{1} << 51, "a"), ErrorCode::kDataLoss,
                     "more than the limit");
  const std::string packed = pack(folder, std::string(100, 'x'), Compression::kGzip);
  InputFile file = InputFile::from_memory(packed, "x", {.max_read_size = uint64_t{1} << 50});
  EXPECT_TUTTI_ERROR(file.read_exactly(uint64_t{1} << 49, "a"), ErrorCode::kDataLoss,
                     "is truncated");
  EXPECT_TUTTI_ERROR(file.read_exactly(1000, "a"), ErrorCode::kDataLoss, "found 100");
  EXPECT_EQ(file.read_exactly(100, "a"), std::string(100, 'x'));
}

TEST(InputFile, FollowsAGrowingFile) {
  TempFolder folder;
  write_file(folder.path("file"), "one");
  InputFile file(folder.path("file"));
  EXPECT_EQ(file.read(10), "one");
  write_file(folder.path("file"), "onetwo");
  EXPECT_EQ(file.read_exactly(3, "more"), "two");
}

TEST(InputFile, ReadsPipes) {
  TempFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string text = numbered_lines(5000);
  Thread writer("writer", [&] { write_file(pipe, text); });
  InputFile file(pipe, {.buffer_size = 100});
  EXPECT_EQ(file.read_exactly(4, "start"), "line");
  file.seek(7);
  EXPECT_EQ(read_all(file, 64), text.substr(7));
  EXPECT_TUTTI_ERROR(file.seek(0), ErrorCode::kFailedPrecondition, "cannot seek back");
}

TEST(OutputFile, ReportsAFullDisk) {
  OutputFile file("/dev/full");
  file.write("x");
  EXPECT_TUTTI_ERROR(file.flush(), ErrorCode::kFailedPrecondition, "cannot write \"/dev/full\"",
                     "No space left on device");
  EXPECT_TUTTI_ERROR(file.write("y"), ErrorCode::kFailedPrecondition, "an earlier write failed");
  EXPECT_TUTTI_ERROR(file.close(), ErrorCode::kFailedPrecondition, "an earlier write failed");
  OutputFile other("/dev/full");
  other.write("x");
  EXPECT_TUTTI_ERROR(other.close(), ErrorCode::kFailedPrecondition, "No space left on device");
  EXPECT_TUTTI_ERROR(other.write("x"), ErrorCode::kFailedPrecondition, "write() after close()");
  other.close();
  test::LogCapture log;
  { OutputFile third("/dev/full", {.compression = Compression::kGzip}); }
  EXPECT_EQ(log.count("No space left on device"), 1) << log.text();
}

TEST(OutputFile, ChecksItsArguments) {
  TempFolder folder;
  EXPECT_TUTTI_ERROR(OutputFile(folder.path("no/such/folder")), ErrorCode::kNotFound,
                     "cannot create");
  EXPECT_TUTTI_ERROR(
      OutputFile(folder.path("x"), {.compression = Compression::kGzip, .compression_level = 17}),
      ErrorCode::kInvalidArgument, "compression_level is 17");
}

TEST(OutputFile, FlushMakesBytesVisible) {
  TempFolder folder;
  for (const Compression kind : kKinds) {
    OutputFile file(folder.path("file"), {.compression = kind});
    file.write("hello ");
    file.flush();
    InputFile reader(folder.path("file"), {.compression = kind});
    EXPECT_EQ(reader.read(6), "hello ");
    file.write("you");
    OutputFile moved = std::move(file);
    moved.close();
    EXPECT_EQ(reader.read(3), "you");
    EXPECT_EQ(moved.offset(), 9u);
  }
}

}  // namespace
}  // namespace tutti::data
