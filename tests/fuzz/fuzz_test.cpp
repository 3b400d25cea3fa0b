#include <gtest/gtest.h>

#include "tests/fuzz/readers.h"

namespace capstan::test {
namespace {

// A tenth of the million that `make campaign` runs of each, where the sanitizers look. A whole
// checkpoint takes longer than one file.
#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t kInputs = 100'000;
#else
constexpr std::int64_t kInputs = 10'000;
#endif

std::int64_t inputs_for(const FuzzReader& reader) {
  return reader.name == "deepspeed" ? kInputs / 5 : kInputs;
}

TEST(Fuzz, NoFileFromElsewhereCrashesHangsOrFillsTheMemory) {
  for (const FuzzReader& reader : all_readers()) {
    const std::int64_t inputs = inputs_for(reader);
    const FuzzReport report = run_fuzz(reader, inputs, /*seed=*/20240229);
    EXPECT_EQ(report.failure, "") << reader.name;
    EXPECT_EQ(report.inputs, inputs) << reader.name;
    // The changes are neither too tame nor too wild.
    EXPECT_GT(report.accepted, inputs / 8) << reader.name;
    if (reader.name != "metrics") {  // which leaves out what it cannot read
      EXPECT_GT(report.refused, inputs / 8) << reader.name;
    }
  }
}

TEST(Fuzz, EqualSeedsGiveEqualInputs) {
  const std::vector<FuzzReader> readers = text_readers();
  const FuzzReport a = run_fuzz(readers.front(), 500, 3);
  const FuzzReport b = run_fuzz(readers.front(), 500, 3);
  EXPECT_EQ(a.accepted, b.accepted);
  EXPECT_NE(a.accepted, run_fuzz(readers.front(), 500, 4).accepted);
}

// What the runner itself must see.
TEST(Fuzz, AReaderThatMisbehavesIsCaught) {
  const auto failure_of = [](std::function<void(const std::string&)> read) {
    const FuzzReader reader{.name = "bad", .corpus = {.texts = {"x"}}, .read = std::move(read)};
    return run_fuzz(reader, 10, 1).failure;
  };
  EXPECT_EQ(failure_of([](const std::string&) {}), "");
  EXPECT_NE(failure_of([](const std::string&) { throw std::length_error("too long"); }), "");
  EXPECT_NE(failure_of([](const std::string&) {
              const std::vector<char> much(std::size_t{64} << 20U);
              if (much.front() != 0) throw std::logic_error("never");
            }),
            "");
}

}  // namespace
}  // namespace capstan::test
