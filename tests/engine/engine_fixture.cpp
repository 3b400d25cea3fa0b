#include "tests/engine/engine_fixture.h"

#include <mutex>

#include <gtest/gtest.h>

namespace capstan::test {

Trained train_rank(comm::Group& group, const engine::Options& options, const Micro& micro,
                   const Prepare& prepare, int steps) {
  SmallModel model(kWidth, kBlocks, kClasses);
  fill(*model, 11);
  if (prepare) prepare(model);
  Engine engine(model, options, {.group = &group});
  Trained mine;
  const auto backwards = static_cast<int>(options.batch.accumulation_steps);
  for (int step = 0; step < steps * backwards; ++step) {
    micro(engine, model, static_cast<std::uint64_t>(1000 + 10 * step + group.rank()));
    const engine::StepReport report = engine.step();
    if (report.boundary) mine.reports.push_back(report);
  }
  mine.params = masters(engine);
  return mine;
}

Trained train(int world, const engine::Options& options, const Micro& micro, const Prepare& prepare,
              int steps) {
  std::vector<Trained> all(static_cast<std::size_t>(world));
  run_ranks(world, [&](comm::Group& group) {
    all[static_cast<std::size_t>(group.rank())] = train_rank(group, options, micro, prepare, steps);
  });
  for (const Trained& other : all) EXPECT_TRUE(all_equal(all.front().params, other.params));
  return all.front();
}

}  // namespace capstan::test
