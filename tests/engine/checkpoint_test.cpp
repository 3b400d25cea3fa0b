// Saved and loaded engines: resumed equals uninterrupted, and any layout loads into any other.
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/index.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

using testing::HasSubstr;

struct Run {
  int world = 2;
  engine::Options options;
  int first_step = 0;
  int last_step = 4;
  std::string load_from = {};  // a folder
  std::string save_to = {};
  engine::OptimizerFactory optimizer = {};
  Prepare prepare = {};
  engine::SaveOptions save = {};
  engine::LoadOptions load = {};
  int save_after = -1;  // steps; by default at the end
};

// Everything of an engine that a checkpoint must bring back, whole.
struct Contents {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, double> numbers;
};

Contents contents_of(Engine& engine) {
  Contents contents;
  for (const shard::ParamSpec& param : engine.inside().sharded().plan().params) {
    contents.tensors[param.name] = engine.parameter(param.name);
    if (!param.trainable) continue;
    contents.tensors[param.name + "/master"] = engine.master(param.name);
    for (const std::string& name : engine.inside().sharded().settings().states.moment_names) {
      contents.tensors[param.name + "/" + name] = engine.state(param.name, name);
    }
  }
  const engine::Progress& progress = engine.progress();
  const auto add = [&contents](const char* name, auto value) {
    contents.numbers[name] = static_cast<double>(value);
  };
  add("steps", progress.steps);
  add("micro_steps", progress.micro_steps);
  add("skipped", progress.skipped);
  add("samples", progress.samples);
  add("loss_scale", engine.loss_scale());
  const std::vector<double> rates = engine.learning_rates();
  if (!rates.empty()) contents.numbers["lr"] = rates.front();
  return contents;
}

Contents run(const Run& how) {
  Contents result;
  std::mutex mutex;
  run_ranks(how.world, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, how.load_from.empty() ? 11 : 99);  // what is loaded must not be there already
    if (how.prepare) how.prepare(model);
    Engine engine(model, how.options, {.group = &group, .optimizer = how.optimizer});
    if (!how.load_from.empty()) {
      ASSERT_TRUE(engine.load_checkpoint(how.load_from, how.load).has_value());
    }
    const auto backwards = static_cast<int>(how.options.batch.accumulation_steps);
    for (int micro = how.first_step * backwards; micro < how.last_step * backwards; ++micro) {
      const auto seed = static_cast<std::uint64_t>(1000 + 10 * micro + group.rank());
      const at::ScalarType type = model->head->weight.scalar_type();
      engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), type));
      const bool boundary = engine.step().boundary;
      if (boundary && engine.progress().steps == how.save_after) {
        engine.save_checkpoint(how.save_to, how.save);
      }
    }
    if (!how.save_to.empty() && how.save_after < 0) engine.save_checkpoint(how.save_to, how.save);
    engine.finish_saves();
    Contents mine = contents_of(engine);
    const std::lock_guard lock(mutex);
    if (group.rank() == 0) result = std::move(mine);
  });
  return result;
}

void expect_same(const Contents& a, const Contents& b, const std::string& what) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size()) << what;
  for (const auto& [name, tensor] : a.tensors) {
    EXPECT_TRUE(tensor.equal(b.tensors.at(name))) << name << ", " << what;
  }
  EXPECT_EQ(a.numbers, b.numbers) << what;
}

engine::Options options_of(int stage, DType params) {
  engine::Options options = fp32_options(stage);
  options.precision.params = params;
  options.precision.loss_scale.initial_scale_power = 20;  // overflows at first, so it moves
  options.precision.loss_scale.window_steps = 2;
  options.precision.loss_scale.hysteresis = 1;
  options.batch.accumulation_steps = 2;
  options.gradient_clipping = 1.0;
  options.schedule = schedule::WarmupLr{.max_lr = {1e-2}, .num_steps = 3};
  return options;
}

TEST(Resume, IsBitForBitTheUninterruptedRunAtEveryStageAndPrecision) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const DType params : {DType::fp32, DType::bf16, DType::fp16}) {
      const TempFolder folder;
      const engine::Options options = options_of(stage, params);
      const Contents whole = run({.options = options});
      run({.options = options, .last_step = 2, .save_to = folder.path()});
      const Contents resumed =
          run({.options = options, .first_step = 2, .load_from = folder.path()});
      expect_same(whole, resumed, fmt::format("stage {} {}", stage, name(params)));
    }
  }
}

