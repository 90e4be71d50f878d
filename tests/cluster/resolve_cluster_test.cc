// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolve_cluster.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "tutti/cluster/resolvers/simple.h"

#include "tests/support/expect_error.h"
#include "tests/support/scoped_environment.h"

namespace resolve_cluster_test {

using namespace tutti;
using test::ScopedEnvironment;
using Variables = std::map<std::string, std::string>;

const std::string kFourWorkers =
    R"({"cluster": {"worker": ["hostA:4321", "hostB:4321", "hostC:4321", "hostD:4321"]}, )"
    R"("task": {"type": "worker", "index": 1}})";
const std::string kTwoOfWorkers = R"({"cluster": {"worker": ["a:1", "b:1"]})";

Variables operator+(Variables left, const Variables& right) {
  for (const auto& [name, value] : right) left[name] = value;
  return left;
}

const Variables kTfConfig = {{"TF_CONFIG", kFourWorkers}};
const Variables kTorchrun = {
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "hostA"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
const Variables kPmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}};
const Variables kSlurm = {{"SLURM_PROCID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_ID", "7"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_STEP_NODELIST", "n[1-2]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
const Variables kMeeting = {{"TUTTI_RENDEZVOUS", "hostA:5000"}};

std::string banner_of(const Variables& variables, int replicas = 2) {
  const ScopedEnvironment environment(variables);
  return cluster_banner(*resolve_cluster(), replicas);
}

TEST(ResolveCluster, FindsTheClusterInTheEnvironment) {
  EXPECT_EQ(banner_of(kTfConfig),
            "4 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG");
  EXPECT_EQ(banner_of(kTorchrun),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:29500), from torchrun");
  EXPECT_EQ(banner_of(kTorchrun + Variables{{"RANK", "0"}}, 1),
            "4 workers x 1 replica, I am worker 0 (hostA:29500), from torchrun");
  EXPECT_EQ(banner_of(kOpenMpi + kMeeting),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:5000), from OpenMPI");
  EXPECT_EQ(banner_of(kPmi + kMeeting),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:5000), from PMI");
  EXPECT_EQ(banner_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}),
            "1 worker x 2 replicas, I am worker 0, from PMI");
}

TEST(ResolveCluster, KnowsChiefsAndParameterServers) {
  const std::string cluster =
      R"({"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:1"]}, "task": )";
  EXPECT_EQ(banner_of({{"TF_CONFIG", cluster + R"({"type": "chief", "index": 0}})"}}),
            "2 workers x 2 replicas + 2 ps, I am chief 0 (a:1), from TF_CONFIG");
  EXPECT_EQ(banner_of({{"TF_CONFIG", cluster + R"({"type": "ps", "index": 1}})"}}),
            "2 workers x 2 replicas + 2 ps, I am ps 1 (d:1), from TF_CONFIG");
}

TEST(ResolveCluster, RunsAloneWithoutVariables) {
  for (const Variables& variables :
       {Variables{}, Variables{{"TF_CONFIG", "{}"}}, Variables{{"TF_CONFIG", "{\"cluster\": {}}"}},
        Variables{{"TF_CONFIG", ""}, {"RANK", ""}}}) {
    EXPECT_EQ(banner_of(variables),
              "1 worker x 2 replicas, I am alone, from an environment that names no cluster");
  }
  const ScopedEnvironment environment;
  EXPECT_TRUE(resolve_cluster()->cluster_spec().empty());
  EXPECT_EQ(resolve_cluster()->task_type(), std::nullopt);
}

TEST(ResolveCluster, AcceptsLaunchersThatAgree) {
  EXPECT_EQ(banner_of(kTfConfig + kTorchrun),
            "4 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG");
  EXPECT_EQ(banner_of(kTfConfig + kOpenMpi),
            "4 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG");
  EXPECT_EQ(banner_of(kTorchrun + kOpenMpi + kPmi),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:29500), from torchrun");
  EXPECT_EQ(
      banner_of(kOpenMpi +
                Variables{{"MASTER_ADDR", "hostA"}, {"MASTER_PORT", "29500"}, {"LOCAL_RANK", "0"}}),
      "4 workers x 2 replicas, I am worker 1 (meeting at hostA:29500), from OpenMPI");
}

