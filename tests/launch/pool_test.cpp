#include "capstan/launch/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

using testing::HasSubstr;

const Pool kTwoHosts = {{"w0", {"0", "1", "2", "3"}}, {"w1", {"0", "1", "2", "3"}}};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Hostfile, KeepsOrderAndSkipsCommentsAndBlankLines) {
  const Pool pool = parse_hostfile("# my hosts\n\n  b slots=2\r\na\tslots=1 max-slots=4\n", "f");
  EXPECT_EQ(pool, (Pool{{"b", {"0", "1"}}, {"a", {"0"}}}));
}

TEST(Hostfile, NamesEveryBadLineAtOnce) {
  const std::string text = message_of(
      [] { parse_hostfile("a slots=2\nb\nc slots=x\na slots=1\nd slots=0\n", "hosts"); });
  EXPECT_THAT(text, HasSubstr("line 2: \"b\""));
  EXPECT_THAT(text, HasSubstr("line 3: \"c slots=x\""));
  EXPECT_THAT(text, HasSubstr("line 4: host \"a\" is listed twice"));
  EXPECT_THAT(text, HasSubstr("line 5"));
  EXPECT_THAT(text, HasSubstr("where: hosts"));
}

TEST(Hostfile, RefusesNamesThatSshWouldTakeForOptions) {
  const std::string text = message_of([] {
    parse_hostfile("-oProxyCommand=touch${IFS}x slots=1\n-F slots=1\nme@far slots=1\nok slots=1\n",
                   "hosts");
  });
  EXPECT_THAT(text, HasSubstr("line 1: \"-oProxyCommand=touch${IFS}x\" is no name of a host"));
  EXPECT_THAT(text, HasSubstr("line 2: \"-F\""));
  EXPECT_THAT(text, HasSubstr("line 3: \"me@far\""));
  for (const char* name : {"node-1", "10.0.0.7", "fe80::1%eth0", "a_b", "m\xc3\xbcnchen"}) {
    EXPECT_TRUE(is_host_name(name)) << name;
  }
}

TEST(Hostfile, RefusesAFileWithoutHostsAndAbsurdCounts) {
  EXPECT_THAT(message_of([] { parse_hostfile("# nothing\n", "f"); }), HasSubstr("names no host"));
  EXPECT_THROW(parse_hostfile("", "f"), ConfigError);
  EXPECT_EQ(parse_hostfile("\xef\xbb\xbf"
                           "a slots=2\r\n",
                           "f")
                .front()
                .name,
            "a");
  EXPECT_THROW(parse_hostfile("a slots=99999999999", "f"), ConfigError);
  EXPECT_THROW(parse_hostfile("a slots=2junk", "f"), ConfigError);
}

TEST(Filter, ChoosesAndDropsSlots) {
  EXPECT_EQ(exclude_hosts(kTwoHosts, "w1:0"),
            (Pool{{"w0", {"0", "1", "2", "3"}}, {"w1", {"1", "2", "3"}}}));
  EXPECT_EQ(include_hosts(kTwoHosts, "w1:0,3"), (Pool{{"w1", {"0", "3"}}}));
  EXPECT_EQ(include_hosts(kTwoHosts, "w0:1@w0:0,1"), (Pool{{"w0", {"0", "1"}}}));
  EXPECT_EQ(exclude_hosts(kTwoHosts, "w0:0,1@w1:3"),
            (Pool{{"w0", {"2", "3"}}, {"w1", {"0", "1", "2"}}}));
}

TEST(Filter, TakesWholeHostsAndKeepsHostfileOrder) {
  EXPECT_EQ(include_hosts(kTwoHosts, "w0"), (Pool{{"w0", {"0", "1", "2", "3"}}}));
  EXPECT_EQ(include_hosts(kTwoHosts, "w1:2@w0"),
            (Pool{{"w0", {"0", "1", "2", "3"}}, {"w1", {"2"}}}));
  EXPECT_EQ(exclude_hosts(kTwoHosts, "w0"), (Pool{{"w1", {"0", "1", "2", "3"}}}));
}

TEST(Filter, TakesDevicesThatAreNoNumbers) {
  const Pool pool = {{"localhost", {"GPU-8f6c", "MIG-1"}}};
  EXPECT_EQ(include_hosts(pool, "localhost:MIG-1"), (Pool{{"localhost", {"MIG-1"}}}));
}

TEST(Filter, MayLeaveNothingWhereTheCallerAllowsIt) {
  EXPECT_EQ(filter_hosts(kTwoHosts, "w0@w1", /*keep=*/false), Pool{});
  EXPECT_EQ(filter_hosts(kTwoHosts, "w1:0", /*keep=*/true), (Pool{{"w1", {"0"}}}));
}

TEST(Filter, RefusesHostsAndSlotsThatAreNotThere) {
  EXPECT_THAT(message_of([] { include_hosts(kTwoHosts, "w1:5"); }),
              HasSubstr("host \"w1\" has no slot \"5\""));
  EXPECT_THAT(message_of([] { exclude_hosts(kTwoHosts, "w2"); }), HasSubstr("no host \"w2\""));
  EXPECT_THAT(message_of([] { include_hosts({{"worker-1", {"0"}}}, "worker-l"); }),
              HasSubstr("did you mean \"worker-1\"?"));
  EXPECT_THAT(message_of([] { exclude_hosts(kTwoHosts, "w0@w1"); }), HasSubstr("no slot is left"));
  for (const char* bad : {"", "@", ":0", "w0:", "w0:0,", "w0:a", "w0:0@"}) {
    EXPECT_THROW(include_hosts(kTwoHosts, bad), ConfigError) << bad;
  }
}

TEST(Counts, CutFromTheFront) {
  EXPECT_EQ(first_slots(first_hosts(kTwoHosts, 1), 2), (Pool{{"w0", {"0", "1"}}}));
  EXPECT_EQ(first_hosts(kTwoHosts, -1), kTwoHosts);
  EXPECT_EQ(count_slots(kTwoHosts), 8);
  EXPECT_THROW(first_hosts(kTwoHosts, 3), ConfigError);
  EXPECT_THROW(first_slots(kTwoHosts, 5), ConfigError);
  EXPECT_THROW(first_slots(kTwoHosts, 0), ConfigError);
}

}  // namespace
}  // namespace capstan::launch