TEST(Resume, WorksForEveryOptimizer) {
  using optim::Kind;
  for (const Kind kind : {Kind::adam, Kind::sgd, Kind::lion, Kind::adagrad, Kind::lamb}) {
    const TempFolder folder;
    engine::Options options = options_of(2, DType::bf16);
    options.optimizer = optim::Options{.kind = kind, .hyper = optim::default_hyper_params(kind)};
    options.optimizer->hyper.momentum = kind == Kind::sgd ? 0.9 : 0;
    const Contents whole = run({.options = options});
    run({.options = options, .last_step = 2, .save_to = folder.path()});
    const Contents resumed = run({.options = options, .first_step = 2, .load_from = folder.path()});
    expect_same(whole, resumed, std::string(name(kind)));
  }
}

TEST(Resume, WorksForLibtorchsOptimizers) {
  const std::vector<std::pair<std::string, engine::OptimizerFactory>> factories = {
      {"adamw",
       [](std::vector<at::Tensor> pieces) {
         return std::make_unique<torch::optim::AdamW>(std::move(pieces),
                                                      torch::optim::AdamWOptions(1e-2));
       }},
      {"sgd", [](std::vector<at::Tensor> pieces) {
         return std::make_unique<torch::optim::SGD>(std::move(pieces),
                                                    torch::optim::SGDOptions(1e-2).momentum(0.9));
       }}};
  for (const auto& [kind, factory] : factories) {
    const TempFolder folder;
    engine::Options options = options_of(3, DType::bf16);
    options.optimizer.reset();
    options.schedule.reset();
    const Contents whole = run({.options = options, .optimizer = factory});
    run({.options = options, .last_step = 2, .save_to = folder.path(), .optimizer = factory});
    const Contents resumed = run(
        {.options = options, .first_step = 2, .load_from = folder.path(), .optimizer = factory});
    expect_same(whole, resumed, kind);
  }
}

TEST(Resume, TakesTheNewestOfSeveralAndKeepsAsManyAsAsked) {
  const TempFolder folder;
  const engine::Options options = options_of(3, DType::fp32);
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 11);
    Engine engine(model, options, {.group = &group});
    for (int micro = 0; micro < 8; ++micro) {
      plain_micro(engine, model, static_cast<std::uint64_t>(micro));
      if (!engine.step().boundary) continue;
      const engine::Saved saved = engine.save_checkpoint(folder.path(), {.keep_last = 2});
      EXPECT_EQ(saved.tag, fmt::format("global_step{}", engine.progress().steps));
    }
    EXPECT_EQ(engine.load_checkpoint(folder.path())->tag, "global_step4");
    EXPECT_EQ(engine.progress().steps, 4);
    EXPECT_EQ(engine.load_checkpoint(folder.path(), {.tag = "global_step3"})->tag, "global_step3");
    EXPECT_EQ(engine.progress().steps, 3) << "an engine that has trained loads too";
    EXPECT_THROW(engine.load_checkpoint(folder.path(), {.tag = "global_step1"}), IoError);
    EXPECT_EQ(engine.load_checkpoint(folder / "nothing"), std::nullopt);
  });
}

// Saved by `from`, loaded by `to`: every tensor is the same, converted where dtypes differ.
void expect_loads(const Run& from, const Run& to, const std::string& what) {
  const TempFolder folder;
  Run saving = from;
  saving.save_to = folder.path();
  saving.last_step = 2;
  const Contents saved = run(saving);
  Run loading = to;
  loading.load_from = folder.path();
  loading.first_step = loading.last_step = 2;
  const Contents loaded = run(loading);
  for (const auto& [name, tensor] : saved.tensors) {
    const at::Tensor got = loaded.tensors.at(name);
    const bool is_param = name.find('/') == std::string::npos;
    const at::Tensor& source = is_param && saved.tensors.contains(name + "/master")
                                   ? saved.tensors.at(name + "/master")
                                   : tensor;
    EXPECT_TRUE(got.equal(source.to(got.scalar_type()))) << name << ", " << what;
  }
}

