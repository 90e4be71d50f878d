// SPDX-License-Identifier: Apache-2.0
//
// Tests what datasets of files yield, how they fail, and how a pass resumes at a position.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/auto_shard.h"
#include "tutti/data/files.h"
#include "tutti/data/formats/example.h"
#include "tutti/files/output_file.h"

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tutti::data::file_sources_test {

using test::TempFolder;
using test::write_file;
using Strings = std::vector<std::string>;

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

void write_packed(const std::string& path, std::string_view bytes, Compression compression) {
  OutputFile file(path, {.compression = compression});
  file.write(bytes);
  file.close();
}

void write_records(const std::string& path, const Strings& records,
                   Compression compression = Compression::kNone) {
  TfRecordWriter writer(path, {.compression = compression});
  for (const std::string& record : records) writer.write(record);
  writer.close();
}

Strings numbered(const std::string& prefix, int count) {
  Strings texts;
  for (int i = 0; i < count; ++i) texts.push_back(prefix + std::to_string(i));
  return texts;
}

Strings joined(Strings a, const Strings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// ---- text_line --------------------------------------------------------------------

TEST(FileSources, ReadsTextLinesOfSeveralFiles) {
  const TempFolder folder;
  const std::string a = folder.path("a.txt");
  const std::string b = folder.path("b.txt.gz");
  const std::string c = folder.path("c.txt");
  const std::string empty = folder.path("empty.txt");
  write_file(a, "one\ntwo\r\n\nfo\rur\n");
  write_packed(b, "five\nsix\n", Compression::kGzip);
  write_file(c, "seven");
  write_file(empty, "");
  const Strings lines = {"one", "two", "", "fo\rur", "five", "six", "seven"};
  EXPECT_EQ(all_of(text_line({empty, a, empty, b, c, empty})), lines);
  EXPECT_EQ(all_of(text_line({a, b, c}, {.buffer_size = 3})), lines);
  EXPECT_EQ(all_of(text_line(c)), Strings{"seven"});
  EXPECT_EQ(all_of(text_line(c.c_str())), Strings{"seven"});
  EXPECT_EQ(all_of(text_line(std::filesystem::path(c))), Strings{"seven"});
  EXPECT_EQ(all_of(text_line(b, {.compression = Compression::kGzip})), (Strings{"five", "six"}));
  EXPECT_NE(all_of(text_line(b, {.compression = Compression::kNone})), (Strings{"five", "six"}));
  EXPECT_TUTTI_ERROR(all_of(text_line(a, {.compression = Compression::kGzip})),
                     ErrorCode::kDataLoss, "text_line", a, "damaged");
  EXPECT_EQ(to_text(text_line(a).element_spec()), "string");
  EXPECT_EQ(text_line(a).cardinality(), kUnknown);
  EXPECT_EQ(text_line(Strings{}).cardinality(), 0);
  EXPECT_TRUE(all_of(text_line(Strings{})).empty());
}

TEST(FileSources, AMissingFileIsAnErrorWhenItIsReached) {
  const TempFolder folder;
  const std::string a = folder.path("a");
  const std::string missing = folder.path("missing");
  write_records(a, {"1", "2"});
  for (const int64_t ahead : {0, 3}) {
    auto pass = tf_record({a, missing, a}).prefetch(ahead).iterator();
    EXPECT_EQ(pass.get_next(), "1");
    EXPECT_EQ(pass.get_next(), "2");
    EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kNotFound, missing, "cannot open");
    write_records(missing, {"3"});
    EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kNotFound, missing) << "the error persists";
    std::filesystem::remove(missing);
  }
}

// ---- list_files -------------------------------------------------------------------

