// Checkpoints that lost a file or a bit: which are passed over, what is told, and that nothing of
// them is lost.
#include <fstream>
#include <map>

#include <gmock/gmock.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/folder.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

engine::Options bf16_options() {
  engine::Options options = fp32_options(2);
  options.precision.params = DType::bf16;  // so that there are masters
  return options;
}

void flip_last_bit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

class Listener final : public Logger {
 public:
  void log(LogLevel level, std::string_view text) override {
    if (level >= LogLevel::warning) warnings.emplace_back(text);
  }
  std::vector<std::string> warnings;
};

void take_step(Engine& engine, SmallModel& model, std::uint64_t seed) {
  engine.backward(
      loss_of(model, make_batch(4, kWidth, kClasses, seed), model->head->weight.scalar_type()));
  engine.step();
}

// Steps 1 and 2, each saved.
void save_two(const std::filesystem::path& folder) {
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 11);
    Engine engine(model, bf16_options(), {.group = &group});
    for (std::uint64_t step = 1; step <= 2; ++step) {
      take_step(engine, model, step);
      engine.save_checkpoint(folder);
    }
  });
}

struct Outcome {
  std::string tag;    // empty: none was loaded
  std::string error;  // of rank 1, which does not look by itself
  bool io_error = false;
  std::vector<std::string> warnings;
};

// Loads, takes a step and saves again into the same folder.
Outcome go_on(const std::filesystem::path& folder, const engine::LoadOptions& how = {}) {
  Outcome outcome;
  Listener listener;
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 99);
    NullLogger silence;
    Engine engine(model, bf16_options(),
                  {.group = &group,
                   .logger = group.rank() == 0 ? static_cast<Logger*>(&listener) : &silence});
    try {
      const auto loaded = engine.load_checkpoint(folder, how);
      if (group.rank() == 1 && loaded) outcome.tag = loaded->tag;
      take_step(engine, model, 7);
      engine.save_checkpoint(folder);
    } catch (const Error& error) {
      if (group.rank() != 1) return;
      outcome.error = error.what();
      outcome.io_error = dynamic_cast<const IoError*>(&error) != nullptr;
    }
  });
  outcome.warnings = listener.warnings;
  return outcome;
}

std::map<std::string, std::string> bytes_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> bytes;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    std::ifstream file(entry.path(), std::ios::binary);
    bytes[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return bytes;
}

// One policy, however the newest was damaged: the one before it is taken, said aloud, and the
// damaged one is still there, byte for byte, after the next save under its tag.
TEST(Damaged, TheNewestIsPassedOverAloudAndNeverSavedOver) {
  using Damage = std::function<void(const std::filesystem::path& checkpoint)>;
  const std::vector<std::pair<std::string, Damage>> damages = {
      {"master.safetensors is missing",
       [](const auto& at) { std::filesystem::remove(at / "master.safetensors"); }},
      {"master.safetensors has 300 bytes instead of",
       [](const auto& at) { std::filesystem::resize_file(at / "master.safetensors", 300); }},
      {"is damaged: the checksum of its bytes",
       [](const auto& at) { flip_last_bit(at / "master.safetensors"); }},
      {"the index is damaged", [](const auto& at) { flip_last_bit(at / "index.json"); }},
      {"there is no index.json",
       [](const auto& at) { std::filesystem::remove(at / "index.json"); }}};
  for (const auto& [told, damage] : damages) {
    const TempFolder folder;
    save_two(folder.path());
    damage(folder / "global_step2");
    const auto before = bytes_of(folder / "global_step2");
    const Outcome outcome = go_on(folder.path());
    EXPECT_EQ(outcome.tag, "global_step1") << told << outcome.error;
    EXPECT_THAT(outcome.warnings,
                testing::Contains(AllOf(HasSubstr("global_step2 is skipped"), HasSubstr(told))));
    EXPECT_EQ(bytes_of(folder / "global_step2.set-aside"), before) << told;
    EXPECT_EQ(checkpoint::choose_newest(folder.path())->taken.tag, "global_step2") << told;
  }
}