TEST(ResolveCluster, AsksThePlatformAfterTheLaunchers) {
  EXPECT_EQ(banner_of(kSlurm), "4 workers x 2 replicas, I am worker 1 (n1:8889), from Slurm");
  EXPECT_EQ(banner_of(kSlurm + kPmi),
            "4 workers x 2 replicas, I am worker 1 (n1:8889), from Slurm");
  EXPECT_EQ(banner_of(kSlurm + kPmi + kMeeting),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:5000), from PMI");
  // Launchers that srun has started once per node.
  const Variables outer = kSlurm + Variables{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(banner_of(outer + kTorchrun),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:29500), from torchrun");
  EXPECT_EQ(banner_of(outer + kOpenMpi + kMeeting),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:5000), from OpenMPI");
  EXPECT_EQ(banner_of(outer + kPmi + kMeeting),
            "4 workers x 2 replicas, I am worker 1 (meeting at hostA:5000), from PMI");
  EXPECT_EQ(banner_of(outer + kTfConfig),
            "4 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG");
}

TEST(ResolveCluster, RefusesAStepThatIsDescribedInPartOnly) {
  {
    const ScopedEnvironment no_rank{{"SLURM_STEP_ID", "0"},
                                    {"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_NODELIST", "n[1-2]"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
    EXPECT_TUTTI_ERROR(resolve_cluster(), ErrorCode::kFailedPrecondition, "SLURM_PROCID");
  }
  const ScopedEnvironment no_step{{"SLURM_PROCID", "1"},
                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                  {"SLURM_STEP_NODELIST", "n[1-2]"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  EXPECT_EQ(resolve_cluster()->cluster_spec().num_tasks("worker"), 2);
}

TEST(ResolveCluster, IsAloneInABatchScriptOfSlurm) {
  EXPECT_EQ(banner_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "3"}}),
            "1 worker x 2 replicas, I am alone, from an environment that names no cluster");
  const ScopedEnvironment step{{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_TUTTI_ERROR(resolve_cluster(), ErrorCode::kFailedPrecondition,
                     "Slurm environment: SLURM_PROCID=\"0\" is set, but SLURM_STEP_NUM_TASKS");
}

// Each of them could have become a program that trains alone.
TEST(ResolveCluster, RefusesHalfSetEnvironments) {
  const struct {
    Variables variables;
    ErrorCode code;
    std::vector<std::string> parts;
  } cases[] = {
      {{{"RANK", "1"}},
       ErrorCode::kFailedPrecondition,
       {"RANK=\"1\" is set, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK are not",
        "torchrun --no_python"}},
      {{{"WORLD_SIZE", "4"}},
       ErrorCode::kFailedPrecondition,
       {"WORLD_SIZE=\"4\" is set, but RANK", "unset the others"}},
      {{{"MASTER_ADDR", "hostA"}, {"MASTER_PORT", "29500"}},
       ErrorCode::kFailedPrecondition,
       {"MASTER_ADDR=\"hostA\" and MASTER_PORT=\"29500\" are set, but RANK, WORLD_SIZE"}},
      {{{"LOCAL_RANK", "0"}},
       ErrorCode::kFailedPrecondition,
       {"LOCAL_RANK=\"0\" is set, but RANK, WORLD_SIZE"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}},
       ErrorCode::kFailedPrecondition,
       {"MASTER_ADDR and MASTER_PORT are not set", "The processes have no address to meet at"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "hostA"}},
       ErrorCode::kFailedPrecondition,
       {"MASTER_ADDR=\"hostA\" is set, but MASTER_PORT is not"}},
      {kTorchrun + Variables{{"RANK", "4"}},
       ErrorCode::kFailedPrecondition,
       {"RANK=\"4\" and WORLD_SIZE=\"4\" are set: ranks range from 0 to WORLD_SIZE - 1"}},
      {kTorchrun + Variables{{"RANK", "one"}},
       ErrorCode::kInvalidArgument,
       {"RANK=\"one\" is not an integer from 0"}},
      {kTorchrun + Variables{{"WORLD_SIZE", "0"}},
       ErrorCode::kInvalidArgument,
       {"WORLD_SIZE=\"0\" is not an integer from 1"}},
      {kTorchrun + Variables{{"MASTER_PORT", "70000"}},
       ErrorCode::kInvalidArgument,
       {"MASTER_PORT=\"70000\" is not an integer from 1 to 65535"}},
      {kTorchrun + Variables{{"MASTER_ADDR", "http://hostA"}},
       ErrorCode::kInvalidArgument,
       {"MASTER_ADDR=\"http://hostA\" is not a host name or IP address"}},
      {kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "8"}},
       ErrorCode::kFailedPrecondition,
       {"LOCAL_WORLD_SIZE=\"8\" and WORLD_SIZE=\"4\" are set: one host cannot have more"}},
      {kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
       ErrorCode::kFailedPrecondition,
       {"LOCAL_RANK=\"2\" and LOCAL_WORLD_SIZE=\"2\" are set"}},
      {{{"OMPI_COMM_WORLD_RANK", "1"}},
       ErrorCode::kFailedPrecondition,
       {"OMPI_COMM_WORLD_RANK=\"1\" is set, but OMPI_COMM_WORLD_SIZE is not", "mpirun"}},
      {{{"PMI_SIZE", "4"}},
       ErrorCode::kFailedPrecondition,
       {"PMI_SIZE=\"4\" is set, but PMI_RANK is not"}},
      {{{"PMIX_RANK", "1"}},
       ErrorCode::kFailedPrecondition,
       {"PMIX_RANK=\"1\" is set", "the number of processes is unknown"}},
      {kOpenMpi,
       ErrorCode::kFailedPrecondition,
       {"OMPI_COMM_WORLD_SIZE=\"4\"", "no address to meet at",
        "Set TUTTI_RENDEZVOUS to host:port"}},
      {kPmi + Variables{{"MASTER_ADDR", "hostA"}},
       ErrorCode::kFailedPrecondition,
       {"MASTER_ADDR=\"hostA\" is set, but MASTER_PORT is not", "TUTTI_RENDEZVOUS"}},
      {kPmi + Variables{{"TUTTI_RENDEZVOUS", "hostA"}},
       ErrorCode::kInvalidArgument,
       {"TUTTI_RENDEZVOUS=\"hostA\" is not host:port", "no port"}},
      {kPmi + kMeeting + Variables{{"PMI_RANK", "4"}},
       ErrorCode::kFailedPrecondition,
       {"PMI_RANK=\"4\" and PMI_SIZE=\"4\" are set: a rank must be less than"}},
      {kMeeting,
       ErrorCode::kFailedPrecondition,
       {"TUTTI_RENDEZVOUS=\"hostA:5000\" is set, but this process's rank", "mpirun or torchrun"}},
      {{{"TF_CONFIG", kTwoOfWorkers + "}"}},
       ErrorCode::kFailedPrecondition,
       {"TF_CONFIG names a cluster but not this process's task", "\"task\" is missing",
        "\"a:1\", \"b:1\""}},
      {{{"TF_CONFIG", kTwoOfWorkers + R"(, "task": {"type": "worker"}})"}},
       ErrorCode::kFailedPrecondition,
       {"\"index\" is missing for type \"worker\""}},
      {{{"TF_CONFIG", kTwoOfWorkers + R"(, "task": {"index": 1}})"}},
       ErrorCode::kFailedPrecondition,
       {"\"type\" is missing for index 1"}},
      {{{"TF_CONFIG", R"({"task": {"type": "worker", "index": 0}})"}},
       ErrorCode::kFailedPrecondition,
       {"has no \"cluster\"", "Example"}},
      {{{"TF_CONFIG", R"({"clusters": {"worker": ["a:1"]}})"}},
       ErrorCode::kFailedPrecondition,
       {"TF_CONFIG=\"{\"clusters\"", "has no \"cluster\""}},
      {{{"TF_CONFIG", R"({"cluster": {}, "task": {"type": "worker", "index": 0}})"}},
       ErrorCode::kFailedPrecondition,
       {"this process is worker 0, but its cluster has no tasks"}},
      {{{"TF_CONFIG", kTwoOfWorkers + R"(, "task": {"type": "worker", "index": 2}})"}},
       ErrorCode::kInvalidArgument,
       {"TF_CONFIG: cluster: this process is worker 2, but the cluster has only 2 tasks"}},
      {{{"TF_CONFIG", kTwoOfWorkers + R"(, "task": {"type": "master", "index": 0}})"}},
       ErrorCode::kInvalidArgument,
       {"TF_CONFIG: cluster: unrecognized task type \"master\""}},
      {{{"TF_CONFIG", "{"}},
       ErrorCode::kInvalidArgument,
       {"TF_CONFIG: invalid JSON at line 1, column 2"}},
  };
  std::set<std::string> texts;
  for (const auto& each : cases) {
    const ScopedEnvironment environment(each.variables);
    try {
      resolve_cluster();
      ADD_FAILURE() << "no error; expected " << each.parts[0];
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), each.code) << text;
      for (const std::string& part : each.parts) {
        EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
      }
      EXPECT_TRUE(texts.insert(text).second) << "not specific: " << text;
    }
  }
}