TEST(FileSources, ListFilesSortsOrShuffles) {
  const TempFolder folder;
  Strings wanted;
  for (char letter = 'a'; letter <= 'l'; ++letter) {
    wanted.push_back(folder.path(std::string("part-") + letter + ".txt"));
    write_file(wanted.back(), "");
  }
  write_file(folder.path("other.bin"), "");
  std::filesystem::create_directory(folder.path("part-folder.txt"));
  const std::string pattern = folder.path("part-*.txt");
  EXPECT_EQ(match_files(pattern), wanted) << "sorted, without folders";
  const auto sorted = list_files(pattern, {.shuffle = false});
  EXPECT_EQ(all_of(sorted), wanted);
  EXPECT_EQ(all_of(sorted), wanted);
  EXPECT_EQ(sorted.cardinality(), 12);
  EXPECT_EQ(to_text(sorted.element_spec()), "string");

  const auto order = [&](std::optional<uint64_t> seed) {
    return all_of(list_files(pattern, {.seed = seed}));
  };
  EXPECT_EQ(order(7), order(7));
  EXPECT_NE(order(7), order(8));
  EXPECT_NE(order(7), wanted);
  const auto dataset = list_files(pattern, {.seed = 7});
  const Strings first = all_of(dataset);
  Strings second = all_of(dataset);
  EXPECT_NE(first, second);
  std::sort(second.begin(), second.end());
  EXPECT_EQ(second, wanted);
  Strings any = order(std::nullopt);
  std::sort(any.begin(), any.end());
  EXPECT_EQ(any, wanted);

  EXPECT_EQ(match_files({folder.path("part-[ab].txt"), folder.path("part-?.txt"),
                         folder.path("other.bin")}),
            joined({folder.path("other.bin")}, wanted))
      << "each once";
  EXPECT_TUTTI_ERROR(list_files({pattern, folder.path("*.npy")}), ErrorCode::kNotFound,
                     "list_files", folder.path("*.npy"));
  EXPECT_TUTTI_ERROR(list_files(folder.path("nowhere/*")), ErrorCode::kNotFound, "nowhere/*");
  EXPECT_TUTTI_ERROR(list_files(folder.path("part-fo*")), ErrorCode::kNotFound, "part-fo*");
}

// ---- tf_record --------------------------------------------------------------------

TEST(FileSources, ReadsTfRecordsOfSeveralFiles) {
  const TempFolder folder;
  const Strings files = {folder.path("a"), folder.path("b"), folder.path("c"), folder.path("d")};
  const std::string large(700'000, 'x');
  write_records(files[0], {"", "a", large});
  write_records(files[1], {"b", std::string("\0\n", 2)}, Compression::kGzip);
  write_records(files[2], {});
  write_records(files[3], {"d"}, Compression::kZlib);
  const Strings records = {"", "a", large, "b", std::string("\0\n", 2), "d"};
  EXPECT_EQ(all_of(tf_record(files)), records);
  EXPECT_EQ(all_of(tf_record(files, {.buffer_size = 5})), records);
  EXPECT_EQ(all_of(tf_record(files[3], {.compression = Compression::kZlib})), Strings{"d"});
  EXPECT_EQ(all_of(tf_record(files).skip(3)), (Strings{"b", std::string("\0\n", 2), "d"}));
  EXPECT_TRUE(all_of(tf_record(files).skip(6)).empty());
  EXPECT_TRUE(all_of(tf_record(Strings{})).empty());
  EXPECT_EQ(to_text(tf_record(files).element_spec()), "string");
  EXPECT_EQ(all_of(tf_record(files).batch(4))[1], (Strings{std::string("\0\n", 2), "d"}));
}

TEST(FileSources, ReportsDamagedRecordsOrSkipsAndCountsThem) {
  const TempFolder folder;
  const std::string good = folder.path("good");
  const std::string bad = folder.path("bad");
  write_records(good, {"first"});
  write_records(bad, {"aaaa", "bbbb", "cccc", "dddd"});
  std::string bytes = test::read_file(bad);
  ASSERT_EQ(bytes.size(), 80U);
  bytes[20 + 12] ^= 1;  // in "bbbb"
  bytes[60 + 12] ^= 1;  // in "dddd"
  write_file(bad, bytes);

  auto pass = tf_record({good, bad, good}).iterator();
  EXPECT_EQ(pass.get_next(), "first");
  EXPECT_EQ(pass.get_next(), "aaaa");
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kDataLoss, bad, "at byte 20", "checksum is",
                     "expected");
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kDataLoss, "at byte 20") << "the error persists";
  EXPECT_TUTTI_ERROR(pass.save(), ErrorCode::kDataLoss, "at byte 20");
  EXPECT_TRUE(pass.stats().empty());

  auto lenient = tf_record({good, bad, good}, {.skip_corrupt = true}).iterator();
  Strings records;
  while (const auto record = lenient.next()) records.push_back(*record);
  EXPECT_EQ(records, (Strings{"first", "aaaa", "cccc", "first"}));
  ASSERT_EQ(lenient.stats().size(), 1U);
  EXPECT_EQ(lenient.stats()[0].stage, "tf_record");
  EXPECT_EQ(lenient.stats()[0].skipped, 2);

  auto skipping = tf_record({bad, bad}, {.skip_corrupt = true}).skip(3).iterator();
  EXPECT_EQ(skipping.get_next(), "cccc");
  EXPECT_EQ(skipping.stats()[0].skipped, 3) << "counted too when records are passed over";

  bytes.resize(75);
  write_file(bad, bytes);
  auto cut = tf_record({bad, good}, {.skip_corrupt = true}).iterator();
  EXPECT_EQ(cut.get_next(), "aaaa");
  EXPECT_EQ(cut.get_next(), "cccc");
  EXPECT_TUTTI_ERROR(cut.next(), ErrorCode::kDataLoss, bad, "truncated", "at byte 72");
}

