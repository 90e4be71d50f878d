// SPDX-License-Identifier: Apache-2.0

#include <memory>

#include <gtest/gtest.h>

#include "tutti/cluster/resolvers/mpi.h"
#include "tutti/cluster/resolvers/simple.h"
#include "tutti/cluster/resolvers/tf_config.h"
#include "tutti/cluster/resolvers/torchrun.h"
#include "tutti/cluster/resolvers/union.h"

#include "tests/support/expect_error.h"
#include "tests/support/scoped_environment.h"

namespace resolvers_test {

using namespace tutti;
using test::ScopedEnvironment;

TEST(SimpleClusterResolver, ReturnsWhatItIsGiven) {
  SimpleClusterResolver resolver(ClusterSpec{{"worker", {"a:1", "b:1"}}},
                                 {.master = "m:1",
                                  .task_type = "worker",
                                  .task_id = 1,
                                  .environment = "google",
                                  .num_accelerators = {{"GPU", 2}},
                                  .rpc_layer = "grpc"});
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 2);
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.environment(), "google");
  EXPECT_EQ(resolver.num_accelerators("ps", 3), (std::map<std::string, int>{{"GPU", 2}}));
  EXPECT_EQ(resolver.master(), "grpc://m:1");
  EXPECT_EQ(resolver.master("worker", 0), "grpc://a:1");
  EXPECT_EQ(resolver.master("worker", 0, "http"), "http://a:1");
  EXPECT_EQ(resolver.master("worker", 0, ""), "a:1");
  EXPECT_TUTTI_ERROR(resolver.master("worker", 2), ErrorCode::kNotFound, "no task with index 2");
  EXPECT_EQ(resolver.source(), "an explicit cluster");
  EXPECT_TRUE(resolver.is_explicit());
  resolver.set_task_type("ps");
  resolver.set_task_id(0);
  resolver.set_rpc_layer("http");
  EXPECT_EQ(resolver.task_type(), "ps");
  EXPECT_EQ(resolver.task_id(), 0);
  EXPECT_EQ(resolver.master(), "http://m:1");
}

TEST(SimpleClusterResolver, HasNoTaskUnlessGivenOne) {
  const SimpleClusterResolver resolver((ClusterSpec()));
  EXPECT_EQ(resolver.task_type(), std::nullopt);
  EXPECT_EQ(resolver.task_id(), std::nullopt);
  EXPECT_EQ(resolver.master(), "");
  EXPECT_EQ(resolver.rendezvous_address(), "");
}

const std::map<std::string, std::string> kTorchrun = {{"RANK", "1"},
                                                      {"WORLD_SIZE", "4"},
                                                      {"LOCAL_RANK", "1"},
                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                      {"MASTER_ADDR", "hostA"},
                                                      {"MASTER_PORT", "29500"}};

TEST(TorchrunClusterResolver, KnowsOnlyTheAddressOfRankZero) {
  const ScopedEnvironment environment(kTorchrun);
  const TorchrunClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), (ClusterSpec{{"worker", {"hostA:29500", "", "", ""}}}));
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.rendezvous_address(), "hostA:29500");
  EXPECT_EQ(resolver.master(), "");
  EXPECT_EQ(resolver.master("worker", 0), "hostA:29500");
  EXPECT_EQ(resolver.ranks().local_rank, 1);
  EXPECT_EQ(resolver.ranks().local_size, 2);
  EXPECT_EQ(resolver.source(), "torchrun");
  EXPECT_EQ(resolver.job_id(), "");
}

TEST(TorchrunClusterResolver, AvoidsThePortThatTorchrunUses) {
  ScopedEnvironment environment(kTorchrun);
  const TorchrunClusterResolver resolver;
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(resolver.rendezvous_address(), "hostA:29501");
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_EQ(resolver.rendezvous_address(), "hostA:29500");
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  environment.set("MASTER_PORT", "65535");
  EXPECT_TUTTI_ERROR(resolver.rendezvous_address(), ErrorCode::kFailedPrecondition,
                     "MASTER_PORT=\"65535\"", "TUTTI_RENDEZVOUS");
  environment.set("TUTTI_RENDEZVOUS", "[::1]:5000");
  EXPECT_EQ(resolver.rendezvous_address(), "[::1]:5000");
}

