// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/tf_config.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/scoped_environment.h"

namespace tf_config_test {

using tutti::ClusterSpec;
using tutti::ErrorCode;
using tutti::TFConfigClusterResolver;
using tutti::test::ScopedEnvironment;

constexpr const char* kTwoWorkers =
    R"({"cluster": {"worker": ["hostA:4321", "hostB:4321"]}, "task": {"type": "worker", "index": 1}})";

TEST(TFConfigClusterResolver, ReadsClusterAndTask) {
  const ScopedEnvironment environment{{"TF_CONFIG", kTwoWorkers}};
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), (ClusterSpec{{"worker", {"hostA:4321", "hostB:4321"}}}));
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.rpc_layer(), "");
  EXPECT_EQ(resolver.environment(), "");
  EXPECT_EQ(resolver.source(), "TF_CONFIG");
  EXPECT_FALSE(resolver.is_explicit());
  EXPECT_EQ(resolver.rendezvous_address(), "hostA:4321");
  EXPECT_TRUE(resolver.num_accelerators().empty());
}

TEST(TFConfigClusterResolver, RereadsTheVariableInEachCall) {
  ScopedEnvironment environment{{"TF_CONFIG", kTwoWorkers}};
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 2);
  environment.set("TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"index": "7"}})");
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 1);
  EXPECT_EQ(resolver.task_id(), 7) << "an index may be a string";
  EXPECT_EQ(resolver.task_type(), std::nullopt);
}

TEST(TFConfigClusterResolver, IsEmptyWithoutTheVariableOrTheCluster) {
  ScopedEnvironment environment;
  const TFConfigClusterResolver resolver;
  for (const char* text : {"", "{}", R"({"cluster": {}})", R"({"environment": "cloud"})"}) {
    environment.set("TF_CONFIG", text);
    EXPECT_TRUE(resolver.cluster_spec().empty()) << text;
    EXPECT_EQ(resolver.task_type(), std::nullopt) << text;
    EXPECT_EQ(resolver.master(), "") << text;
    EXPECT_EQ(resolver.rendezvous_address(), "") << text;
  }
  EXPECT_EQ(resolver.environment(), "cloud");
}

TEST(TFConfigClusterResolver, OptionsAndSettersOverrideTheVariable) {
  const ScopedEnvironment environment{{"TF_CONFIG", kTwoWorkers}};
  TFConfigClusterResolver resolver(
      {.task_type = "chief", .task_id = 0, .rpc_layer = "http", .environment = "here"});
  EXPECT_EQ(resolver.task_type(), "chief");
  EXPECT_EQ(resolver.task_id(), 0);
  EXPECT_EQ(resolver.rpc_layer(), "http");
  EXPECT_EQ(resolver.environment(), "here");
  resolver.set_task_type("worker");
  resolver.set_task_id(0);
  resolver.set_rpc_layer("grpc");
  EXPECT_EQ(resolver.master(), "grpc://hostA:4321");
  resolver.set_task_id(std::nullopt);
  EXPECT_EQ(resolver.task_id(), 0) << "the option";
}

TEST(TFConfigClusterResolver, MasterIsTheAddressOfATask) {
  ScopedEnvironment environment{{"TF_CONFIG", kTwoWorkers}};
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.master(), "hostB:4321");
  EXPECT_EQ(resolver.master("worker", 0), "hostA:4321");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://hostA:4321");
  EXPECT_EQ(resolver.master(std::nullopt, 0), "hostA:4321");
  EXPECT_TUTTI_ERROR(resolver.master("ps", 0), ErrorCode::kNotFound, "no job \"ps\"");
  environment.set("TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "rpc_layer": "grpc",
                                   "task": {"type": "worker", "index": 0}})");
  EXPECT_EQ(resolver.master(), "") << "one task needs none";
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  environment.set("TF_CONFIG", R"({"session_master": "grpc://m:1", "rpc_layer": "http"})");
  EXPECT_EQ(resolver.master(), "grpc://m:1") << "verbatim";
}

TEST(TFConfigClusterResolver, ASparseJobKeepsItsIndices) {
  const ScopedEnvironment environment{
      {"TF_CONFIG", R"({"cluster": {"worker": {"3": "d:1", "1": "b:1"}}})"}};
  EXPECT_EQ(TFConfigClusterResolver().cluster_spec(),
            ClusterSpec::sparse({{"worker", {{1, "b:1"}, {3, "d:1"}}}}));
}