TEST(FileSources, ParsesExamplesInMap) {
  const TempFolder folder;
  Strings files;
  for (int64_t file = 0; file < 3; ++file) {
    files.push_back(folder.path("examples-" + std::to_string(file)));
    TfRecordWriter writer(files.back());
    for (int64_t i = 4 * file; i < 4 * file + 4; ++i) {
      const auto x = static_cast<float>(i);
      writer.write(ExampleBuilder().floats("x", {x, x + 0.5F}).int64s("y", {i * i}).finish());
    }
    writer.close();
  }
  const ExampleSpec spec = ExampleSpec().fixed<float>("x", {2}).fixed<int64_t>("y");
  const auto batches = tf_record(match_files(folder.path("examples-*")))
                           .map([spec](std::string record) {
                             ParsedExample example = spec.parse(record);
                             return std::tuple(example.tensor("x"), example.tensor("y"));
                           })
                           .batch(5);
  int64_t first = 0;
  for (const auto& [x, y] : batches) {
    const int64_t rows = std::min<int64_t>(5, 12 - first);
    const at::Tensor i = at::arange(first, first + rows, at::kLong);
    EXPECT_TRUE(at::equal(x, at::stack({i, i + 0.5}, 1).to(at::kFloat)));
    EXPECT_TRUE(at::equal(y, i * i));
    first += rows;
  }
  EXPECT_EQ(first, 12);

  // Parsing whole batches of records is faster.
  const auto whole = tf_record(files).batch(12).map([spec](const Strings& records) {
    ParsedExample parsed = spec.parse_batch(records);
    return std::tuple(parsed.tensor("x"), parsed.tensor("y"));
  });
  const at::Tensor all = at::arange(12, at::kLong);
  EXPECT_TRUE(at::equal(std::get<1>(all_of(whole)[0]), all * all));
}

// ---- fixed_length_record ----------------------------------------------------------

