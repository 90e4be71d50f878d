// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/cluster_spec.h"

#include <sstream>

#include <gtest/gtest.h>

#include "tutti/base/address.h"

#include "tests/support/expect_error.h"

namespace cluster_spec_test {

using tutti::Address;
using tutti::ClusterSpec;
using tutti::ErrorCode;
using tutti::parse_address;
using tutti::PortZero;

const ClusterSpec kCluster{{"worker", {"hostA:1", "hostB:1"}}, {"ps", {"hostC:1"}}};
const ClusterSpec kSparse = ClusterSpec::sparse({{"worker", {{1, "b:1"}, {3, "d:1"}}}});

TEST(ClusterSpec, ListsJobsTasksAndAddresses) {
  EXPECT_EQ(kCluster.jobs(), (std::vector<std::string>{"ps", "worker"}));
  EXPECT_EQ(kCluster.num_tasks("worker"), 2);
  EXPECT_EQ(kCluster.task_indices("worker"), (std::vector<int>{0, 1}));
  EXPECT_EQ(kCluster.task_address("worker", 1), "hostB:1");
  EXPECT_EQ(kCluster.job_tasks("ps"), (std::vector<std::optional<std::string>>{"hostC:1"}));
  EXPECT_TRUE(kCluster.has_task("ps", 0));
  EXPECT_FALSE(kCluster.has_task("ps", 1));
  EXPECT_FALSE(kCluster.has_task("chief", 0));
}

TEST(ClusterSpec, ABracedJobOfOneOrTwoTasksIsNotMistakenForAnotherConstructor) {
  const ClusterSpec one{{"worker", {"a:1"}}};
  const ClusterSpec two{{"worker", {"a:1", "b:1"}}};
  EXPECT_EQ(one.to_json(), R"({"worker": ["a:1"]})");
  EXPECT_EQ(two.to_json(), R"({"worker": ["a:1", "b:1"]})");
}

TEST(ClusterSpec, ASparseJobHasHoles) {
  EXPECT_EQ(kSparse.num_tasks("worker"), 2);
  EXPECT_EQ(kSparse.task_indices("worker"), (std::vector<int>{1, 3}));
  EXPECT_EQ(kSparse.job_tasks("worker"),
            (std::vector<std::optional<std::string>>{std::nullopt, "b:1", std::nullopt, "d:1"}));
  EXPECT_EQ(kSparse.to_json(), R"({"worker": {"1": "b:1", "3": "d:1"}})");
}

TEST(ClusterSpec, UnknownJobsAndTasksAreNotFound) {
  EXPECT_TUTTI_ERROR(kCluster.num_tasks("chief"), ErrorCode::kNotFound, "no job \"chief\"",
                     "ps and worker");
  EXPECT_TUTTI_ERROR(kCluster.task_indices("x"), ErrorCode::kNotFound, "no job \"x\"");
  EXPECT_TUTTI_ERROR(kCluster.job_tasks("x"), ErrorCode::kNotFound, "no job \"x\"");
  EXPECT_TUTTI_ERROR(ClusterSpec().num_tasks("worker"), ErrorCode::kNotFound, "cluster is empty");
  EXPECT_TUTTI_ERROR(kCluster.task_address("worker", 2), ErrorCode::kNotFound,
                     "no task with index 2 in job \"worker\"", "from 0 to 1");
  EXPECT_TUTTI_ERROR(kSparse.task_address("worker", 2), ErrorCode::kNotFound, "from 1 to 3");
}

TEST(ClusterSpec, IsEmptyWithoutTasks) {
  EXPECT_TRUE(ClusterSpec().empty());
  EXPECT_TRUE(ClusterSpec(std::map<std::string, std::vector<std::string>>{{"worker", {}}}).empty());
  EXPECT_FALSE(kSparse.empty());
  EXPECT_EQ(ClusterSpec().to_json(), "{}");
}

TEST(ClusterSpec, IsEqualByContent) {
  EXPECT_EQ(kCluster, (ClusterSpec{{"ps", {"hostC:1"}}, {"worker", {"hostA:1", "hostB:1"}}}));
  EXPECT_NE(kCluster, kSparse);
  EXPECT_EQ((ClusterSpec{{"ps", {"a:1"}}}), ClusterSpec::sparse({{"ps", {{0, "a:1"}}}}));
}

TEST(ClusterSpec, PrintsWithSortedJobs) {
  std::ostringstream out;
  out << kCluster;
  EXPECT_EQ(out.str(), R"(ClusterSpec({"ps": ["hostC:1"], "worker": ["hostA:1", "hostB:1"]}))");
}

TEST(ClusterSpec, ReadsBackWhatItWrites) {
  for (const ClusterSpec& spec : {kCluster, kSparse, ClusterSpec()}) {
    EXPECT_EQ(ClusterSpec::from_json(spec.to_json()), spec);
  }
  EXPECT_EQ(ClusterSpec::from_json(R"({"worker": {"1": "b:1", "3": "d:1"}})"), kSparse);
  EXPECT_TUTTI_ERROR(ClusterSpec::from_json("{\n\"worker\": [\"a:1\",]}"),
                     ErrorCode::kInvalidArgument, "ClusterSpec: invalid JSON at line 2, column 18");
  EXPECT_TUTTI_ERROR(ClusterSpec::from_json(R"({"worker": [7]})"), ErrorCode::kInvalidArgument,
                     "\"/worker/0\"", "expected an address \"host:port\", got 7");
}

TEST(ClusterSpec, RefusesBadIndicesAndNames) {
  EXPECT_TUTTI_ERROR((ClusterSpec{{"ps", {"a:1"}}, {"ps", {"b:1"}}}), ErrorCode::kInvalidArgument,
                     "\"ps\" appears twice");
  EXPECT_TUTTI_ERROR(ClusterSpec::sparse({{"worker", {{-1, "a:1"}}}}), ErrorCode::kInvalidArgument,
                     "index -1", "0 to 999999");
  EXPECT_TUTTI_ERROR(ClusterSpec::sparse({{"worker", {{0, "a:1"}, {1'000'000, "a:1"}}}}),
                     ErrorCode::kInvalidArgument, "index 1000000");
  EXPECT_TUTTI_ERROR((ClusterSpec{{"", {"a:1"}}}), ErrorCode::kInvalidArgument, "empty name");
}

TEST(Address, ReadsNamesAndNumbers) {
  EXPECT_EQ(parse_address("hostA:4321"), (Address{"hostA", 4321}));
  EXPECT_EQ(parse_address("my_job-0.ns.svc.:1"), (Address{"my_job-0.ns.svc.", 1}));
  EXPECT_EQ(parse_address("10.0.0.7:65535"), (Address{"10.0.0.7", 65535}));
  EXPECT_EQ(parse_address("[::1]:80"), (Address{"::1", 80}));
  EXPECT_EQ(parse_address("[fe80::1%eth0]:80"), (Address{"fe80::1%eth0", 80}));
  EXPECT_EQ(parse_address("localhost:0", PortZero::kAllowed), (Address{"localhost", 0}));
  for (const char* text : {"hostA:4321", "10.0.0.7:65535", "[::1]:80", "[fe80::1%eth0]:80"}) {
    EXPECT_EQ(parse_address(text).to_string(), text);
  }
}

TEST(Address, NamesTheMistake) {
  const struct {
    std::string text;
    const char* reason;
  } cases[] = {
      {"", "empty"},
      {"hostA", "no port"},
      {":80", "no host"},
      {"hostA:", "its port \"\""},
      {"hostA:x", "its port \"x\""},
      {"hostA:-1", "its port \"-1\""},
      {"hostA:+1", "its port \"+1\""},
      {"hostA: 1", "its port \" 1\""},
      {"hostA:1 ", "its port \"1 \""},
      {"hostA:65536", "from 1 to 65535"},
      {"hostA:99999999999999", "from 1 to 65535"},
      {"hostA:0", "port 0"},
      {"grpc://hostA:1", "URL"},
      {"hostA/x:1", "URL or a path"},
      {"host A:1", "contains \" \""},
      {"h\xc3\xb6st:1", "contains"},
      {"host\n:1", "contains"},
      {".host:1", "is not a valid name"},
      {"a..b:1", "is not a valid name"},
      {"-a:1", "is not a valid name"},
      {"300.0.0.1:1", "is not an IPv4 address"},
      {"1.2.3:1", "is not an IPv4 address"},
      {"::1:80", "brackets"},
      {"[::1]", "\"]:port\""},
      {"[::1:80", "\"]:port\""},
      {"[]:80", "is not an IPv6 address"},
      {"[hostA]:80", "is not an IPv6 address"},
      {"[::1%]:80", "is not an interface name"},
      {"[::1]:0", "port 0"},
      {std::string(254, 'a') + ":1", "exceeds 253"},
  };
  for (const auto& each : cases) {
    EXPECT_TUTTI_ERROR(parse_address(each.text), ErrorCode::kInvalidArgument, each.reason,
                       "Write, for example");
  }
}

}  // namespace cluster_spec_test