TEST(TorchrunClusterResolver, AcceptsIPv6Addresses) {
  ScopedEnvironment environment(kTorchrun);
  environment.set("MASTER_ADDR", "fe80::1%eth0");
  EXPECT_EQ(TorchrunClusterResolver().rendezvous_address(), "[fe80::1%eth0]:29500");
}

TEST(TorchrunClusterResolver, GivesARestartItsOwnJobId) {
  ScopedEnvironment environment(kTorchrun);
  environment.set("TORCHELASTIC_RUN_ID", "none");
  EXPECT_EQ(TorchrunClusterResolver().job_id(), "") << "what torchrun sets without --rdzv_id";
  environment.set("TORCHELASTIC_RUN_ID", "run7");
  const std::string first = TorchrunClusterResolver().job_id();
  environment.set("TORCHELASTIC_RESTART_COUNT", "1");
  EXPECT_NE(first, "");
  EXPECT_NE(TorchrunClusterResolver().job_id(), first);
}

std::map<std::string, std::string> open_mpi(int rank, int size, int local_size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"PMIX_RANK", std::to_string(rank)},
          {"PMIX_NAMESPACE", "2147483649.1"}};
}

TEST(MpiClusterResolver, ReadsOpenMpi) {
  ScopedEnvironment environment(open_mpi(2, 4, 2));
  environment.set("TUTTI_RENDEZVOUS", "hostA:4321");
  const MpiClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), (ClusterSpec{{"worker", {"hostA:4321", "", "", ""}}}));
  EXPECT_EQ(resolver.task_id(), 2);
  EXPECT_EQ(resolver.ranks().local_size, 2);
  EXPECT_EQ(resolver.source(), "OpenMPI");
  EXPECT_EQ(resolver.job_id(), "OpenMPI 2147483649.1");
}

TEST(MpiClusterResolver, ReadsPmi) {
  const ScopedEnvironment environment{{"PMI_RANK", "0"},        {"PMI_SIZE", "2"},
                                      {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"},
                                      {"MASTER_ADDR", "hostA"}, {"MASTER_PORT", "4321"}};
  const MpiClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), (ClusterSpec{{"worker", {"hostA:4321", ""}}}));
  EXPECT_EQ(resolver.task_id(), 0);
  EXPECT_EQ(resolver.ranks().local_size, 1);
  EXPECT_EQ(resolver.source(), "PMI");
}

TEST(MpiClusterResolver, OneProcessNeedsNoAddressToMeetAt) {
  const ScopedEnvironment environment{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
  EXPECT_EQ(MpiClusterResolver().rendezvous_address(), "");
  EXPECT_EQ(MpiClusterResolver().cluster_spec().num_tasks("worker"), 1);
}

TEST(MpiClusterResolver, OpenMpiOnOneHostMeetsOnLoopback) {
  std::string first;
  {
    const ScopedEnvironment environment(open_mpi(0, 2, 2));
    first = MpiClusterResolver().rendezvous_address();
    EXPECT_EQ(first.substr(0, 10), "127.0.0.1:");
    const int port = std::stoi(first.substr(10));
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 32000);
  }
  {
    const ScopedEnvironment environment(open_mpi(1, 2, 2));
    EXPECT_EQ(MpiClusterResolver().rendezvous_address(), first) << "the same for all ranks";
  }
  ScopedEnvironment environment(open_mpi(0, 2, 2));
  environment.set("PMIX_NAMESPACE", "2147483650.1");
  EXPECT_NE(MpiClusterResolver().rendezvous_address(), first) << "a different job";
}