TEST(ResolveCluster, ShowsBothSidesOfAContradiction) {
  const struct {
    Variables variables;
    std::vector<std::string> parts;
  } cases[] = {
      {kTfConfig + kTorchrun + Variables{{"RANK", "2"}},
       {"TF_CONFIG says worker 1 of a cluster with 4 workers, so rank 1",
        "RANK and WORLD_SIZE say rank 2 of 4", "Unset one of them"}},
      {kTfConfig + kTorchrun + Variables{{"WORLD_SIZE", "8"}}, {"say rank 1 of 8"}},
      {kTfConfig + kOpenMpi + Variables{{"OMPI_COMM_WORLD_RANK", "0"}},
       {"OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE say rank 0 of 4"}},
      {kTorchrun + kPmi + Variables{{"PMI_SIZE", "2"}},
       {"RANK and WORLD_SIZE say rank 1 of 4, but PMI_RANK and PMI_SIZE say rank 1 of 2"}},
      {kOpenMpi + kPmi + kMeeting + Variables{{"PMI_RANK", "3"}},
       {"OMPI_COMM_WORLD_RANK=\"1\"", "PMI_RANK=\"3\"", "but the two disagree"}},
      {kOpenMpi + kMeeting + Variables{{"PMIX_RANK", "0"}},
       {"PMIX_RANK=\"0\" and OMPI_COMM_WORLD_RANK=\"1\"", "but the two disagree"}},
      {kOpenMpi + kMeeting + Variables{{"RANK", "1"}}, {"RANK=\"1\" is set, but WORLD_SIZE"}},
      {kTfConfig + kMeeting,
       {"TUTTI_RENDEZVOUS=\"hostA:5000\", but the cluster from TF_CONFIG meets at hostA:4321"}},
      {Variables{{"TF_CONFIG", kTwoOfWorkers + R"(, "task": {"type": "evaluator", "index": 0}})"}} +
           kTorchrun,
       {"TF_CONFIG says evaluator 0 of a cluster with 2 workers, but RANK"}},
  };
  for (const auto& each : cases) {
    const ScopedEnvironment environment(each.variables);
    for (const std::string& part : each.parts) {
      EXPECT_TUTTI_ERROR(resolve_cluster(), ErrorCode::kFailedPrecondition, part);
    }
  }
}

