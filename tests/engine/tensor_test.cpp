// Tensor parallelism under the engine: a split model with ZeRO over the data axis, against the
// whole one.
#include <atomic>
#include <functional>
#include <map>
#include <optional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine.h"
#include "capstan/engine/engine_state.h"
#include "capstan/models/gpt.h"
#include "capstan/models/split_gpt.h"
#include "capstan/tensor_parallel/take.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thread_groups.h"

namespace capstan::test {
namespace {

using layout::Axis;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;  // by the names that files have

models::GptOptions tiny_gpt() {
  models::GptOptions options = models::gpt_by_name("gpt2-tiny");
  options.vocab = 150;
  options.layers = 2;
  options.width = 32;
  options.heads = 4;
  options.context = 16;
  options.dropout = 0;
  return options;
}

// Ranks of one run, and how they are cut.
struct Grid {
  int data = 1;
  int tensor = 1;  // 1: the plain model
  int ranks() const { return data * tensor; }
};

engine::Options split_options(int stage, const Grid& grid) {
  engine::Options options;
  options.optimizer =
      optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-2, .eps = 1e-3}};
  options.gradient_clipping = 0.5;  // every step is clipped
  options.shard.stage = stage;
  options.shard.persistence_threshold_elems = 40;  // norms and some biases
  options.shard.persistence_total_elems = 10'000;
  options.mesh.tensor = grid.tensor;
  return options;
}

engine::ModelExtras extras_of(models::Model& model) {
  engine::ModelExtras extras;
  for (const models::NamedWeight& weight : model.file_weights()) {
    engine::StoredAs stored{weight.parameter(), weight.name, weight.weight.size(0)};
    if (weight.cut) {
      stored.rows = weight.file_rows;
      stored.slice = layout::TensorSlice{weight.cut->shape, weight.cut->boxes().at(0)};
    }
    extras.stored_as.push_back(std::move(stored));
  }
  for (const auto& item : model.module().named_buffers()) {
    extras.stored_as.push_back({item.key(), "", {}});
  }
  return extras;
}

// One rank's engine and model.
struct Rank {
  Rank(comm::Group& group, ThreadGroups& maker, engine::Options options, const Grid& grid)
      : split(grid.tensor > 1), data_rank(group.rank() / grid.tensor) {
    std::shared_ptr<models::SplitGptImpl> parts;
    if (split) {
      parts = std::make_shared<models::SplitGptImpl>(
          tiny_gpt(), models::TensorRanks{{group.rank() % grid.tensor, grid.tensor}});
      model = parts;
    } else {
      model = std::make_shared<models::GptImpl>(tiny_gpt());
    }
    weights = model->file_weights();  // before there are placeholders
    for (models::NamedWeight& each : weights) each.weight.reset();
    engine.emplace(module_of(model), std::move(options),
                   engine::Parts{.group = {group, maker}, .extras = extras_of(*model)});
    if (split) parts->join(engine->mesh().over(Axis::tensor));
  }

  engine::StepReport step(int number) {
    // The data-parallel ranks see other data; tensor ranks the same.
    const at::Tensor ids =
        (at::arange(24).view({2, 12}) * 37 + 11 * number + 5 * data_rank).remainder(150);
    const at::Tensor loss = model->forward(ids, ids.roll(-1, 1));
    losses.push_back(loss.item<double>());
    engine->backward(loss);
    return engine->step();
  }

  bool split;
  int data_rank;
  std::shared_ptr<models::Model> model;
  std::vector<models::NamedWeight> weights;  // without values
  std::optional<Engine> engine;
  std::vector<double> losses;
};

void on_grid(const engine::Options& options, const Grid& grid,
             const std::function<void(Rank&)>& act) {
  ThreadMeetings meetings;
  run_ranks(grid.ranks(), [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    Rank rank(group, maker, options, grid);
    try {
      act(rank);
    } catch (const std::exception& error) {
      rank.engine->mesh().abort(error.what());
      throw;
    }
  });
}

