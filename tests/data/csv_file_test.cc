// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/csv_file.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/files/output_file.h"

#include "tests/support/damage.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {
namespace {

using test::TempFolder;
using test::write_file;
using Table = std::vector<std::vector<std::string>>;

CsvReader csv_over(std::string_view text, CsvOptions options = {}, size_t buffer = 1 << 16) {
  return CsvReader(InputFile::from_memory(text, "x.csv", {.buffer_size = buffer}),
                   std::move(options));
}

Table table_of(CsvReader& reader) {
  Table table;
  std::vector<std::string_view> fields;
  while (reader.next_fields(fields)) table.emplace_back(fields.begin(), fields.end());
  return table;
}

Table table_of(std::string_view text, CsvOptions options = {.header = false}) {
  CsvReader reader = csv_over(text, std::move(options));
  return table_of(reader);
}

TEST(CsvReader, SplitsRecords) {
  EXPECT_EQ(table_of("a,b\nc,d\n"), (Table{{"a", "b"}, {"c", "d"}}));
  EXPECT_EQ(table_of("a,b\r\nc,d"), (Table{{"a", "b"}, {"c", "d"}}));
  EXPECT_EQ(table_of(",\n,x\nx,\n"), (Table{{"", ""}, {"", "x"}, {"x", ""}}));
  EXPECT_EQ(table_of("a\n\n\r\nb\n"), (Table{{"a"}, {"b"}})) << "blank lines";
  EXPECT_EQ(table_of(""), Table{});
  EXPECT_EQ(table_of(" a , b "), (Table{{" a ", " b "}}));
  EXPECT_EQ(table_of("\xef\xbb\xbf"
                     "a,b"),
            (Table{{"a", "b"}}))
      << "byte order mark";
}

TEST(CsvReader, UnderstandsQuotes) {
  EXPECT_EQ(table_of("\"a\",\"b,c\"\n"), (Table{{"a", "b,c"}}));
  EXPECT_EQ(table_of("\"a \"\"b\"\"\",c\r\n"), (Table{{"a \"b\"", "c"}}));
  EXPECT_EQ(table_of("\"\",\"\"\"\"\n"), (Table{{"", "\""}}));
  EXPECT_EQ(table_of("\"one\ntwo\",x\n\"a\r\n\r\nb\",y\r\n"),
            (Table{{"one\ntwo", "x"}, {"a\r\n\r\nb", "y"}}));
  EXPECT_EQ(table_of("x,\"a\"\ny,\"b\""), (Table{{"x", "a"}, {"y", "b"}}));
  EXPECT_EQ(table_of("\"a\",\nb,c\n"), (Table{{"a", ""}, {"b", "c"}}));
  EXPECT_EQ(table_of("\xef\xbb\xbf\"a\",b"), (Table{{"a", "b"}}));
}

TEST(CsvReader, TakesOtherSeparatorsAndQuotes) {
  EXPECT_EQ(table_of("a\tb,c\n", {.header = false, .separator = '\t'}), (Table{{"a", "b,c"}}));
  EXPECT_EQ(table_of("'a;b';c\n", {.header = false, .separator = ';', .quote = '\''}),
            (Table{{"a;b", "c"}}));
  EXPECT_EQ(table_of("5\" disk,x\n", {.header = false, .quote = '\0'}), (Table{{"5\" disk", "x"}}));
  EXPECT_TUTTI_ERROR(csv_over("", {.separator = '"'}), ErrorCode::kInvalidArgument, "separator");
}

TEST(CsvReader, ReadsFilesWithSmallBuffersAndCompression) {
  TempFolder folder;
  std::string text;
  Table expected;
  for (int i = 0; i < 300; ++i) {
    const std::string number = std::to_string(i * i * i);
    text.append(number).append(",\"line\n").append(number).append("\"\n");
    expected.push_back({number, "line\n" + number});
  }
  for (const Compression kind : {Compression::kNone, Compression::kGzip}) {
    OutputFile out(folder.path("x"), {.compression = kind});
    out.write(text);
    out.close();
    CsvReader whole(folder.path("x"), {.header = false});
    EXPECT_EQ(table_of(whole), expected);
    CsvReader small(InputFile(folder.path("x"), {.buffer_size = 3}), {.header = false});
    EXPECT_EQ(table_of(small), expected);
  }
}

TEST(CsvReader, ConvertsColumns) {
  const std::string text =
      "name,age,height,weight,member\n"
      "Ann,30,1.75,6e1,true\n"
      "\"Bob\",-7, +1.5 ,inf,0\n"
      "Cid,\"9\",1e-400,nan,FALSE\n";
  CsvReader reader =
      csv_over(text, {.columns = {csv_column<bool>("member"), csv_column<int64_t>("age"),
                                  csv_column<double>("height"), csv_column<float>("weight"),
                                  csv_column<std::string>("name")}});
  EXPECT_EQ(reader.names(),
            (std::vector<std::string>{"name", "age", "height", "weight", "member"}));
  CsvRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_TRUE(row.get<bool>(0));
  EXPECT_EQ(row.get<int64_t>(1), 30);
  EXPECT_EQ(row.get<double>(2), 1.75);
  EXPECT_EQ(row.get<float>(3), 60.f);
  EXPECT_EQ(row.get<std::string>(4), "Ann");
  ASSERT_TRUE(reader.next(row));
  EXPECT_FALSE(row.get<bool>(0));
  EXPECT_EQ(row.get<int64_t>(1), -7);
  EXPECT_EQ(row.get<double>(2), 1.5);
  EXPECT_TRUE(std::isinf(row.get<float>(3)));
  EXPECT_EQ(row.get<std::string>(4), "Bob");
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(row.get<int64_t>(1), 9);
  EXPECT_EQ(row.get<double>(2), 0);
  EXPECT_TRUE(std::isnan(row.get<float>(3)));
  EXPECT_FALSE(reader.next(row));
  EXPECT_TUTTI_ERROR(row.get<double>(1), ErrorCode::kInvalidArgument, "value 1 of 5");
}

TEST(CsvReader, AllColumnsAreStringsUnlessChosen) {
  CsvReader reader = csv_over("a,b\n1,\n");
  CsvRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(row.get<std::string>(0), "1");
  EXPECT_EQ(row.get<std::string>(1), "");
}

TEST(CsvReader, ChoosesColumnsByNumber) {
  CsvReader reader =
      csv_over("a,1,x\nb,2,y\n", {.columns = {csv_column<int64_t>(size_t{1})}, .header = false});
  CsvRow row;
  int64_t sum = 0;
  while (reader.next(row)) sum += row.get<int64_t>(0);
  EXPECT_EQ(sum, 3);
  CsvReader beyond =
      csv_over("a\n", {.columns = {csv_column<int64_t>(size_t{1})}, .header = false});
  EXPECT_TUTTI_ERROR(beyond.next(row), ErrorCode::kNotFound, "no column 1", "has 1");
}

TEST(CsvReader, MissingValuesTakeTheDefault) {
  const CsvOptions options = {
      .columns = {csv_column<int64_t>("i", -1), csv_column<float>("f", 0.5f),
                  csv_column<std::string>("s", "none"), csv_column<bool>("b", true)},
      .missing = "NA"};
  CsvReader reader = csv_over("i,f,s,b\n,,,\nNA,NA,NA,NA\n\"\",2,\"\",0\n", options);
  CsvRow row;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reader.next(row));
    EXPECT_EQ(row.get<int64_t>(0), -1);
    EXPECT_EQ(row.get<float>(1), 0.5f);
    EXPECT_EQ(row.get<std::string>(2), "none");
    EXPECT_TRUE(row.get<bool>(3));
  }
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(row.get<int64_t>(0), -1);
  EXPECT_EQ(row.get<std::string>(2), "") << "an empty text in quotes is there";
}