TEST(Damaged, WhereNoneIsCompleteTheRunStopsAndSaysWhatIsLeft) {
  for (const bool flipped : {false, true}) {
    const TempFolder folder;
    save_two(folder.path());
    for (const char* const tag : {"global_step1", "global_step2"}) {
      const auto master = folder / tag / "master.safetensors";
      if (flipped) {
        flip_last_bit(master);
      } else {
        std::filesystem::remove(master);
      }
    }
    const auto before = bytes_of(folder / "global_step2");
    const Outcome outcome = go_on(folder.path());
    EXPECT_TRUE(outcome.io_error) << outcome.error;
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("no checkpoint in this folder is complete"),
                                     HasSubstr("global_step1: "), HasSubstr("global_step2: "),
                                     HasSubstr("its weights are still there"),
                                     HasSubstr("capstan generate"), HasSubstr("load_module_only")));
    EXPECT_EQ(bytes_of(folder / "global_step2"), before);
  }
}

TEST(Damaged, WeightsThatAreWholeAreLoadedAlone) {
  const TempFolder folder;
  save_two(folder.path());
  std::filesystem::remove(folder / "global_step2" / "master.safetensors");
  EXPECT_THAT(go_on(folder.path(), {.tag = "global_step2"}).error,
              AllOf(HasSubstr("not complete: master.safetensors is missing"),
                    HasSubstr("load_module_only")));
  const Outcome outcome = go_on(folder.path(), {.tag = "global_step2", .load_module_only = true});
  EXPECT_EQ(outcome.tag, "global_step2") << outcome.error;
  EXPECT_THAT(outcome.warnings, testing::Contains(HasSubstr("its weights are, and are loaded")));
  std::filesystem::remove(folder / "global_step2" / "model.safetensors");
  EXPECT_THAT(go_on(folder.path(), {.tag = "global_step2", .load_module_only = true}).error,
              HasSubstr("not complete"));
}

TEST(Damaged, AFolderWithoutCheckpointsIsStillNoError) {
  const TempFolder folder;
  const Outcome outcome = go_on(folder.path());
  EXPECT_EQ(outcome.tag + outcome.error, "");
  EXPECT_TRUE(std::filesystem::exists(folder / "global_step1" / "index.json"));
}

// One line for a model of another size, not one for each of its tensors and states.
TEST(AnotherModel, IsToldByTheFirstOfManyTensors) {
  const TempFolder folder;
  save_two(folder.path());
  run_ranks(2, [&](comm::Group& group) {
    SmallModel wider(2 * kWidth, kBlocks, kClasses);
    Engine engine(wider, bf16_options(), {.group = &group});
    std::string error;
    try {
      engine.load_checkpoint(folder.path());
    } catch (const ConfigError& refusal) {
      error = refusal.what();
    }
    EXPECT_THAT(error,
                testing::ContainsRegex("[0-9]+ have another shape, the first: '.*' has shape "
                                       ".* in the checkpoint, .* in the model"));
    EXPECT_LT(std::count(error.begin(), error.end(), '\n'), 6) << error;
  });
}

// As a second Trainer.train() does it: the engine before it may still be there.
TEST(Folder, TwoEnginesOfOneProcessSaveInTurn) {
  const TempFolder folder;
  Listener listener;
  run_ranks(1, [&](comm::Group& group) {
    SmallModel models[2] = {SmallModel(kWidth, kBlocks, kClasses),
                            SmallModel(kWidth, kBlocks, kClasses)};
    auto first =
        std::make_unique<Engine>(models[0], bf16_options(), engine::Parts{.group = &group});
    Engine second(models[1], bf16_options(), {.group = &group, .logger = &listener});
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_NO_THROW(first->save_checkpoint(folder.path(), {.asynchronous = true}));
      first->finish_saves();
      EXPECT_NO_THROW(second.save_checkpoint(folder.path(), {.asynchronous = true}));
      second.finish_saves();
    }
    first.reset();
    EXPECT_NO_THROW(second.save_checkpoint(folder.path()));
  });
  EXPECT_THAT(listener.warnings,
              testing::ElementsAre(HasSubstr("another engine of this process also saves into")));
}

}  // namespace
}  // namespace capstan::test
