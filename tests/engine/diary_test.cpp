// What a rank leaves for `capstan doctor`, and who makes the first value that is not finite.
#include "capstan/engine/diary.h"

#include <cstdlib>
#include <limits>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/rank_env.h"
#include "capstan/json/reader.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// For the engines that are made while it lives.
class NotesIn {
 public:
  explicit NotesIn(const std::filesystem::path& folder) {
    ::setenv(kNotesVariable, folder.c_str(), 1);
  }
  NotesIn(const NotesIn&) = delete;
  NotesIn& operator=(const NotesIn&) = delete;
  ~NotesIn() { ::unsetenv(kNotesVariable); }
};

profile::RankNotes notes_in(const std::filesystem::path& folder, int rank) {
  const json::Document read = json::read_file(folder / profile::notes_file_name(rank));
  return profile::notes_from_json(read.root).value();
}

// Threads: any.
class Warnings final : public Logger {
 public:
  void log(LogLevel level, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    if (level == LogLevel::warning) all.emplace_back(text);
  }
  std::vector<std::string> all;

 private:
  std::mutex mutex_;
};

void train(Engine& engine, test::SmallModel& model, int steps) {
  for (int step = 0; step < steps; ++step) {
    test::plain_micro(engine, model, static_cast<std::uint64_t>(step));
    engine.step();
  }
}

TEST(Diary, IsNothingWithoutAFolder) {
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, test::fp32_options(0), {.group = &group});
    train(engine, model, 1);
    for (const auto kind : {profile::Kind::phase, profile::Kind::wait, profile::Kind::io}) {
      EXPECT_FALSE(group.recorder()->records(kind));
    }
  });
}

TEST(Diary, LeavesWhatEachRankDidAndTheSameParametersOnAll) {
  for (const int stage : {0, 1, 2, 3}) {
    const test::TempFolder folder;
    const NotesIn notes(folder.path());
    run_ranks(2, [&](comm::Group& group) {
      test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
      Engine engine(model, test::fp32_options(stage), {.group = &group});
      train(engine, model, 4);
    });
    const profile::RankNotes first = notes_in(folder.path(), 0);
    const profile::RankNotes second = notes_in(folder.path(), 1);
    EXPECT_EQ(second.rank, 1);
    EXPECT_EQ(second.steps, 4);
    EXPECT_EQ(second.state, "closed");
    EXPECT_THAT(second.operations, HasSubstr("reduce_scatter"));
    EXPECT_FALSE(second.memory_peaks.empty());
    ASSERT_EQ(first.fingerprints.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(first.fingerprints[i].units, second.fingerprints[i].units) << "stage " << stage;
      if (stage < 3) {
        EXPECT_EQ(first.fingerprints[i].units.size(), 5U);  // every unit
      }
    }
    EXPECT_NE(first.fingerprints[0].units, first.fingerprints[2].units);
  }
}

TEST(Diary, TellsThatParametersCameToDiffer) {
  const test::TempFolder folder;
  const NotesIn notes(folder.path());
  run_ranks(2, [&](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, test::fp32_options(0), {.group = &group});
    train(engine, model, 1);
    const torch::NoGradGuard no_grad;
    if (group.rank() == 1) model->blocks[1]->up->weight[3][4] += 0.5;
    const torch::AutoGradMode grad(true);
    train(engine, model, 1);
  });
  const auto units = [&](int rank) {
    return notes_in(folder.path(), rank).fingerprints.at(1).units;
  };
  const auto mine = units(0);
  const auto theirs = units(1);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    EXPECT_EQ(mine[i] == theirs[i], mine[i].first != "block1") << mine[i].first;
  }
}

TEST(Diary, KeepsTheErrorOfAStepAndAFolderThatCannotBeWrittenIsNone) {
  const test::TempFolder folder;
  const NotesIn notes(folder.path());
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, test::fp32_options(0), {.group = &group});
    const at::Tensor loss =
        test::loss_of(model, test::make_batch(4, test::kWidth, test::kClasses, 1), at::kFloat);
    loss.register_hook([](const at::Tensor& grad) -> at::Tensor {
      throw std::runtime_error("the dog ate it");
      return grad;
    });
    EXPECT_THROW(engine.backward(loss), std::exception);
  });
  EXPECT_EQ(notes_in(folder.path(), 0).state, "failed");
  EXPECT_THAT(notes_in(folder.path(), 0).error, HasSubstr("the dog ate it"));
  const NotesIn nowhere("/proc/none");
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, test::fp32_options(0), {.group = &group});
    EXPECT_NO_THROW(train(engine, model, 2));
  });
}

TEST(FindNan, NamesTheFirstOutputAndTheFirstGradientOfAStep) {
  for (const int stage : {0, 2, 3}) {
    for (const bool asked : {true, false}) {
      Warnings warnings;
      run_ranks(1, [&](comm::Group& group) {
        test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
        test::fill(*model, 5);
        Options options = test::fp32_options(stage);
        options.profile.find_nan = asked;
        Engine engine(model, options, {.group = &group, .logger = &warnings});
        train(engine, model, 2);
        EXPECT_THAT(warnings.all, IsEmpty());
        at::Tensor weight = engine.parameter("block1.down.weight").clone();
        weight[0][0] = std::numeric_limits<float>::quiet_NaN();
        engine.set_parameter("block1.down.weight", weight);
        train(engine, model, 1);
      });
      std::erase_if(warnings.all,
                    [](const std::string& text) { return !text.starts_with("step 3: "); });
      if (!asked) {
        EXPECT_THAT(warnings.all, IsEmpty());
        continue;
      }
      EXPECT_THAT(warnings.all,
                  ElementsAre(HasSubstr("the output of block1 is the first on rank 0"),
                              HasSubstr("the gradient of ")))
          << "stage " << stage;
    }
  }
}

}  // namespace
}  // namespace capstan::engine