std::string nested(int depth) {
  return R"({"x": )" + std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']') + "}";
}

TEST(TFConfigClusterResolver, PointsAtTheMistakeInMalformedText) {
  const struct {
    std::string text;
    std::string where;  // line and column, or JSON pointer
    std::string reason;
  } cases[] = {
      // These are not JSON.
      {" ", "line 1, column 2", "unexpected end of input"},
      {"worker", "line 1, column 1", "invalid literal"},
      {"/etc/tf_config.json", "line 1, column 1", "invalid literal"},
      {"{", "line 1, column 2", "expected string literal"},
      {"{\"cluster\"}", "line 1, column 11", "expected ':'"},
      {"{\"cluster\": }", "line 1, column 13", "unexpected '}'"},
      {"{\"cluster\": {},}", "line 1, column 16", "expected string literal"},
      {"{\"cluster\": {}} x", "line 1, column 17", "expected end of input"},
      {"{\"cluster\": {\"worker\": [\"a:1\",\n\"b:1\"}}", "line 2, column 6", "expected ']'"},
      {"{\n  \"cluster\": {\n    \"worker\": [\"a:1\" \"b:1\"]}}", "line 3, column 26",
       "expected ']'"},
      {"{\"cluster\": {\"worker\": [\"a:1", "line 1, column 29", "missing closing quote"},
      {"{'cluster': {'worker': ['a:1']}}", "line 1, column 2",
       "double quotes, but this text has only"},
      {"{cluster: {worker: [a:1]}}", "line 1, column 2", "perhaps because the shell removed them"},
      {"{\"task\": None}", "line 1, column 10", "invalid literal"},
      {"{\"task\": {\"index\": 01}}", "line 1, column 21", "unexpected number literal"},
      {"{\"a\": 1e999}", "TF_CONFIG", "invalid JSON"},
      {"{// comment\n}", "line 1, column 2", "invalid literal"},
      {"{\"a\": \"\xff\"}", "line 1, column 8", "UTF-8"},
      {"{\"a\": \"\\q\"}", "line 1, column 9", "forbidden character after backslash"},
      {"{\"a\": \"\\ud800\"}", "line 1, column 14", "surrogate"},
      {"{\"a\": \"x\ny\"}", "line 1, column 9", "control character"},
      // These are JSON of the wrong shape.
      {"[]", "\"/\"", "expected an object {...}, got []"},
      {"null", "\"/\"", ", got null"},
      {"\"worker\"", "\"/\"", ", got \"worker\""},
      {"{\"cluster\": []}", "\"/cluster\"", "expected an object of jobs, got []"},
      {"{\"cluster\": null}", "\"/cluster\"", "expected an object of jobs, got null"},
      {"{\"cluster\": {\"worker\": \"a:1\"}}", "\"/cluster/worker\"",
       "expected a list of addresses or an object of index and address, got \"a:1\""},
      {"{\"cluster\": {\"worker\": 2}}", "\"/cluster/worker\"", "address, got 2"},
      {"{\"cluster\": {\"\": [\"a:1\"]}}", "\"/cluster\"", "empty name"},
      {"{\"cluster\": {\"worker\": [\"a:1\", 5]}}", "\"/cluster/worker/1\"",
       "expected an address \"host:port\", got 5"},
      {"{\"cluster\": {\"worker\": [[\"a:1\"]]}}", "\"/cluster/worker/0\"", "expected an address"},
      {"{\"cluster\": {\"worker\": {\"x\": \"a:1\"}}}", "\"/cluster/worker/x\"", "is not an index"},
      {"{\"cluster\": {\"worker\": {\"-1\": \"a:1\"}}}", "\"/cluster/worker/-1\"",
       "is not an index"},
      {"{\"cluster\": {\"worker\": {\"1000000\": \"a:1\"}}}", "worker/1000000", "0 to 999999"},
      {"{\"cluster\": {\"worker\": {\"1\": \"a:1\", \"01\": \"b:1\"}}}", "worker/",
       "duplicate index"},
      {"{\"cluster\": {\"a/b~c\": 1}}", "\"/cluster/a~1b~0c\"", ", got 1"},
      {"{\"cluster\": {\"worker\": [\"a:1\"], \"worker\": []}}", "\"/cluster/worker\"",
       "duplicate key"},
      {"{\"task\": {}, \"task\": {}}", "\"/task\"", "duplicate key"},
      {"{\"task\": [\"worker\", 0]}", "\"/task\"", "an object with \"type\" and \"index\""},
      {"{\"task\": {\"type\": 1.5}}", "\"/task/type\"", "expected a string, got 1.5"},
      {"{\"task\": {\"index\": -1}}", "\"/task/index\"",
       "expected an index from 0 to 999999, got -1"},
      {"{\"task\": {\"index\": 1.5}}", "\"/task/index\"",
       "expected an index from 0 to 999999, got 1.5"},
      {"{\"task\": {\"index\": \"one\"}}", "\"/task/index\"", "from 0 to 999999, got \"one\""},
      {"{\"task\": {\"index\": 18446744073709551615}}", "\"/task/index\"", "expected an index"},
      {"{\"task\": {\"index\": null}}", "\"/task/index\"", "from 0 to 999999, got null"},
      {"{\"rpc_layer\": 1}", "\"/rpc_layer\"", "expected a string, got 1"},
      {"{\"session_master\": {}}", "\"/session_master\"", "expected a string, got {}"},
      {"{\"environment\": false}", "\"/environment\"", "expected a string, got false"},
      // These are too large.
      {nested(16), "TF_CONFIG", "more than 16 levels"},
      {nested(100'000), "TF_CONFIG", "more than 16 levels"},
      {"{\"a\": \"" + std::string(100'000, 'x') + "\"", "line 1, column 100009", "expected '}'"},
  };
  const TFConfigClusterResolver resolver;
  for (const auto& each : cases) {
    const ScopedEnvironment environment{{"TF_CONFIG", each.text}};
    EXPECT_TUTTI_ERROR(resolver.cluster_spec(), ErrorCode::kInvalidArgument,
                       "TF_CONFIG: ", each.where, each.reason, "Example: TF_CONFIG='{\"cluster\"")
        << each.text.substr(0, 100);
  }
}

TEST(TFConfigClusterResolver, RefusesTextBeyondOneMebibyte) {
  const std::string text = "{\"a\": \"" + std::string(size_t{1} << 20, 'x') + "\"}";
  const ScopedEnvironment environment{{"TF_CONFIG", text}};
  EXPECT_TUTTI_ERROR(TFConfigClusterResolver().cluster_spec(), ErrorCode::kInvalidArgument,
                     "1048585 bytes", "the limit is 1048576");
  EXPECT_TUTTI_ERROR(ClusterSpec::from_json(text), ErrorCode::kInvalidArgument, "1048585 bytes");
}

TEST(TFConfigClusterResolver, ReadsSixteenLevels) {
  const ScopedEnvironment environment{{"TF_CONFIG", nested(15)}};
  EXPECT_TRUE(TFConfigClusterResolver().cluster_spec().empty());
}

TEST(TFConfigClusterResolver, RefusesAMalformedAddress) {
  const ScopedEnvironment environment{
      {"TF_CONFIG", R"({"cluster": {"worker": ["hostA:1", "hostB"]}})"}};
  EXPECT_TUTTI_ERROR(TFConfigClusterResolver().cluster_spec(), ErrorCode::kInvalidArgument,
                     "TF_CONFIG: at \"/cluster/worker/1\": address \"hostB\": it has no port",
                     "Write, for example, \"hostA:4321\"");
}

TEST(TFConfigClusterResolver, DoesNotRepeatLongTextInErrors) {
  const ScopedEnvironment environment{
      {"TF_CONFIG", "{\"cluster\": \"" + std::string(50'000, 'x') + "\"}"}};
  try {
    TFConfigClusterResolver().cluster_spec();
    FAIL();
  } catch (const tutti::Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 600u);
  }
}

TEST(TFConfigClusterResolver, ATaskTypeMayBeANumber) {
  const ScopedEnvironment environment(
      {{"TF_CONFIG",
        R"({"cluster": {"7": ["hostA:4321", "hostB:4321"]}, "task": {"type": 7, "index": 1}})"}});
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.task_type(), "7");
  EXPECT_EQ(resolver.cluster_spec().task_address(*resolver.task_type(), 1), "hostB:4321");
}

}  // namespace tf_config_test