TEST(Reshard, AnyStageAndNumberOfRanksLoadsIntoAnyOther) {
  const std::vector<std::pair<int, int>> layouts = {{0, 1}, {0, 3}, {1, 2}, {2, 3}, {3, 1}, {3, 4}};
  for (const auto& [from_stage, from_world] : layouts) {
    for (const auto& [to_stage, to_world] : layouts) {
      expect_loads({.world = from_world, .options = options_of(from_stage, DType::bf16)},
                   {.world = to_world, .options = options_of(to_stage, DType::bf16)},
                   fmt::format("stage {} on {} into stage {} on {}", from_stage, from_world,
                               to_stage, to_world));
    }
  }
}

TEST(Reshard, AnyPrecisionLoadsIntoAnyOther) {
  const DType all[] = {DType::fp32, DType::bf16, DType::fp16};
  for (const DType from : all) {
    for (const DType to : all) {
      expect_loads({.options = options_of(3, from)}, {.options = options_of(1, to)},
                   fmt::format("{} into {}", name(from), name(to)));
    }
  }
}

TEST(Reshard, OtherUnitsAndThresholdsDoNotMatter) {
  engine::Options resident = options_of(3, DType::bf16);
  resident.shard.persistence_threshold_elems = 100'000;
  expect_loads({.world = 3, .options = options_of(3, DType::bf16)},
               {.world = 2, .options = resident}, "all resident");
}

void freeze_entry(SmallModel& model) {
  for (at::Tensor& param : model->entry->parameters()) param.set_requires_grad(false);
}

TEST(Contents, FrozenParametersAreStoredOnceAndCanBeLeftOut) {
  for (const int stage : {0, 3}) {
    const engine::Options options = options_of(stage, DType::bf16);
    expect_loads({.world = 3, .options = options, .prepare = freeze_entry},
                 {.world = 2, .options = options, .prepare = freeze_entry}, "frozen");
    const TempFolder folder;
    run({.options = options,
         .last_step = 2,
         .save_to = folder.path(),
         .prepare = freeze_entry,
         .save = {.exclude_frozen_parameters = true}});
    const auto load = [&](bool strict) {
      return run({.options = options,
                  .first_step = 2,
                  .last_step = 2,
                  .load_from = folder.path(),
                  .prepare = freeze_entry,
                  .load = {.load_module_strict = strict}});
    };
    EXPECT_NO_THROW(load(false));
    try {
      load(true);
      ADD_FAILURE() << "frozen weights are missing";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'entry.weight' is missing"));
    }
  }
}

TEST(Contents, WeightsAloneStartTheOptimizerAnew) {
  const TempFolder folder;
  const engine::Options options = options_of(3, DType::bf16);
  const Contents saved =
      run({.options = options, .save_to = folder.path(), .save = {.weights_only = true}});
  const Contents loaded = run({.options = options, .first_step = 4, .load_from = folder.path()});
  for (const auto& [name, tensor] : loaded.tensors) {
    if (name.ends_with("exp_avg")) {
      EXPECT_EQ(tensor.abs().max().item<float>(), 0);
    } else if (name.find('/') == std::string::npos) {
      EXPECT_TRUE(tensor.equal(saved.tensors.at(name))) << name;
    }
  }
}

TEST(Contents, ClientStateTensorsAndDataPositionComeBack) {
  const TempFolder folder;
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, options_of(1, DType::fp32), {.group = &group});
    engine::SaveOptions save{.client_state = R"({"epoch": 2})", .data = R"({"position": 77})"};
    if (group.rank() == 0) save.client_tensors = {{"ema", at::arange(5)}};
    engine.save_checkpoint(folder.path(), save);
    const auto loaded = engine.load_checkpoint(folder.path());
    EXPECT_EQ(loaded->client_state, R"({"epoch": 2})");
    EXPECT_EQ(loaded->data, R"({"position": 77})");
    ASSERT_EQ(loaded->client_tensors.size(), 1U);
    EXPECT_TRUE(loaded->client_tensors.front().tensor.equal(at::arange(5)));
  });
}

// Adds a layer, removes one, changes the shape of a third.
struct OtherModelImpl : torch::nn::Module {
  OtherModelImpl() {
    register_module("entry", torch::nn::Linear(kWidth, kWidth));
    register_module("head", torch::nn::Linear(kWidth, kClasses + 1));
    register_module("extra", torch::nn::Linear(2, 2));
  }
};
TORCH_MODULE(OtherModel);

