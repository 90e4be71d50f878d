// SPDX-License-Identifier: Apache-2.0
//
// SageMaker, numbered pods, and the jobs of Kubeflow: what a platform says in variables.

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/cluster/internal/natural_order.h"
#include "tutti/cluster/resolve_cluster.h"
#include "tutti/cluster/resolvers/pod_index.h"
#include "tutti/cluster/resolvers/sagemaker.h"

#include "tests/support/expect_error.h"
#include "tests/support/scoped_environment.h"

namespace platform_resolvers_test {

using namespace tutti;
using internal::natural_less;
using test::ScopedEnvironment;
using Variables = std::map<std::string, std::string>;

TEST(NaturalOrder, ComparesNumbersAsNumbers) {
  const std::vector<std::string> sorted = {"",     "1",      "2",    "10",    "a",
                                           "a-",   "a-0",    "a-00", "a-1-z", "a-2-b",
                                           "a-10", "a-10-b", "a10",  "b-1"};
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = 0; j < sorted.size(); ++j) {
      EXPECT_EQ(natural_less(sorted[i], sorted[j]), i < j) << sorted[i] << " and " << sorted[j];
    }
  }
  EXPECT_TRUE(natural_less("a99999999999999999999", "a100000000000000000000"));
}

const Variables kSageMaker = {{"SM_HOSTS", R"(["algo-10", "algo-1", "algo-2"])"},
                              {"SM_CURRENT_HOST", "algo-2"}};

TEST(SageMakerClusterResolver, SortsTheHosts) {
  const ScopedEnvironment environment(kSageMaker);
  SageMakerClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(),
            (ClusterSpec{{"worker", {"algo-1:2223", "algo-2:2223", "algo-10:2223"}}}));
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.master(), "algo-2:2223");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://algo-1:2223");
  EXPECT_EQ(resolver.rendezvous_address(), "algo-1:2223");
  EXPECT_EQ(resolver.environment(), "");
  resolver.set_task_id(2);
  EXPECT_EQ(resolver.master(), "algo-10:2223");
  EXPECT_EQ(cluster_banner(*resolve_cluster(), 1),
            "3 workers x 1 replica, I am worker 1 (algo-2:2223), from SageMaker");
}

TEST(SageMakerClusterResolver, TakesOptionsBeforeTheEnvironment) {
  ScopedEnvironment environment(kSageMaker);
  const SageMakerClusterResolver resolver({.port = 4000,
                                           .task_type = "evaluator",
                                           .task_id = 0,
                                           .rpc_layer = "grpc",
                                           .environment = "cloud"});
  EXPECT_EQ(resolver.task_type(), "evaluator");
  EXPECT_EQ(resolver.task_id(), 0);
  EXPECT_EQ(resolver.environment(), "cloud");
  EXPECT_EQ(resolver.master("worker", 2), "grpc://algo-10:4000");
  environment.set("SM_HOSTS", "[\"algo-2\"]");
  EXPECT_EQ(resolver.master("worker", 0), "") << "a single task";
  EXPECT_EQ(SageMakerClusterResolver().cluster_spec().num_tasks("worker"), 1);
  EXPECT_TUTTI_ERROR(SageMakerClusterResolver({.port = 65536}), ErrorCode::kInvalidArgument,
                     "SageMakerClusterResolver: port = 65536");
}

