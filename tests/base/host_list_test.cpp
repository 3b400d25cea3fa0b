#include "capstan/base/host_list.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan {
namespace {

using Hosts = std::vector<std::string>;

TEST(HostList, ExpandsBracketsInOrderAndKeepsLeadingZeros) {
  EXPECT_EQ(expand_host_list("n1", "x"), Hosts{"n1"});
  EXPECT_EQ(expand_host_list("n[08-10,3],login", "x"), (Hosts{"n08", "n09", "n10", "n3", "login"}));
  EXPECT_EQ(expand_host_list("r[1-2]n[1-2]", "x"), (Hosts{"r1n1", "r1n2", "r2n1", "r2n2"}));
  EXPECT_EQ(expand_host_list("gpu[1].local, b", "x"), (Hosts{"gpu1.local", "b"}));
}

TEST(HostList, ExpandsRepeatedCounts) {
  EXPECT_EQ(expand_counts("4", "x"), std::vector<int>{4});
  EXPECT_EQ(expand_counts("2(x3),1", "x"), (std::vector<int>{2, 2, 2, 1}));
}

TEST(HostList, NamesTheVariableOfAnUnreadableText) {
  for (const char* bad : {"n[1-", "n[3-1]", "n]", "a,,b", "", "n[a-b]", "n[1-99999999]"}) {
    EXPECT_THROW(static_cast<void>(expand_host_list(bad, "x")), ConfigError) << bad;
  }
  for (const char* bad : {"", "2(x", "2(x)", "a", "-1", "2(x99999999)"}) {
    EXPECT_THROW(static_cast<void>(expand_counts(bad, "x")), ConfigError) << bad;
  }
  try {
    static_cast<void>(expand_host_list("n[1-", "SLURM_STEP_NODELIST"));
    FAIL() << "accepted an unclosed bracket";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.info().where, "SLURM_STEP_NODELIST");
  }
}

}  // namespace
}  // namespace capstan