TEST(Contents, EverythingThatDoesNotFitIsListedAtOnce) {
  const TempFolder folder;
  const engine::Options options = options_of(2, DType::fp32);
  run({.options = options, .last_step = 1, .save_to = folder.path()});
  run_ranks(2, [&](comm::Group& group) {
    OtherModel model;
    Engine engine(model, options, {.group = &group});
    try {
      engine.load_checkpoint(folder.path());
      ADD_FAILURE() << "another model's weights fit";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  testing::AllOf(HasSubstr("'extra.weight' is missing"),
                                 HasSubstr("'head.weight' has shape [7, 12] in the checkpoint, [8, "
                                           "12] in the model"),
                                 HasSubstr("'scale' is in the checkpoint but not"),
                                 HasSubstr("capstan checkpoint inspect"),
                                 // A weight that does not fit says it for its states.
                                 testing::Not(HasSubstr("'exp_avg' of 'extra.bias'"))));
    }
    EXPECT_THROW(engine.load_checkpoint(folder.path(), {.load_module_strict = false}), ConfigError)
        << "another model's states fit";
    const auto loaded = engine.load_checkpoint(
        folder.path(), {.load_module_strict = false, .load_optimizer_states = false});
    EXPECT_GT(loaded->skipped.size(), 4U);
  });
}

// One tensor under two names.
struct TiedModelImpl : torch::nn::Module {
  TiedModelImpl() {
    const at::Tensor weight = register_parameter("first", torch::randn({kWidth, kWidth}));
    auto inner = register_module("inner", std::make_shared<torch::nn::Module>());
    inner->register_parameter("second", weight);
  }
};
TORCH_MODULE(TiedModel);

TEST(Contents, TiedParametersAreStoredOnceWithTheirAlias) {
  const TempFolder folder;
  run_ranks(2, [&](comm::Group& group) {
    TiedModel model;
    Engine engine(model, options_of(3, DType::fp32), {.group = &group});
    const at::Tensor value = engine.parameter("first");
    const checkpoint::Index index =
        checkpoint::read_index(engine.save_checkpoint(folder.path()).folder);
    EXPECT_EQ(index.find("model")->tensors.size(), 1U);
    EXPECT_EQ(index.state.aliases, (std::map<std::string, std::string>{{"inner.second", "first"}}));
    engine.set_parameter("first", at::zeros({kWidth, kWidth}));
    engine.load_checkpoint(folder.path());
    EXPECT_TRUE(engine.parameter("first").equal(value));
  });
}

TEST(Contents, GroupsAreToldWithTheirParametersAndNumbers) {
  const TempFolder folder;
  engine::Options options = options_of(2, DType::bf16);
  options.optimizer->groups = {{{"*.bias"}, {.lr = 0.5}}};
  run({.options = options, .last_step = 0, .save_to = folder.path()});
  const auto groups = checkpoint::read_index(folder / "global_step0").state.param_groups;
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].hyper.at("lr"), 1e-2);
  EXPECT_THAT(groups[0].params, testing::Each(testing::Not(testing::EndsWith(".bias"))));
  EXPECT_EQ(groups[1].hyper.at("lr"), 0.5);
  EXPECT_THAT(groups[1].params, testing::Each(testing::EndsWith(".bias")));
}

TEST(Errors, OnOneRankAreThrownByAllAndTrainingGoesOn) {
  const TempFolder folder;
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 11);
    Engine engine(model, options_of(3, DType::fp32), {.group = &group});
    EXPECT_THROW(engine.save_checkpoint("/proc/nowhere"), IoError);
    EXPECT_THROW(engine.save_checkpoint(folder.path(), {.tag = "a/b"}), ConfigError);
    for (int micro = 0; micro < 2; ++micro) {
      plain_micro(engine, model, 5);
      engine.step();
    }
    EXPECT_EQ(engine.save_checkpoint(folder.path()).tag, "global_step1");
  });
}