TEST(ResolveCluster, AnExplicitClusterWinsAndTheBannerSaysSo) {
  const auto cluster = std::make_shared<SimpleClusterResolver>(
      ClusterSpec{{"worker", {"x:1", "y:1"}}},
      SimpleClusterResolverOptions{.task_type = "worker", .task_id = 0});
  const auto banner = [&](const Variables& variables) {
    const ScopedEnvironment environment(variables);
    EXPECT_EQ(resolve_cluster(cluster), cluster);
    return cluster_banner(*cluster, 1);
  };
  const std::string line = "2 workers x 1 replica, I am worker 0 (x:1), from an explicit cluster";
  EXPECT_EQ(banner({}), line);
  EXPECT_EQ(banner(kTfConfig), line + "; TF_CONFIG is ignored");
  EXPECT_EQ(banner({{"RANK", "nonsense"}}), line + "; the torchrun environment is ignored");
  EXPECT_EQ(banner(kTfConfig + kTorchrun + kOpenMpi),
            line + "; TF_CONFIG, the torchrun environment and the MPI environment are ignored");
}

TEST(ResolveCluster, ChecksAnExplicitCluster) {
  const auto cluster = std::make_shared<SimpleClusterResolver>(
      ClusterSpec{{"worker", {"x:1"}}},
      SimpleClusterResolverOptions{.task_type = "worker", .task_id = 1});
  EXPECT_TUTTI_ERROR(resolve_cluster(cluster), ErrorCode::kInvalidArgument,
                     "this process is worker 1, but the cluster has only 1 task of that type");
}