TEST(FileSources, ReadsFixedLengthRecords) {
  const TempFolder folder;
  const std::string a = folder.path("a");
  const std::string b = folder.path("b");
  const std::string none = folder.path("none");
  write_file(a, "HHaaabbbFFF");
  write_packed(b, "HHcccFFF", Compression::kGzip);
  write_file(none, "HHFFF");
  const FixedLengthRecordOptions options = {.header_bytes = 2, .footer_bytes = 3};
  EXPECT_EQ(all_of(fixed_length_record({none, a, b, none}, 3, options)),
            (Strings{"aaa", "bbb", "ccc"}));
  EXPECT_EQ(all_of(fixed_length_record({a, b}, 3,
                                       {.header_bytes = 2, .footer_bytes = 3, .buffer_size = 1})),
            (Strings{"aaa", "bbb", "ccc"}));
  EXPECT_EQ(all_of(fixed_length_record({a, b}, 3, options).skip(2)), Strings{"ccc"});
  EXPECT_EQ(all_of(fixed_length_record(none, 5)), Strings{"HHFFF"});
  EXPECT_EQ(to_text(fixed_length_record(a, 3).element_spec()), "string");

  auto pass = fixed_length_record({b, a}, 4, {.header_bytes = 2, .footer_bytes = 2}).iterator();
  EXPECT_EQ(pass.get_next(), "cccF");
  EXPECT_EQ(pass.get_next(), "aaab");
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kDataLoss, a, "at byte 6", "expected 4 bytes",
                     "found 3");
  EXPECT_TUTTI_ERROR(all_of(fixed_length_record(none, 3, {.header_bytes = 6})),
                     ErrorCode::kDataLoss, none, "header");
  EXPECT_TUTTI_ERROR(all_of(fixed_length_record(none, 3, {.header_bytes = 2, .footer_bytes = 4})),
                     ErrorCode::kDataLoss, none, "at byte 2", "4 bytes of the footer", "found 3");
  EXPECT_TUTTI_ERROR(fixed_length_record(a, 0), ErrorCode::kInvalidArgument, "record_bytes is 0");
  EXPECT_TUTTI_ERROR(fixed_length_record(a, 1, {.header_bytes = -1}), ErrorCode::kInvalidArgument,
                     "header_bytes is -1");
  EXPECT_TUTTI_ERROR(fixed_length_record(a, 1, {.footer_bytes = INT64_MAX}),
                     ErrorCode::kInvalidArgument, "footer_bytes");
}

// ---- csv --------------------------------------------------------------------------

