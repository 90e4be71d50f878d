// SPDX-License-Identifier: Apache-2.0
//
// The valid lists have been compared with `scontrol show hostnames`, which knows no suffixes yet.

#include "tutti/cluster/internal/hostlist.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace hostlist_test {

using namespace tutti;
using internal::expand_hostlist;
using internal::expand_tasks_per_node;
using Hosts = std::vector<std::string>;

TEST(Hostlist, IsExpandedAsSlurmDoes) {
  const struct {
    const char* text;
    Hosts hosts;
  } cases[] = {
      {"n1", {"n1"}},
      {"a,b,c", {"a", "b", "c"}},
      {"n[1-3],m5,o[3-4,6,7-9]", {"n1", "n2", "n3", "m5", "o3", "o4", "o6", "o7", "o8", "o9"}},
      {"n[001-003]", {"n001", "n002", "n003"}},
      {"n[001-3]", {"n001", "n002", "n003"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[098-101]", {"n098", "n099", "n100", "n101"}},
      {"n[9,10-11,007]", {"n9", "n10", "n11", "n007"}},
      {"rack[0-1]node[1-2]", {"rack0node1", "rack0node2", "rack1node1", "rack1node2"}},
      {"x[0-1]y[2]z[3-4]", {"x0y2z3", "x0y2z4", "x1y2z3", "x1y2z4"}},
      {"[1-3]", {"1", "2", "3"}},
      {"n[1,1-2]", {"n1", "n1", "n2"}},
      {"n10,n9,n8", {"n10", "n9", "n8"}},
      {"dgx-a100-[01-02].cluster.local",
       {"dgx-a100-01.cluster.local", "dgx-a100-02.cluster.local"}},
      {"n[1-2]-ib,login_0", {"n1-ib", "n2-ib", "login_0"}},
      {"a[1][2]", {"a12"}},
  };
  for (const auto& list : cases)
    EXPECT_EQ(expand_hostlist("test", list.text), list.hosts) << list.text;
}

TEST(Hostlist, MustBeWellFormed) {
  const struct {
    const char* text;
    const char* part;
  } cases[] = {
      {"", "there is no host at position 1"},
      {",a", "there is no host at position 1"},
      {"a,,b", "there is no host at position 3"},
      {"a,", "there is no host at position 3"},
      {"n[1-2", "the bracket at position 2 is not closed"},
      {"n1-2]", "\"]\" at position 5 closes no bracket"},
      {"n[1-2]]", "closes no bracket"},
      {"n[]", "\"\" is neither a number nor a range"},
      {"n[1-2,]", "\"\" is neither a number nor a range"},
      {"n[-2]", "\"-2\" is neither a number nor a range"},
      {"n[1-]", "\"1-\" is neither"},
      {"n[1-2-3]", "\"1-2-3\" is neither"},
      {"n[a-b]", "\"a-b\" is neither"},
      {"n[0x1]", "\"0x1\" is neither"},
      {"n[+1]", "\"+1\" is neither"},
      {"n[1 - 2]", "\"1 - 2\" is neither"},
      {"n[3-1]", "the range \"3-1\" is descending"},
      {"n[1-2[3-4]]", "a bracket inside of brackets"},
      {"a b", "\" \" at position 2 cannot be part of a host name"},
      {"a;rm", "cannot be part of a host name"},
      {"a:1", "cannot be part of a host name"},
      {"n[1-99999999999]", "is neither a number nor a range"},
      {"n[0-65536]", "more than 65536 hosts"},
      {"n[0-999999999]", "more than 65536 hosts"},
      {"a[0-999]b[0-999]", "more than 65536 hosts"},
      {"a[0-9]b[0-9]c[0-9]d[0-9]e[0-9],a", "more than 65536 hosts"},
  };
  for (const auto& list : cases) {
    EXPECT_TUTTI_ERROR(expand_hostlist("Slurm environment", list.text), ErrorCode::kInvalidArgument,
                       "Slurm environment: \"", list.part, "n[1-3,7]")
        << list.text;
  }
  EXPECT_TUTTI_ERROR(expand_hostlist("test", std::string(254, 'a')), ErrorCode::kInvalidArgument,
                     "longer than 253 characters");
  EXPECT_TUTTI_ERROR(expand_hostlist("test", std::string(253, 'a') + "[1]"),
                     ErrorCode::kInvalidArgument, "longer than 253 characters");
  EXPECT_EQ(expand_hostlist("test", "n[0-65535]").size(), 65536u);
}

TEST(TasksPerNode, AreExpandedAsSlurmWritesThem) {
  using Counts = std::vector<int>;
  EXPECT_EQ(expand_tasks_per_node("test", "2"), (Counts{2}));
  EXPECT_EQ(expand_tasks_per_node("test", "2(x3),1"), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("test", "3,1(x2)"), (Counts{3, 1, 1}));
  EXPECT_EQ(expand_tasks_per_node("test", "16(x1),0"), (Counts{16, 0}));
  for (const char* text :
       {"", ",", "2,", "x", "2(x)", "2(x3", "2x3", "(x3)", "2(x0)", "-1", "2(x3)1", "2 (x3)",
        "2(x3),,1", "1(x-2)", "2(x3)(x2)", "9999999999", "1000000"}) {
    EXPECT_TUTTI_ERROR(expand_tasks_per_node("Slurm environment", text),
                       ErrorCode::kInvalidArgument, "Slurm environment: \"",
                       "is neither a number nor \"number(xnodes)\"")
        << text;
  }
  EXPECT_TUTTI_ERROR(expand_tasks_per_node("test", "1(x65536),1"), ErrorCode::kInvalidArgument,
                     "more than 65536 nodes");
}

}  // namespace hostlist_test
