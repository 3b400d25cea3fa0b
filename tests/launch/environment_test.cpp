#include "capstan/launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/launch/machine.h"

namespace capstan::launch {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

TEST(EnvFile, ReadsNamesAndValues) {
  const Environment env = parse_env_file(
      "# comment\n\nNCCL_DEBUG=INFO\n export A = b c \nQUOTED=\"x y\"\nEMPTY=\nE=a=b\r\n", "f");
  EXPECT_EQ(
      env,
      (Environment{
          {"NCCL_DEBUG", "INFO"}, {"A", "b c"}, {"QUOTED", "x y"}, {"EMPTY", ""}, {"E", "a=b"}}));
}

TEST(EnvFile, NamesEveryBadLine) {
  try {
    parse_env_file("A=1\nnonsense\n1B=2\n=3\n", "vars.env");
    FAIL() << "accepted nonsense";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("line 2 is not NAME=VALUE"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("nonsense")));  // a password, perhaps
    EXPECT_THAT(error.what(), HasSubstr("line 3"));
    EXPECT_THAT(error.what(), HasSubstr("line 4"));
    EXPECT_EQ(error.info().where, "vars.env");
  }
}

TEST(Forwarding, TakesWhatRanksNeedAndNothingPrivate) {
  const Environment env = forwarded_variables({{"NCCL_DEBUG", "1"},
                                               {"PYTHONPATH", "/p"},
                                               {"PATH", "/bin"},
                                               {"HOME", "/root"},
                                               {"SSH_AUTH_SOCK", "/s"},
                                               {"CUDA_VISIBLE_DEVICES", "3"},
                                               {"CAPSTAN_LINK_TOKEN", "secret"}});
  EXPECT_EQ(env, (Environment{{"NCCL_DEBUG", "1"}, {"PYTHONPATH", "/p"}, {"PATH", "/bin"}}));
}

TEST(Forwarding, DropsTheOuterLaunchersWords) {
  const Environment env = without_launcher_variables({{"OMPI_COMM_WORLD_RANK", "0"},
                                                      {"PMIX_RANK", "0"},
                                                      {"RANK", "3"},
                                                      {"TORCHELASTIC_RUN_ID", "x"},
                                                      {"HOME", "/root"},
                                                      {"RANKING", "kept"}});
  EXPECT_EQ(env, (Environment{{"HOME", "/root"}, {"RANKING", "kept"}}));
}

TEST(Shell, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(shell_quote("plain-1.0/x_y=z"), "plain-1.0/x_y=z");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(Shell, SplitsWhatItJoined) {
  for (const Words& words :
       {Words{"a", "b c", "", "it's", "\"q\"", "back\\slash", "$x", "new\nline"}, Words{},
        Words{""}}) {
    EXPECT_EQ(shell_split(shell_join(words), "x"), words);
  }
  EXPECT_EQ(shell_split("  -p 22 -o \"A B\" c\\ d ", "x"), (Words{"-p", "22", "-o", "A B", "c d"}));
  EXPECT_THROW(shell_split("a 'b", "x"), ConfigError);
}

TEST(Devices, FollowCudaVisibleDevices) {
  const Words present = {"0", "1", "2"};
  const auto visible = [&](const std::string& value) {
    return visible_devices(present, {{"CUDA_VISIBLE_DEVICES", value}});
  };
  EXPECT_EQ(visible_devices(present, {}), present);
  EXPECT_EQ(visible("2,0"), (Words{"2", "0"}));
  EXPECT_EQ(visible(""), Words{});
  EXPECT_EQ(visible("-1"), Words{});
  EXPECT_EQ(visible("1,-1,0"), Words{"1"});
  EXPECT_EQ(visible("0,7"), Words{"0"});
  EXPECT_EQ(visible("GPU-8f6c,MIG-2"), (Words{"GPU-8f6c", "MIG-2"}));
}

}  // namespace
}  // namespace capstan::launch