TEST(CsvReader, ErrorsNameFileLineAndColumn) {
  const auto read = [](std::string_view text, CsvOptions options) {
    CsvReader reader = csv_over(text, std::move(options));
    CsvRow row;
    while (reader.next(row)) {
    }
  };
  const CsvOptions age = {.columns = {csv_column<int64_t>("age")}};
  EXPECT_TUTTI_ERROR(read("name,age\nAnn,30\nBob,old\n", age), ErrorCode::kInvalidArgument,
                     "CsvReader: x.csv:3:2 (age): expected int64, found \"old\"");
  EXPECT_TUTTI_ERROR(read("name,age\n\"A\nB\",\n", age), ErrorCode::kInvalidArgument,
                     "x.csv:3:2 (age): the value is missing, expected int64");
  EXPECT_TUTTI_ERROR(read("name,age\nAnn,30.5\n", age), ErrorCode::kInvalidArgument, "30.5");
  EXPECT_TUTTI_ERROR(read("name,age\nAnn,9223372036854775808\n", age), ErrorCode::kInvalidArgument,
                     "9223372036854775808");
  EXPECT_TUTTI_ERROR(read("x\n1e400\n", {.columns = {csv_column<double>("x")}}),
                     ErrorCode::kInvalidArgument, "expected float64, found \"1e400\"");
  EXPECT_TUTTI_ERROR(read("x\nmaybe\n", {.columns = {csv_column<bool>("x")}}),
                     ErrorCode::kInvalidArgument, "expected bool, found \"maybe\"");
  EXPECT_TUTTI_ERROR(read("a,b\n1,2\n\n1,2,3\n", {}), ErrorCode::kDataLoss, "x.csv: line 4",
                     "expected 2 fields, found 3");
  EXPECT_TUTTI_ERROR(read("a,b\nx\"y,2\n", {}), ErrorCode::kDataLoss, "x.csv:2:1 (a)",
                     "a quote inside the unquoted field");
  EXPECT_TUTTI_ERROR(read("a,b\n1,\"x\"y\n", {}), ErrorCode::kDataLoss, "x.csv:2:2 (b)",
                     "expected a separator after the closing quote");
  EXPECT_TUTTI_ERROR(read("a,b\n1,\"x\n\n", {}), ErrorCode::kDataLoss, "x.csv:2:2 (b)",
                     "expected a closing quote, found the end");
}