TEST(FileSources, CsvColumnsHaveTypes) {
  const TempFolder folder;
  const std::string a = folder.path("a.csv");
  const std::string b = folder.path("b.csv.gz");
  write_file(a, "name,age,height,weight,member\n\"Doe, Ann\",31,1.75,60.25,true\nBob,,2,1e2,0\n");
  write_packed(b, "member,name,age,weight,height\r\nfalse,\"C\n\"\"x\"\"\",7,3,1\r\n",
               Compression::kGzip);
  const auto people = csv<std::string, int64_t, float, double, bool>(
      {a, b}, {"name", {"age", -1}, "height", "weight", "member"});
  using Row = std::tuple<std::string, int64_t, float, double, bool>;
  const std::vector<Row> rows = {{"Doe, Ann", 31, 1.75F, 60.25, true},
                                 {"Bob", -1, 2.0F, 100.0, false},
                                 {"C\n\"x\"", 7, 1.0F, 3.0, false}};
  EXPECT_EQ(all_of(people), rows);
  EXPECT_EQ(all_of(people.skip(1)), (std::vector<Row>{rows[1], rows[2]}));
  EXPECT_EQ(to_text(people.element_spec()),
            "(string, int64 number, float32 number, float64 number, bool number)");
  EXPECT_EQ(to_text(people.element_spec()), to_text(spec_of(to_element(rows[0]))));
  const auto batch = all_of(people.batch(3))[0];
  EXPECT_EQ(std::get<0>(batch), (Strings{"Doe, Ann", "Bob", "C\n\"x\""}));
  EXPECT_TRUE(at::equal(std::get<1>(batch), at::tensor({31, -1, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(std::get<4>(batch), at::tensor({1, 0, 0}).to(at::kBool)));
  EXPECT_EQ(all_of(people.map([](const std::string& name, int64_t age, float, double, bool) {
              return name + std::to_string(age);
            }))[0],
            "Doe, Ann31");

  const std::string c = folder.path("c.csv");
  write_file(c, "1;x\n2;\n3;-\n");
  const auto numbered_columns = csv<std::string, int64_t>(
      c, {{1, "none"}, 0}, {.header = false, .separator = ';', .missing = "-"});
  EXPECT_EQ(all_of(numbered_columns),
            (std::vector<std::tuple<std::string, int64_t>>{{"x", 1}, {"none", 2}, {"none", 3}}));
  EXPECT_EQ(all_of(csv<std::string>(a, {"name"})).size(), 2U);
}

TEST(FileSources, CsvErrorsNameTheirPlace) {
  const TempFolder folder;
  const std::string a = folder.path("a.csv");
  const std::string b = folder.path("b.csv");
  write_file(a, "x,y\n1,2\n");
  write_file(b, "x,y\n3,4\n5,six\n7,8\n");
  auto pass = csv<int64_t, int64_t>({a, b}, {"x", "y"}).iterator();
  EXPECT_EQ(pass.get_next(), std::tuple(int64_t{1}, int64_t{2}));
  EXPECT_EQ(pass.get_next(), std::tuple(int64_t{3}, int64_t{4}));
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kInvalidArgument, b + ":3:2", "int64", "six");
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kInvalidArgument, b + ":3:2") << "the error persists";
  EXPECT_TUTTI_ERROR(all_of(csv<int64_t>({a, b}, {"z"})), ErrorCode::kNotFound, a, "\"z\"", "x, y");
  EXPECT_TUTTI_ERROR(all_of(csv<int64_t>(a, {2})), ErrorCode::kNotFound, a, "no column 2");
  EXPECT_TUTTI_ERROR(csv<int64_t>(a, {-1}), ErrorCode::kInvalidArgument, "no column -1");
  EXPECT_TUTTI_ERROR(csv<int64_t>(a, {"x"}, {.columns = {csv_column<int64_t>("x")}}),
                     ErrorCode::kInvalidArgument, "CsvOptions::columns");
  write_file(b, "");
  EXPECT_TUTTI_ERROR(all_of(csv<int64_t>({a, b}, {"x"})), ErrorCode::kDataLoss, b, "header");
  EXPECT_EQ(all_of(csv<int64_t>({b, b}, {0}, {.header = false})).size(), 0U);
}

// ---- arrays -----------------------------------------------------------------------

TEST(FileSources, ReadsRowsOfNpyNpzAndIdx) {
  const TempFolder folder;
  const at::Tensor images = at::randint(0, 255, {9, 4, 3}, at::kByte);
  const std::string npy_path = folder.path("images.npy");
  write_npy(npy_path, images);
  const auto rows = npy(npy_path);
  EXPECT_EQ(rows.cardinality(), 9);
  EXPECT_EQ(to_text(rows.element_spec()), "uint8[4, 3]");
  EXPECT_NE(rows.node()->indexed(), nullptr) << "supports random access";
  EXPECT_TRUE(at::equal(at::stack(all_of(rows)), images));
  EXPECT_TRUE(at::equal(all_of(rows.batch(4))[2], images.slice(0, 8)));

  // With random access, the order is that of a shuffled range.
  const auto order = all_of(range(9).shuffle(5, {.seed = 3}));
  const auto shuffled = rows.shuffle(5, {.seed = 3});
  EXPECT_NE(shuffled.node()->indexed(), nullptr);
  EXPECT_TRUE(at::equal(at::stack(all_of(shuffled)), images.index_select(0, at::tensor(order))));
  EXPECT_TRUE(at::equal(all_of(rows.shuffle(5, {.seed = 3}).batch(9))[0],
                        images.index_select(0, at::tensor(order))));

  write_npy(npy_path, at::scalar_tensor(3.0));
  EXPECT_TUTTI_ERROR(npy(npy_path), ErrorCode::kInvalidArgument, npy_path, "no rows");
  EXPECT_TUTTI_ERROR(npy(folder.path("missing.npy")), ErrorCode::kNotFound, "missing.npy");

  const std::string image_path = folder.path("images.idx");
  const std::string label_path = folder.path("labels.idx.gz");
  std::string bytes("\0\0\x08\x03\0\0\0\x09\0\0\0\x04\0\0\0\x03", 16);
  bytes.append(static_cast<const char*>(images.data_ptr()), images.nbytes());
  write_file(image_path, bytes);
  const at::Tensor labels = at::arange(9, at::kByte);
  bytes.assign("\0\0\x08\x01\0\0\0\x09", 8);
  bytes.append(static_cast<const char*>(labels.data_ptr()), labels.nbytes());
  write_packed(label_path, bytes, Compression::kGzip);
  const auto pairs = idx(image_path, label_path);
  EXPECT_EQ(to_text(pairs.element_spec()), "(uint8[4, 3], uint8[])");
  int64_t i = 0;
  for (const auto& [image, label] : pairs) {
    EXPECT_TRUE(at::equal(image, images[i]));
    EXPECT_EQ(label.item<int64_t>(), i);
    ++i;
  }
  EXPECT_EQ(i, 9);
  EXPECT_TRUE(at::equal(all_of(idx(label_path).batch(9))[0], labels));
  const std::string short_path = folder.path("short.idx");
  write_file(short_path, std::string("\0\0\x08\x01\0\0\0\x01\x05", 9));
  EXPECT_TUTTI_ERROR(idx(image_path, short_path), ErrorCode::kInvalidArgument, image_path,
                     short_path, "number of rows");
}

// Builds a zip archive of stored members.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& members) {
  const auto little = [](size_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  std::string archive;
  std::string directory;
  for (const auto& [name, content] : members) {
    uint32_t crc = 0xffffffff;
    for (const char byte : content) {
      crc ^= static_cast<uint8_t>(byte);
      for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xedb88320 : crc >> 1;
    }
    const std::string shared = little(0, 8) + little(~crc, 4) + little(content.size(), 4) +
                               little(content.size(), 4) + little(name.size(), 2) + little(0, 2);
    directory += little(0x02014b50, 4) + little(20, 2) + little(20, 2) + shared +
                 std::string(10, '\0') + little(archive.size(), 4) + name;
    archive += little(0x04034b50, 4) + little(20, 2) + shared + name + content;
  }
  return archive + directory + little(0x06054b50, 4) + little(0, 4) + little(members.size(), 2) +
         little(members.size(), 2) + little(directory.size(), 4) + little(archive.size(), 4) +
         little(0, 2);
}

TEST(FileSources, ReadsRowsOfNpz) {
  const TempFolder folder;
  const std::string path = folder.path("arrays.npz");
  const auto bytes_of = [&](const at::Tensor& tensor) {
    write_npy(folder.path("one.npy"), tensor);
    return test::read_file(folder.path("one.npy"));
  };
  const at::Tensor x = at::randn({7, 2});
  const at::Tensor y = at::arange(7, at::kLong);
  write_file(
      path,
      zip_of({{"x.npy", bytes_of(x)}, {"y.npy", bytes_of(y)}, {"z.npy", bytes_of(at::ones({6}))}}));
  const auto pairs = npz(path, "x", std::string("y"));
  EXPECT_EQ(to_text(pairs.element_spec()), "(float32[2], int64[])");
  const auto batch = all_of(pairs.batch(7))[0];
  EXPECT_TRUE(at::equal(std::get<0>(batch), x));
  EXPECT_TRUE(at::equal(std::get<1>(batch), y));
  EXPECT_TRUE(at::equal(at::stack(all_of(npz(path, "x"))), x));
  EXPECT_TUTTI_ERROR(npz(path, "x", "z"), ErrorCode::kInvalidArgument, "npz", path + "(x)",
                     path + "(z)", "number of rows");
  EXPECT_TUTTI_ERROR(npz(path, "w"), ErrorCode::kNotFound, path, "\"w\"", "x, y, z");
}

// ---- positions --------------------------------------------------------------------

template <class T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return at::equal(a, b);
  } else {
    return a == b;
  }
}