TEST(SageMakerClusterResolver, NeverTrainsAlone) {
  const struct {
    Variables variables;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {{{"SM_HOSTS", "[\"a\"]"}}, ErrorCode::kFailedPrecondition, "SM_CURRENT_HOST is not"},
      {{{"SM_CURRENT_HOST", "a"}}, ErrorCode::kFailedPrecondition, "SM_HOSTS is not"},
      {{{"SM_HOSTS", "[\"a\", \"b\"]"}, {"SM_CURRENT_HOST", "c"}},
       ErrorCode::kFailedPrecondition,
       "SM_CURRENT_HOST=\"c\" are set, but this host is not among the hosts"},
      {{{"SM_HOSTS", "a,b"}, {"SM_CURRENT_HOST", "a"}},
       ErrorCode::kInvalidArgument,
       "SM_HOSTS: invalid JSON at line 1, column 1"},
      {{{"SM_HOSTS", "[]"}, {"SM_CURRENT_HOST", "a"}},
       ErrorCode::kInvalidArgument,
       "expected a list of at least one host name, got []"},
      {{{"SM_HOSTS", "[\"a\", 1]"}, {"SM_CURRENT_HOST", "a"}},
       ErrorCode::kInvalidArgument,
       "at \"/1\": expected a string, got 1"},
      {{{"SM_HOSTS", "[\"a b\"]"}, {"SM_CURRENT_HOST", "a b"}},
       ErrorCode::kInvalidArgument,
       "SageMaker environment: SM_HOSTS="},
      {{{"SM_HOSTS", "[\"a\", \"a\"]"}, {"SM_CURRENT_HOST", "a"}},
       ErrorCode::kInvalidArgument,
       "a:2223"},
  };
  for (const auto& wrong : cases) {
    const ScopedEnvironment environment(wrong.variables);
    EXPECT_TUTTI_ERROR(resolve_cluster(), wrong.code, wrong.part);
  }
}

const Variables kIndexedJob = {{"JOB_COMPLETION_INDEX", "2"},
                               {"HOSTNAME", "train-2"},
                               {"TUTTI_POD_COUNT", "3"},
                               {"TUTTI_POD_SERVICE", "train-svc"}};

TEST(PodIndexClusterResolver, NamesThePodsOfAnIndexedJob) {
  const ScopedEnvironment environment(kIndexedJob);
  const PodIndexClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(),
            (ClusterSpec{
                {"worker",
                 {"train-0.train-svc:8470", "train-1.train-svc:8470", "train-2.train-svc:8470"}}}));
  EXPECT_EQ(resolver.task_id(), 2);
  EXPECT_EQ(resolver.rendezvous_address(), "train-0.train-svc:8470");
  EXPECT_EQ(resolver.job_id(), "pods train.train-svc");
  EXPECT_EQ(cluster_banner(*resolve_cluster(), 1),
            "3 workers x 1 replica, I am worker 2 (train-2.train-svc:8470), from numbered pods");
}

TEST(PodIndexClusterResolver, ReadsTheNumberOfAStatefulSetsPod) {
  ScopedEnvironment environment{{"HOSTNAME", "my-set-11"}};
  const PodIndexClusterResolver resolver({.num_pods = 12, .service = "s.ns.svc", .port = 5000});
  EXPECT_EQ(resolver.task_id(), 11);
  EXPECT_EQ(resolver.master("worker", 1), "my-set-1.s.ns.svc:5000");
  environment.set("HOSTNAME", "my-set-3.s.ns.svc.cluster.local");
  EXPECT_EQ(resolver.task_id(), 3);
  environment.set("TUTTI_POD_PORT", "6000");
  EXPECT_EQ(resolver.rendezvous_address(), "my-set-0.s.ns.svc:5000");
  EXPECT_EQ(PodIndexClusterResolver({.num_pods = 12, .service = "s"}).rendezvous_address(),
            "my-set-0.s:6000");
}

TEST(PodIndexClusterResolver, OnePodNeedsNoName) {
  const ScopedEnvironment environment{{"JOB_COMPLETION_INDEX", "5"}, {"TUTTI_POD_COUNT", "1"}};
  EXPECT_EQ(PodIndexClusterResolver().task_id(), 0);
  EXPECT_EQ(PodIndexClusterResolver().rendezvous_address(), "");
  EXPECT_EQ(cluster_banner(*resolve_cluster(), 1),
            "1 worker x 1 replica, I am worker 0, from numbered pods");
}

