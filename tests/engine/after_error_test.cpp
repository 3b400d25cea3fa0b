// After an error no more memory is taken than before it; where the ranks still agree, a run goes
// on.
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

struct Memory {
  store::MemoryUse device;
  store::MemoryUse host;
  bool operator==(const Memory&) const = default;
};

Memory memory_of(Engine& engine) {
  return {engine.ledger().now(), engine.ledger(store::Placement::host).now()};
}

std::ostream& operator<<(std::ostream& out, const Memory& memory) {
  return out << "device: " << to_text(memory.device) << "; host: " << to_text(memory.host);
}

// One rank of a run that has made a step: what it holds now is what it holds between steps.
struct Rank {
  Rank(comm::Group& group, const engine::Options& options)
      : model(kWidth, kBlocks, kClasses), engine(filled(model), options, {.group = &group}) {
    EXPECT_TRUE(good_step());
    rest = memory_of(engine);
  }
  static SmallModel& filled(SmallModel& model) {
    fill(*model, 11);
    return model;
  }
  at::Tensor loss() {
    return loss_of(model, make_batch(4, kWidth, kClasses, 1), model->head->weight.scalar_type());
  }
  bool good_step() {
    engine.backward(loss());
    return engine.step().applied;
  }
  void expect_memory_as_before(const std::string& what) {
    EXPECT_EQ(memory_of(engine), rest) << what;
  }
  void expect_as_before(const std::string& what) {
    expect_memory_as_before(what);
    EXPECT_TRUE(good_step()) << what;
    expect_memory_as_before(what + ", a step later");
  }
  SmallModel model;
  Engine engine;
  Memory rest;
};

// Every stage, with the states on the device and on the host.
template <typename Body>
void for_each_placement(const std::vector<int>& worlds, Body&& body) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool on_host : {false, true}) {
      if (stage == 0 && on_host) continue;
      engine::Options options = fp32_options(stage);
      options.precision.params = DType::bf16;
      if (on_host) options.store.optimizer.placement = store::Placement::host;
      if (on_host && stage == 3) options.store.params.placement = store::Placement::host;
      const std::string where =
          "stage " + std::to_string(stage) + (on_host ? ", states on the host" : "");
      for (const int world : worlds) {
        run_ranks(world, [&](comm::Group& group) { body(group, options, where); });
      }
    }
  }
}

// One that is alone can try again; of several the group is gone, and the engine with it.
TEST(AfterAnError, InBackwardTheGradientsGo) {
  for_each_placement(
      {1}, [](comm::Group& group, const engine::Options& options, const std::string& where) {
        Rank rank(group, options);
        // In the middle: the last block has its gradients, the first has none yet.
        bool failing = true;
        rank.model->blocks[1]->up->weight.register_hook([&](const at::Tensor& grad) {
          if (failing) throw std::runtime_error("a hook of the user");
          return grad;
        });
        EXPECT_ANY_THROW(rank.engine.backward(rank.loss())) << where;
        rank.engine.clear_gradients();
        rank.expect_memory_as_before(where);
        failing = false;
        rank.expect_as_before(where);
      });
}

TEST(AfterAnError, OfAStepThatCannotBeAppliedTheGradientsGo) {
  for_each_placement(
      {1, 2}, [](comm::Group& group, const engine::Options& given, const std::string& where) {
        engine::Options options = given;
        options.precision.max_skipped_in_a_row = 1;
        Rank rank(group, options);
        rank.engine.backward(rank.loss() * std::numeric_limits<float>::infinity());
        EXPECT_THROW(rank.engine.step(), Error) << where;
        rank.engine.clear_gradients();
        rank.expect_memory_as_before(where);
      });
}

TEST(AfterAnError, OfASaveNothingStaysBehind) {
  for_each_placement(
      {1, 2}, [](comm::Group& group, const engine::Options& options, const std::string& where) {
        Rank rank(group, options);
        for (const bool asynchronous : {false, true}) {
          EXPECT_THROW(
              {
                rank.engine.save_checkpoint("/proc/self/nowhere", {.asynchronous = asynchronous});
                rank.engine.finish_saves();
              },
              Error)
              << where;
          rank.expect_as_before(where);
        }
      });
}

void damage_last_byte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(AfterAnError, OfALoadNothingStaysBehind) {
  for_each_placement(
      {1, 2}, [](comm::Group& group, const engine::Options& options, const std::string& where) {
        std::optional<TempFolder> mine;
        if (group.rank() == 0) mine.emplace();
        Rank rank(group, options);
        // Every rank needs the folder's name; the checkpoint tells it to nobody, the test does.
        static std::string folder;
        if (group.rank() == 0) folder = mine->path().string();
        group.barrier().wait();
        rank.engine.save_checkpoint(folder, {.tag = "damaged"});
        group.barrier().wait();
        if (group.rank() == 0) {
          for (const auto& file : std::filesystem::directory_iterator(folder + "/damaged")) {
            if (file.path().filename().string().starts_with("optimizer.")) {
              damage_last_byte(file.path());
            }
          }
        }
        group.barrier().wait();
        EXPECT_THROW(rank.engine.load_checkpoint(folder, {.tag = "damaged"}), Error) << where;
        rank.expect_as_before(where + ", damaged");
        EXPECT_THROW(rank.engine.load_checkpoint(folder, {.tag = "missing"}), Error) << where;
        rank.expect_as_before(where + ", missing");
        group.barrier().wait();
      });
}

}  // namespace
}  // namespace capstan::test