// Saves after each number of elements and compares the rest.
template <class T>
void expect_resumable(const Dataset<T>& dataset, size_t elements) {
  const std::vector<T> whole = all_of(dataset);
  ASSERT_EQ(whole.size(), elements);
  for (size_t at = 0; at <= whole.size(); ++at) {
    auto pass = dataset.iterator();
    for (size_t i = 0; i < at; ++i) pass.get_next();
    const std::string position = pass.save();
    auto resumed = dataset.iterator();
    resumed.restore(position);
    EXPECT_EQ(resumed.save(), position);
    for (size_t i = at; i < whole.size(); ++i) {
      const auto mine = pass.next();
      const auto theirs = resumed.next();
      ASSERT_TRUE(mine && theirs) << "after " << at << ", element " << i;
      ASSERT_TRUE(same(*mine, *theirs)) << "after " << at << ", element " << i;
    }
    EXPECT_FALSE(pass.next().has_value());
    EXPECT_FALSE(resumed.next().has_value());
  }
}

TEST(FileSources, PositionsResumeWithTheSameElements) {
  const TempFolder folder;
  const Strings text = {folder.path("a.txt"), folder.path("b.txt"), folder.path("c.txt")};
  write_file(text[0], "0\r\n1\n\n3");
  write_file(text[1], "");
  write_packed(text[2], "4\n5\n6\n", Compression::kGzip);
  expect_resumable(text_line(text), 7);
  expect_resumable(text_line(text, {.buffer_size = 2}), 7);
  expect_resumable(text_line(text).batch(2).prefetch(2), 4);
  expect_resumable(text_line(text).shuffle(3, {.seed = 1}).repeat(2), 14);
  expect_resumable(text_line(Strings{}), 0);

  const Strings records = {folder.path("a"), folder.path("b"), folder.path("c"), folder.path("d")};
  write_records(records[0], numbered("a", 4));
  write_records(records[1], {});
  write_records(records[2], numbered("c", 3), Compression::kGzip);
  write_records(records[3], numbered("d", 3), Compression::kZlib);
  const auto length = [](const std::string& record) { return record + "!"; };
  expect_resumable(tf_record(records), 10);
  expect_resumable(tf_record(records).map(length, {.num_parallel_calls = 2}).batch(3), 4);
  expect_resumable(tf_record(records).map(length, {.num_parallel_calls = 2}).prefetch(3), 10);
  expect_resumable(tf_record(records).skip(2).shard(2, 1).repeat(2), 8);
  expect_resumable(list_files(folder.path("?"), {.seed = 4}).flat_map([](const std::string& file) {
    return tf_record(file);
  }),
                   10);

  const std::string packed = folder.path("fixed.gz");
  write_packed(packed, "HaabbccFF", Compression::kGzip);
  write_file(folder.path("fixed"), "HddeeFF");
  const auto fixed = fixed_length_record({packed, folder.path("fixed"), packed}, 2,
                                         {.header_bytes = 1, .footer_bytes = 2});
  expect_resumable(fixed, 8);
  expect_resumable(fixed.batch(3), 3);
  expect_resumable(fixed_length_record({folder.path("fixed")}, 1), 7);

  const std::string table = folder.path("a.csv");
  write_file(table, "x,y\n1,\"two\nlines\"\n\n2,b\n3,c\n");
  expect_resumable(csv<int64_t, std::string>({table, table}, {"x", "y"}), 6);
  expect_resumable(csv<std::string>({table, table}, {1}, {.header = false}).prefetch(1), 8);

  write_npy(folder.path("rows.npy"), at::randn({11, 3}));
  expect_resumable(npy(folder.path("rows.npy")), 11);
  expect_resumable(npy(folder.path("rows.npy")).shuffle(4, {.seed = 2}).batch(2).prefetch(2), 6);
  expect_resumable(list_files(folder.path("*"), {.seed = 3}), match_files(folder.path("*")).size());
}