TEST(PodIndexClusterResolver, NeverTrainsAlone) {
  const auto without = [](const char* name) {
    Variables variables = kIndexedJob;
    variables.erase(name);
    return variables;
  };
  const auto with = [](const char* name, const char* value) {
    Variables variables = kIndexedJob;
    variables[name] = value;
    return variables;
  };
  const struct {
    Variables variables;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {{{"JOB_COMPLETION_INDEX", "0"}},
       ErrorCode::kFailedPrecondition,
       "so the number of pods is unknown. Set TUTTI_POD_COUNT"},
      {without("TUTTI_POD_COUNT"), ErrorCode::kFailedPrecondition, "TUTTI_POD_COUNT is not"},
      {without("TUTTI_POD_SERVICE"), ErrorCode::kFailedPrecondition, "headless Service"},
      {without("HOSTNAME"), ErrorCode::kFailedPrecondition, "HOSTNAME is not"},
      {with("HOSTNAME", "train-1"), ErrorCode::kFailedPrecondition, "<name>-<index>"},
      {with("HOSTNAME", "train"), ErrorCode::kFailedPrecondition, "<name>-<index>"},
      {with("TUTTI_POD_COUNT", "2"), ErrorCode::kFailedPrecondition, "2 pods, from 0 to 1"},
      {with("TUTTI_POD_COUNT", "x"), ErrorCode::kInvalidArgument, "TUTTI_POD_COUNT=\"x\""},
      {with("TUTTI_POD_PORT", "0"), ErrorCode::kInvalidArgument, "TUTTI_POD_PORT=\"0\""},
      {with("TUTTI_POD_SERVICE", "a b"), ErrorCode::kInvalidArgument, "train-0.a b:8470"},
      {with("JOB_COMPLETION_INDEX", "-1"), ErrorCode::kInvalidArgument, "\"-1\""},
  };
  for (const auto& wrong : cases) {
    const ScopedEnvironment environment(wrong.variables);
    EXPECT_TUTTI_ERROR(resolve_cluster(), wrong.code, wrong.part);
  }
}

// What the operator sets in the first worker, and in the third.
TEST(Kubeflow, IsReadByTheResolversOfItsVariables) {
  {
    const ScopedEnvironment tf_job{
        {"TF_CONFIG", R"({"cluster":{"ps":["dist-ps-0.ns.svc:2222"],)"
                      R"("worker":["dist-worker-0.ns.svc:2222","dist-worker-1.ns.svc:2222"]},)"
                      R"("task":{"type":"worker","index":0},"environment":"cloud"})"},
        {"HOSTNAME", "dist-worker-0"}};
    EXPECT_EQ(cluster_banner(*resolve_cluster(), 1),
              "2 workers x 1 replica + 1 ps, I am worker 0 (dist-worker-0.ns.svc:2222), from "
              "TF_CONFIG");
  }
  ScopedEnvironment py_torch_job{{"MASTER_ADDR", "dist-master-0"},
                                 {"MASTER_PORT", "23456"},
                                 {"WORLD_SIZE", "4"},
                                 {"RANK", "3"},
                                 {"PET_NPROC_PER_NODE", "auto"},
                                 {"PET_NNODES", "4"},
                                 {"HOSTNAME", "dist-worker-2"}};
  EXPECT_EQ(cluster_banner(*resolve_cluster(), 1),
            "4 workers x 1 replica, I am worker 3 (meeting at dist-master-0:23456), from torchrun");
  py_torch_job.set("PET_NPROC_PER_NODE", "2");
  EXPECT_TUTTI_ERROR(resolve_cluster(), ErrorCode::kFailedPrecondition, "PET_NPROC_PER_NODE=\"2\"",
                     "leave nprocPerNode out");
  py_torch_job.set("LOCAL_RANK", "0");
  EXPECT_EQ(resolve_cluster()->task_id(), 3) << "torchrun was used";
}

TEST(Kubeflow, AnElasticPyTorchJobNeedsTorchrun) {
  const ScopedEnvironment environment{{"PET_RDZV_ENDPOINT", "dist-worker-0:23456"},
                                      {"PET_RDZV_BACKEND", "c10d"},
                                      {"PET_NNODES", "1:3"}};
  EXPECT_TUTTI_ERROR(resolve_cluster(), ErrorCode::kFailedPrecondition,
                     "PET_RDZV_ENDPOINT=\"dist-worker-0:23456\"", "torchrun --no_python");
}

}  // namespace platform_resolvers_test