// Whole masters of a plain model, without rows that exist inside only.
Tensors whole_masters(Rank& rank) {
  Tensors whole;
  for (const models::NamedWeight& weight : rank.weights) {
    whole[weight.name] = rank.engine->master(weight.name).clone();
  }
  whole["transformer.wte.weight"] = whole["transformer.wte.weight"].narrow(0, 0, 150);
  return whole;
}

using Read = std::function<at::Tensor(Rank&, const std::string& parameter)>;
at::Tensor read_master(Rank& rank, const std::string& name) { return rank.engine->master(name); }

// The largest difference between this rank's values and its part of `whole`.
double difference(Rank& rank, const Tensors& whole, const Read& read = read_master) {
  double largest = 0;
  for (const models::NamedWeight& weight : rank.weights) {
    at::Tensor mine = read(rank, weight.parameter());
    at::Tensor expected = whole.at(weight.name);
    if (weight.cut) {
      const auto cut = first_rows(*weight.cut, weight.file_rows);
      expected = cut.ranges.empty() ? expected.narrow(0, 0, 0) : take(expected, cut);
    }
    mine = mine.narrow(0, 0, expected.size(0));
    EXPECT_EQ(mine.sizes(), expected.sizes()) << weight.parameter();
    if (mine.numel() > 0) largest = std::max(largest, (mine - expected).abs().max().item<double>());
  }
  return largest;
}

struct Outcome {
  std::vector<std::vector<double>> losses;  // by data-parallel rank
  std::vector<double> norms;
  Tensors masters;
};

constexpr int kTensorSteps = 3;

Outcome plain_run(int stage, const Grid& grid) {
  Outcome outcome;
  outcome.losses.resize(static_cast<std::size_t>(grid.data));
  on_grid(split_options(stage, grid), grid, [&](Rank& rank) {
    std::vector<double> norms;
    for (int i = 0; i < kTensorSteps; ++i) norms.push_back(rank.step(i).grad_norm);
    outcome.losses[static_cast<std::size_t>(rank.data_rank)] = rank.losses;
    const Tensors masters = whole_masters(rank);
    if (rank.data_rank != 0) return;
    outcome.norms = norms;
    outcome.masters = masters;
  });
  return outcome;
}

TEST(SplitTraining, IsWithinRoundingOfTheWholeModelAtEveryStage) {
  const Outcome plain = plain_run(0, {.data = 2});
  for (const int stage : {0, 1, 2, 3}) {
    const Grid grid{.data = 2, .tensor = 2};
    on_grid(split_options(stage, grid), grid, [&](Rank& rank) {
      for (int i = 0; i < kTensorSteps; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double norm = rank.step(i).grad_norm;
        EXPECT_GT(norm, 0.5);  // so that gradients are clipped by it
        EXPECT_NEAR(norm, plain.norms[at], 2e-5 * norm) << "stage " << stage;
        EXPECT_NEAR(rank.losses[at], plain.losses[static_cast<std::size_t>(rank.data_rank)][at],
                    2e-5)
            << "stage " << stage;
      }
      EXPECT_LT(difference(rank, plain.masters), 2e-5) << "stage " << stage;
    });
  }
}

TEST(SplitTraining, TakesRanksThatDivideNothing) {
  const Outcome plain = plain_run(0, {});
  const Grid grid{.tensor = 3};
  on_grid(split_options(1, grid), grid, [&](Rank& rank) {
    for (int i = 0; i < kTensorSteps; ++i) {
      EXPECT_NEAR(rank.step(i).grad_norm, plain.norms[static_cast<std::size_t>(i)], 1e-4);
    }
    EXPECT_LT(difference(rank, plain.masters), 2e-5);
  });
}

