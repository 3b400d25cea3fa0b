#include "capstan/launch/wire.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

using testing::HasSubstr;

TEST(Wire, GivesBackWhatItWasGiven) {
  for (const Message& message :
       {Message{"out", 3, "a line  with blanks "}, Message{"err", 0, ""},
        Message{"start", 29500, "::1"}, Message{"out", 1, std::string("\0\xff\r", 3)}}) {
    const std::string line = encode(message);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_EQ(decode(std::string_view(line).substr(0, line.size() - 1)), message);
  }
  EXPECT_EQ(encode({"failed", 1, "two\nlines"}), "failed 1 two lines\n");
}

TEST(Wire, CarriesEndings) {
  const Ending ending{.exit_code = 0,
                      .signal = SIGKILL,
                      .peak_rss_bytes = std::int64_t{5} << 30,
                      .out_of_memory = true,
                      .memory_limit_bytes = std::int64_t{6} << 30,
                      .memory_limit_name = "the limit of cgroup /a b"};
  EXPECT_EQ(ending_from_message(ended_message(7, ending)), ending);
  EXPECT_EQ(ending_from_message(ended_message(7, {})), Ending{});
}

TEST(Wire, CarriesVariablesOfAnyValue) {
  for (const std::string value :
       {"", "a b=c", "two\nlines\n", "back\\slash\\n", "\\\n\\", "\xff\r"}) {
    const std::string line = encode(variable_message("NAME", value));
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const auto back = variable_from_message(decode(line.substr(0, line.size() - 1)));
    EXPECT_EQ(back, std::pair(std::string("NAME"), value));
  }
  EXPECT_THROW(variable_from_message({"env", 0, "no sign"}), CommError);
}

TEST(Wire, CarriesHellos) {
  const Hello hello = hello_from_message(
      hello_message({.first_rank = 4, .token = "abc", .port = 1234, .addr = "fe80::1"}));
  EXPECT_EQ(hello.first_rank, 4);
  EXPECT_EQ(hello.token, "abc");
  EXPECT_EQ(hello.port, 1234);
  EXPECT_EQ(hello.addr, "fe80::1");
}

TEST(Wire, RefusesNoise) {
  for (const char* noise :
       {"", "hello", "Welcome to node1!", "out x y", "out 99999999999999999999 y"}) {
    EXPECT_THROW(decode(noise), CommError) << noise;
  }
  EXPECT_THROW(ending_from_message({"ended", 0, "a b"}), CommError);
  EXPECT_THROW(hello_from_message({"out", 0, "token 1 host"}), CommError);
  EXPECT_THROW(hello_from_message({"hello", 0, "token"}), CommError);
}

TEST(Ending, SaysWhatEndedAProcess) {
  EXPECT_EQ(describe(Ending{.exit_code = 3}), "exited with code 3");
  EXPECT_THAT(describe(Ending{.signal = SIGSEGV}), HasSubstr("signal 11, SIGSEGV"));
  EXPECT_THAT(describe(Ending{.signal = SIGBUS}), HasSubstr("/dev/shm"));
  const std::string killed = describe(Ending{.signal = SIGKILL, .peak_rss_bytes = 3 << 20});
  EXPECT_THAT(killed, HasSubstr("killed from outside"));
  EXPECT_THAT(killed, HasSubstr("peak RSS 3 MiB"));
  const std::string memory = describe(Ending{.signal = SIGKILL,
                                             .peak_rss_bytes = std::int64_t{7} << 30,
                                             .out_of_memory = true,
                                             .memory_limit_bytes = std::int64_t{8} << 30,
                                             .memory_limit_name = "the limit of cgroup /job"});
  EXPECT_THAT(memory, HasSubstr("killed for host memory: peak RSS 7 GiB, limit 8 GiB (the limit of "
                                "cgroup /job)"));
  EXPECT_THAT(memory, HasSubstr("Use less host memory"));
}

TEST(Ending, HasTheExitCodeThatAShellWouldReport) {
  EXPECT_EQ(Ending{}.code(), 0);
  EXPECT_EQ(Ending{.exit_code = 3}.code(), 3);
  EXPECT_EQ(Ending{.signal = SIGKILL}.code(), 137);
  EXPECT_FALSE(Ending{}.failed());
  EXPECT_TRUE(Ending{.signal = SIGTERM}.failed());
}

}  // namespace
}  // namespace capstan::launch