TEST(CsvReader, ChecksTheHeader) {
  EXPECT_TUTTI_ERROR(csv_over("a,b\n", {.columns = {csv_column<float>("c")}}), ErrorCode::kNotFound,
                     "no column \"c\"", "the header has: a, b");
  EXPECT_TUTTI_ERROR(csv_over("a,a\n", {.columns = {csv_column<float>("a")}}),
                     ErrorCode::kInvalidArgument, "two columns \"a\"");
  EXPECT_TUTTI_ERROR(csv_over("a\n", {.columns = {csv_column<float>("a")}, .header = false}),
                     ErrorCode::kInvalidArgument, "requested by name", "has no header");
  EXPECT_TUTTI_ERROR(csv_over(""), ErrorCode::kDataLoss, "expected a header line");
  EXPECT_TUTTI_ERROR(CsvReader("/nowhere/x.csv"), ErrorCode::kNotFound, "CsvReader: cannot open");
}

TEST(CsvReader, SeeksToAPosition) {
  const std::string text = "a,b\n1,\"x\ny\"\n2,z\n3,w\nbad\n";
  CsvReader reader = csv_over(text);
  std::vector<std::string_view> fields;
  ASSERT_TRUE(reader.next_fields(fields));
  const CsvReader::Position position = reader.position();
  EXPECT_EQ(position.line, 3u);
  CsvReader other = csv_over(text);
  other.seek(position);
  ASSERT_TRUE(other.next_fields(fields));
  EXPECT_EQ(fields[0], "2");
  ASSERT_TRUE(other.next_fields(fields));
  EXPECT_TUTTI_ERROR(other.next_fields(fields), ErrorCode::kDataLoss, "line 6");
}

TEST(CsvReader, DamageNeverReadsOutOfBounds) {
  const std::string text = "name,age\n\"A \"\"x\"\"\",1\r\n\"B\nC\",2\nD,3\n";
  const auto read = [](const std::string& part) {
    CsvReader reader = csv_over(part, {.columns = {csv_column<int64_t>("age", 0)}}, 1);
    CsvRow row;
    while (reader.next(row)) {
    }
  };
  EXPECT_GT(test::truncate_everywhere(text, read), 10u);
  EXPECT_GT(test::damage_at_random(text, 5000, read), 1000u);
}

}  // namespace
}  // namespace tutti::data