TEST(FileSources, CsvErrorsKeepTheirLineAfterAPosition) {
  const TempFolder folder;
  const std::string table = folder.path("a.csv");
  write_file(table, "1,\"two\nlines\"\n2,b\n3\n");
  const auto dataset = csv<int64_t>(table, {0}, {.header = false});
  for (const int before : {1, 2}) {
    auto pass = dataset.iterator();
    for (int i = 0; i < before; ++i) pass.get_next();
    auto resumed = dataset.iterator();
    resumed.restore(pass.save());
    for (int i = before; i < 2; ++i) EXPECT_EQ(resumed.get_next(), std::tuple(int64_t{2}));
    EXPECT_TUTTI_ERROR(resumed.next(), ErrorCode::kDataLoss, "line 4", "expected 2 fields",
                       "found 1");
  }
}

TEST(FileSources, RejectsPositionsOfOtherFiles) {
  const TempFolder folder;
  const std::string a = folder.path("a");
  const std::string b = folder.path("b");
  write_records(a, {"1", "2", "3"});
  write_records(b, {"1", "2", "3"});
  auto pass = tf_record({a, b}).iterator();
  pass.get_next();
  pass.get_next();
  const std::string position = pass.save();
  const auto restore = [&](const auto& dataset) {
    auto other = dataset.iterator();
    other.restore(position);
    return other.next();
  };
  EXPECT_EQ(restore(tf_record({a, b})), "3");
  EXPECT_EQ(restore(tf_record({a, folder.path("later")})), "3") << "not reached yet";
  EXPECT_TUTTI_ERROR(restore(tf_record({b, a})), ErrorCode::kDataLoss, a, b, "file number 0");
  EXPECT_TUTTI_ERROR(restore(text_line({a, b})), ErrorCode::kDataLoss, "tf_record", "text_line");
  std::filesystem::resize_file(a, 20);
  EXPECT_TUTTI_ERROR(restore(tf_record({a, b})), ErrorCode::kDataLoss, a, "20 bytes");
  std::filesystem::remove(a);
  EXPECT_TUTTI_ERROR(restore(tf_record({a, b})), ErrorCode::kNotFound, a);
}