TEST(SplitTraining, GivesTheSameBitsInEveryRunAndOnEveryRankThatHasACopy) {
  const Grid grid{.data = 2, .tensor = 2};
  const auto run = [&] {
    std::vector<Tensors> all(4);
    on_grid(split_options(2, grid), grid, [&](Rank& rank) {
      for (int i = 0; i < kTensorSteps; ++i) rank.step(i);
      Tensors& mine = all[static_cast<std::size_t>(rank.engine->group().rank())];
      for (const models::NamedWeight& weight : rank.weights) {
        mine[weight.parameter()] = rank.engine->master(weight.parameter()).clone();
      }
    });
    return all;
  };
  const std::vector<Tensors> first = run();
  const std::vector<Tensors> second = run();
  for (std::size_t rank = 0; rank < first.size(); ++rank) {
    for (const auto& [name, values] : first[rank]) {
      EXPECT_TRUE(values.equal(second[rank].at(name))) << name;
      const bool copy = name.find("ln_") != std::string::npos || name.ends_with("c_proj.bias") ||
                        name.ends_with("wpe.weight");
      if (copy) {
        EXPECT_TRUE(values.equal(first[0].at(name))) << name;
      }
    }
  }
}

TEST(SplitTraining, CountsEveryElementOnce) {
  const Grid grid{.data = 2, .tensor = 2};
  std::atomic<std::int64_t> counted = 0;
  on_grid(split_options(3, grid), grid, [&](Rank& rank) {
    const shard::ShardedModel& sharded = rank.engine->inside().sharded();
    for (std::size_t u = 0; u < sharded.plan().units.size(); ++u) {
      const shard::UnitGroups& groups = sharded.groups(static_cast<int>(u));
      if (!groups.counted) continue;
      for (const auto& piece : sharded.plan().units[u].layout.pieces(groups.cut->rank())) {
        counted += piece.in_slot.size();
      }
    }
  });
  const std::int64_t inside_only = (tiny_gpt().padded_vocab() - 150) * tiny_gpt().width;
  EXPECT_EQ(counted.load(), parameter_count(tiny_gpt()) + inside_only);
}

TEST(SplitCheckpoints, OfOneGridLoadIntoAnyOther) {
  const std::vector<Grid> grids = {{2, 1}, {2, 2}, {1, 4}};
  Tensors masters;
  Tensors moments;
  TempFolder plain;
  on_grid(split_options(2, grids[0]), grids[0], [&](Rank& rank) {
    for (int i = 0; i < 2; ++i) rank.step(i);
    rank.engine->save_checkpoint(plain.path());
    const Tensors mine = whole_masters(rank);
    Tensors first;
    for (const auto& [name, values] : mine)
      first[name] = rank.engine->state(name, "exp_avg").clone();
    first["transformer.wte.weight"] = first["transformer.wte.weight"].narrow(0, 0, 150);
    if (rank.data_rank != 0) return;
    masters = mine;
    moments = first;
  });
  const Read read_moment = [](Rank& rank, const std::string& name) {
    return rank.engine->state(name, "exp_avg");
  };
  const auto expect_loads = [&](const std::filesystem::path& folder, int stage, const Grid& grid) {
    on_grid(split_options(stage, grid), grid, [&](Rank& rank) {
      ASSERT_TRUE(rank.engine->load_checkpoint(folder).has_value());
      EXPECT_EQ(difference(rank, masters), 0);
      EXPECT_EQ(difference(rank, moments, read_moment), 0);
      rank.step(2);
    });
  };
  for (const Grid& from : grids) {
    TempFolder again;
    on_grid(split_options(3, from), from, [&](Rank& rank) {
      ASSERT_TRUE(rank.engine->load_checkpoint(plain.path()).has_value());
      rank.engine->save_checkpoint(again.path());
    });
    for (const Grid& to : grids) expect_loads(again.path(), 1, to);
  }
}

TEST(SplitTraining, RefusesLambWhoseNormsAreOfWholeTensors) {
  const Grid grid{.tensor = 2};
  engine::Options options = split_options(1, grid);
  options.optimizer->kind = optim::Kind::lamb;
  try {
    on_grid(options, grid, [](Rank&) {});
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("lamb needs norms of whole tensors"));
  }
}

}  // namespace
}  // namespace capstan::test