TEST(BackgroundSave, HoldsTheMomentOfItsCallWhileTrainingGoesOn) {
  using store::Placement;
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::int64_t snapshot_bytes : {std::int64_t{1} << 20, std::int64_t{8192}}) {
      for (const Placement optimizer : {Placement::device, Placement::host}) {
        if (stage == 0 && optimizer == Placement::host) continue;  // there is no such thing
        const TempFolder folder;
        engine::Options options = options_of(stage, DType::bf16);
        options.checkpoint.snapshot_bytes = snapshot_bytes;  // the smaller one is too small
        options.store.optimizer.placement = optimizer;
        options.store.optimizer.late_updates = optimizer == Placement::host;
        const Contents whole = run({.options = options,
                                    .save_to = folder.path(),
                                    .save = {.asynchronous = true},
                                    .save_after = 2});
        const Contents resumed =
            run({.options = options, .first_step = 2, .load_from = folder.path()});
        expect_same(whole, resumed, fmt::format("stage {}, {} bytes aside", stage, snapshot_bytes));
      }
    }
  }
}

// The save of step 2 is still being written when the next backward updates, or a disk's buffers
// are used again.
TEST(BackgroundSave, HoldsItsMomentBesideEarlyUpdatesAndStatesOnADisk) {
  using store::EarlyUpdates;
  using store::Placement;
  for (const Placement optimizer : {Placement::host, Placement::nvme}) {
    for (const EarlyUpdates early : {EarlyUpdates::never, EarlyUpdates::always}) {
      if (optimizer == Placement::nvme && early == EarlyUpdates::always) continue;  // refused
      for (const Placement params : {Placement::device, Placement::nvme}) {
        const TempFolder folder;
        engine::Options options = options_of(3, DType::bf16);
        options.batch.accumulation_steps = 1;
        options.gradient_clipping = 0;
        options.store.optimizer.placement = optimizer;
        options.store.optimizer.late_updates = false;
        options.store.optimizer.early_updates = early;
        options.store.optimizer.nvme_paths = {folder / "states"};
        options.store.params.placement = params;
        options.store.params.nvme_paths = {folder / "params"};
        options.checkpoint.snapshot_bytes = std::int64_t{1} << 20;
        const Contents whole = run({.options = options,
                                    .save_to = folder / "saved",
                                    .save = {.asynchronous = true},
                                    .save_after = 2});
        const Contents resumed =
            run({.options = options, .first_step = 2, .load_from = folder / "saved"});
        expect_same(
            whole, resumed,
            fmt::format("optimizer {}, parameters {}, early {}", static_cast<int>(optimizer),
                        static_cast<int>(params), static_cast<int>(early)));
      }
    }
  }
}

TEST(BackgroundSave, WaitsForTheOneBeforeIt) {
  const TempFolder folder;
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, options_of(3, DType::fp32), {.group = &group});
    for (const char* const tag : {"first", "second", "third"}) {
      engine.save_checkpoint(folder.path(), {.tag = tag, .asynchronous = true, .keep_last = 2});
    }
    EXPECT_EQ(engine.load_checkpoint(folder.path())->tag, "third");
    EXPECT_FALSE(std::filesystem::exists(folder / "first"));
    EXPECT_TRUE(std::filesystem::exists(folder / "second" / "index.json"));
  });
}

TEST(BackgroundSave, ErrorsShowAtTheNextStepOnEveryRankAndTrainingGoesOn) {
  const TempFolder folder;
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 11);
    engine::Options options = options_of(2, DType::fp32);
    options.batch.accumulation_steps = 1;
    options.checkpoint.asynchronous = true;
    Engine engine(model, options, {.group = &group});
    // Fits as a name, but not with what an unfinished folder has in its name beside the tag.
    const engine::SaveOptions failing{.tag = std::string(240, 'x')};
    engine.save_checkpoint(folder.path(), failing);
    int errors = 0;
    while (errors == 0) {  // the background takes its time
      plain_micro(engine, model, 5);
      try {
        engine.step();
      } catch (const IoError& error) {
        EXPECT_THAT(error.what(), HasSubstr("File name too long"));
        ++errors;
      }
    }
    const std::int64_t steps = engine.progress().steps;
    EXPECT_TRUE(engine.step().applied);
    EXPECT_EQ(engine.progress().steps, steps + 1);
    engine.save_checkpoint(folder.path(), failing);
    EXPECT_THROW(engine.close(), IoError);
    engine.save_checkpoint(folder.path(), {.tag = "good"});
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "good" / "index.json"));  // its end was waited for
}

}  // namespace
}  // namespace capstan::test