TEST(MpiClusterResolver, OtherwiseAsksForAnAddressToMeetAt) {
  const std::map<std::string, std::string> environments[] = {
      open_mpi(0, 4, 2),
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}},
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
  };
  for (const auto& variables : environments) {
    const ScopedEnvironment environment(variables);
    EXPECT_TUTTI_ERROR(MpiClusterResolver().cluster_spec(), ErrorCode::kFailedPrecondition,
                       "_RANK=\"0\"", "_SIZE=\"", "TUTTI_RENDEZVOUS and MASTER_ADDR are not",
                       "mpirun -x TUTTI_RENDEZVOUS=hostA:4321");
  }
}

using Resolvers = std::vector<std::shared_ptr<const ClusterResolver>>;

std::shared_ptr<SimpleClusterResolver> simple(ClusterSpec spec,
                                              SimpleClusterResolverOptions options = {}) {
  return std::make_shared<SimpleClusterResolver>(std::move(spec), std::move(options));
}

TEST(UnionResolver, ConcatenatesLists) {
  const UnionResolver resolver(
      Resolvers{simple(ClusterSpec{{"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}}),
                simple(ClusterSpec{{"worker", {"c:1"}}, {"chief", {"z:1"}}})});
  EXPECT_EQ(resolver.cluster_spec(),
            (ClusterSpec{{"worker", {"a:1", "b:1", "c:1"}}, {"ps", {"p:1"}}, {"chief", {"z:1"}}}));
}

TEST(UnionResolver, KeepsTheIndicesOfSparseJobs) {
  const auto list = simple(ClusterSpec{{"worker", {"a:1", "b:1"}}});
  const auto sparse = simple(ClusterSpec::sparse({{"worker", {{3, "d:1"}}}}));
  const auto clash = simple(ClusterSpec::sparse({{"worker", {{1, "x:1"}}}}));
  EXPECT_EQ(UnionResolver(Resolvers{sparse, list}).cluster_spec(),
            ClusterSpec::sparse({{"worker", {{0, "a:1"}, {1, "b:1"}, {3, "d:1"}}}}));
  EXPECT_TUTTI_ERROR(UnionResolver(Resolvers{list, clash}).cluster_spec(),
                     ErrorCode::kInvalidArgument, "task 1 of job \"worker\"", "b:1 and x:1");
}

TEST(UnionResolver, TakesTheRestFromTheFirst) {
  const ScopedEnvironment environment;
  const auto first = simple(ClusterSpec{{"worker", {"a:1"}}}, {.master = "m:1",
                                                               .task_type = "worker",
                                                               .task_id = 1,
                                                               .environment = "one",
                                                               .num_accelerators = {{"GPU", 1}},
                                                               .rpc_layer = "grpc"});
  const auto second = simple(ClusterSpec{{"worker", {"b:1"}}}, {.environment = "two"});
  const UnionResolver resolver(Resolvers{first, second});
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.environment(), "one");
  EXPECT_EQ(resolver.num_accelerators().at("GPU"), 1);
  EXPECT_EQ(resolver.master(), "grpc://m:1");
  EXPECT_EQ(resolver.master("worker", 1), "grpc://b:1");
  EXPECT_EQ(resolver.source(), "an explicit cluster");
  const UnionResolver other(Resolvers{first, std::make_shared<TFConfigClusterResolver>()},
                            {.task_type = "ps", .task_id = 0, .rpc_layer = "http"});
  EXPECT_EQ(other.task_type(), "ps");
  EXPECT_EQ(other.task_id(), 0) << "zero counts as given";
  EXPECT_EQ(other.master(), "http://m:1");
  EXPECT_EQ(other.source(), "an explicit cluster and TF_CONFIG");
}

TEST(UnionResolver, NeedsResolvers) {
  EXPECT_TUTTI_ERROR(UnionResolver(Resolvers{}), ErrorCode::kInvalidArgument, "no resolvers");
  EXPECT_TUTTI_ERROR(UnionResolver(Resolvers{nullptr}), ErrorCode::kInvalidArgument, "null");
}

}  // namespace resolvers_test