TEST(ResolveCluster, AnEvaluatorNeedNotBeInTheCluster) {
  EXPECT_EQ(
      banner_of({{"TF_CONFIG", kTwoOfWorkers + R"(, "task": {"type": "evaluator", "index": 0}})"}}),
      "2 workers x 2 replicas, I am evaluator 0, from TF_CONFIG");
}

// Counts how often it is asked, as if each answer needed a request.
class CountingResolver : public ClusterResolver {
 public:
  explicit CountingResolver(ClusterSpec spec) : spec_(std::move(spec)) {}

  ClusterSpec cluster_spec() const override {
    ++specs;
    return spec_;
  }

  mutable int specs = 0;
  mutable int ids = 0;

 protected:
  std::optional<std::string> own_task_type() const override { return "worker"; }
  std::optional<int> own_task_id() const override {
    ++ids;
    return 1;
  }

 private:
  ClusterSpec spec_;
};

TEST(ResolveCluster, AsksTheResolverOnce) {
  const ScopedEnvironment environment;
  const ClusterSpec spec{{"ps", {"p:1"}}, {"worker", {"a:1", "b:1"}}};
  const auto resolver = std::make_shared<CountingResolver>(spec);
  const ResolvedCluster cluster = resolve_cluster_once(resolver);
  EXPECT_EQ(cluster_banner(cluster, 2),
            "2 workers x 2 replicas + 1 ps, I am worker 1 (b:1), from an explicit cluster");
  EXPECT_EQ(resolver->specs, 1);
  EXPECT_EQ(resolver->ids, 1);
  EXPECT_EQ(cluster.resolver, resolver);
  EXPECT_EQ(cluster.spec, spec);
  EXPECT_EQ(cluster.task_type, "worker");
  EXPECT_EQ(cluster.task_id, 1);
  EXPECT_EQ(cluster.rendezvous_address, "p:1");
  EXPECT_EQ(cluster.job_id, "");
}

TEST(ResolveCluster, KeepsWhereTheTasksMeet) {
  const ScopedEnvironment environment(kTorchrun);
  const ResolvedCluster cluster = resolve_cluster_once();
  EXPECT_EQ(cluster.rendezvous_address, "hostA:29500");
  EXPECT_EQ(cluster.spec.task_address("worker", 1), "");
  EXPECT_EQ(cluster.resolver->source(), "torchrun");
}

}  // namespace resolve_cluster_test
