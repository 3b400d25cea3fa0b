// A GPT whose ranks have parts of sequences against one that has them whole.
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/models/gpt.h"
#include "tests/support/run_ranks.h"

namespace capstan::models {
namespace {

constexpr std::int64_t kTokens = 16;

GptOptions shareable(bool recompute = false) {
  GptOptions options = gpt_by_name("gpt2-tiny");
  options.vocab = 300;
  options.layers = 2;
  options.heads = 4;
  options.dropout = 0;
  options.recompute.enabled = recompute;
  return options;
}

at::Tensor ids_of_test() { return at::arange(3 * kTokens).view({3, kTokens}).remainder(300); }

// Ranks count differently many of theirs.
at::Tensor targets_of_test() {
  at::Tensor targets = ids_of_test().roll(-1, 1).clone();
  targets.narrow(1, 0, 3).fill_(-100);
  return targets;
}

// The loss and all gradients; of a rank, its shares of them.
std::vector<at::Tensor> loss_and_gradients(Gpt model, const at::Tensor& ids,
                                           const at::Tensor& targets) {
  const at::Tensor loss = model(ids, targets);
  loss.backward();
  std::vector<at::Tensor> result = {loss.detach()};
  for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.grad());
  return result;
}

TEST(GptSequences, SharesOfTheLossAndOfGradientsAddUpToThoseOfTheWhole) {
  const std::vector<at::Tensor> whole =
      loss_and_gradients(Gpt(shareable()), ids_of_test(), targets_of_test());
  for (const bool recompute : {false, true}) {
    for (const int ranks : {1, 2, 4}) {
      run_ranks(ranks, [&](comm::Group& group) {
        Gpt model(shareable(recompute));
        ASSERT_TRUE(model->share_sequences({std::shared_ptr<void>(), &group}));
        const auto part = [&](const at::Tensor& all) { return all.chunk(ranks, 1)[group.rank()]; };
        std::vector<at::Tensor> ours =
            loss_and_gradients(model, part(ids_of_test()), part(targets_of_test()));
        for (std::size_t i = 0; i < ours.size(); ++i) {
          at::Tensor sum = ours[i].contiguous().view(-1).clone();
          group.all_reduce(sum).wait();
          EXPECT_TRUE(at::allclose(sum, whole[i].reshape(-1), 1e-5, 1e-6)) << i;
        }
      });
    }
  }
}

TEST(GptSequences, WhatFollowsIsAskedOfWholeSequences) {
  run_ranks(2, [](comm::Group& group) {
    Gpt whole(shareable());
    Gpt shared(shareable());
    shared->share_sequences({std::shared_ptr<void>(), &group});
    std::vector<Sequences> first(1);
    std::vector<Sequences> second(1);
    first[0].ids = second[0].ids = ids_of_test();
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(whole->next_logits(first)[0], shared->next_logits(second)[0]));
  });
}

TEST(GptSequences, HeadsThatCannotBeSharedAndSequencesThatAreTooLongAreRefused) {
  run_ranks(3, [](comm::Group& group) {
    Gpt model(shareable());
    try {
      model->share_sequences({std::shared_ptr<void>(), &group});
      ADD_FAILURE() << "4 heads on 3 ranks";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("sequence_parallel_size of 1, 2 or 4"));
    }
  });
  run_ranks(2, [](comm::Group& group) {
    Gpt model(shareable());
    model->share_sequences({std::shared_ptr<void>(), &group});
    const at::Tensor ids = at::zeros({1, model->options().context / 2 + 1}, at::kLong);
    EXPECT_THROW(model(ids, ids), ConfigError);
  });
}

}  // namespace
}  // namespace capstan::models