// ---- sharding ---------------------------------------------------------------------

TEST(FileSources, WorkersReadDifferentFiles) {
  const TempFolder folder;
  Strings files;
  for (int i = 0; i < 5; ++i) {
    files.push_back(folder.path("file" + std::to_string(i)));
    write_records(files.back(), numbered(std::to_string(i) + ".", i));
  }
  const auto dataset = tf_record(files).batch(2);
  std::multiset<std::string> seen;
  for (int64_t worker = 0; worker < 3; ++worker) {
    const ShardedPipeline shard =
        shard_pipeline(dataset.node(), {.num_workers = 3, .worker = worker});
    EXPECT_EQ(shard.policy, AutoShardPolicy::kFile);
    for (const Strings& batch : Dataset<Strings>(shard.node)) {
      for (const std::string& record : batch) {
        EXPECT_EQ((record[0] - '0') % 3, worker) << record;
        seen.insert(record);
      }
    }
  }
  EXPECT_EQ(Strings(seen.begin(), seen.end()), all_of(tf_record(files)));
  const NodePtr table = csv<int64_t>(files, {0}).node();
  const NodePtr none = table->traits().with_files({});
  EXPECT_EQ(none->name(), "csv");
  EXPECT_EQ(none->cardinality(), 0);
  EXPECT_TRUE(all_of(Dataset<std::tuple<int64_t>>(none)).empty());
}

}  // namespace tutti::data::file_sources_test
