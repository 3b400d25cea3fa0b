// What the monitors of a C++ program are told of its steps.
#include <array>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine.h"
#include "capstan/monitor/run_file.h"
#include "tests/engine/small_model.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace capstan {
namespace {

constexpr int kWidth = 12;
constexpr int kClasses = 7;

engine::Options options_in(const std::filesystem::path& folder) {
  engine::Options options;
  options.batch = {.train_samples = 16, .micro_samples = 4, .accumulation_steps = 2};
  options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-2}};
  options.shard.stage = 2;
  options.monitor.metrics = folder / "m.jsonl";
  options.monitor.csv = {.enabled = true, .output_path = folder, .job_name = "csv"};
  return options;
}

test::SmallModel make_model(int blocks) {
  test::SmallModel model(kWidth, blocks, kClasses);
  test::fill(*model, 7);
  return model;
}

std::string second_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::getline(file, line);
  return line;
}

TEST(Monitoring, TellsTheMeanLossOverMicroBatchesAndRanks) {
  constexpr int kSteps = 3;
  const test::TempFolder folder;
  std::array<std::array<double, kSteps>, 2> sums{};
  run_ranks(2, [&](comm::Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    test::SmallModel model = make_model(2);
    Engine engine(model, options_in(folder.path()), {.group = &group});
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (std::uint64_t micro = 0; micro < 2; ++micro) {
        const auto batch = test::make_batch(4, kWidth, kClasses, 100 * rank + 10 * step + micro);
        const at::Tensor loss = test::loss_of(model, batch, at::kFloat);
        sums[rank][step] += loss.item<double>();
        engine.backward(loss);
        engine.step();
      }
    }
  });
  monitor::RunFile run(folder.path() / "m.jsonl");
  run.read_more(/*ended=*/true);
  const auto losses = run.column("loss");
  const auto samples = run.column("samples");
  ASSERT_EQ(losses.size(), std::size_t{kSteps});
  for (std::size_t step = 0; step < kSteps; ++step) {
    const auto number = static_cast<std::int64_t>(step) + 1;
    EXPECT_NEAR(losses.at(number), (sums[0][step] + sums[1][step]) / 4, 1e-6);
    EXPECT_EQ(samples.at(number), 16.0 * static_cast<double>(number));
  }
  EXPECT_GT(run.column("held_bytes.optimizer").at(1), 0);
  EXPECT_GT(run.column("grad_norm").at(1), 0);
  EXPECT_EQ(second_line(folder.path() / "csv" / "Train_Samples_lr.csv"), "16,0.01");
}

TEST(Monitoring, AFolderThatCannotBeMadeIsAnErrorOnEveryRank) {
  const test::TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  run_ranks(2, [&](comm::Group& group) {
    const test::SmallModel model = make_model(1);
    EXPECT_THROW(Engine(model, options_in(folder.path() / "file"), {.group = &group}), IoError);
  });
}

TEST(Monitoring, NoLossIsToldWhereBackwardWasGivenNone) {
  const test::TempFolder folder;
  run_ranks(1, [&](comm::Group& group) {
    test::SmallModel model = make_model(1);
    engine::Options options = options_in(folder.path());
    options.batch = {.train_samples = 4, .micro_samples = 4};
    Engine engine(model, options, {.group = &group});
    const auto batch = test::make_batch(4, kWidth, kClasses, 1);
    const at::Tensor loss = test::loss_of(model, batch, at::kFloat);
    engine.backward({loss}, {at::ones_like(loss)});
    engine.step();
  });
  monitor::RunFile run(folder.path() / "m.jsonl");
  run.read_more(/*ended=*/true);
  EXPECT_EQ(run.steps().size(), 1U);
  EXPECT_TRUE(run.column("loss").empty());
}

}  // namespace
}  // namespace capstan
