// Tensors between two stages: any shapes and dtypes, several on their way, in the order of each
// direction.
#include "capstan/pipeline/channel.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/support/foreign_backend.h"
#include "tests/support/run_ranks.h"

namespace capstan::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Transfer output(int micro_batch) { return {.part = 0, .micro_batch = micro_batch}; }
Transfer gradient(int micro_batch) {
  return {.gradient = true, .part = 1, .micro_batch = micro_batch};
}

// Calls one of the two on each side.
using Act = std::function<void(Channel&)>;
void on_both(const Act& first, const Act& second, RunRanksOptions options = {}) {
  run_ranks(
      2,
      [&](comm::Group& group) {
        Channel channel(group, 1 - group.rank(), at::kCPU);
        (group.rank() == 0 ? first : second)(channel);
      },
      std::move(options));
}

// What a message brings to the other side.
Tensors sent_over(const Tensors& tensors) {
  Tensors arrived;
  on_both(
      [&](Channel& channel) {
        channel.send(output(0), tensors);
        channel.finish_sends();
      },
      [&](Channel& channel) {
        channel.receive(output(0));
        arrived = channel.take(output(0));
      });
  return arrived;
}

TEST(Channel, BringsEveryDtypeAndShape) {
  const at::Tensor values = at::arange(24).view({2, 3, 4});
  Tensors sent;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble,
        at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool}) {
    sent.push_back(values.to(dtype));
  }
  sent.push_back(at::ones({}));
  sent.push_back(at::empty({0, 5}));
  sent.push_back(values.transpose(0, 2));  // not contiguous
  sent.push_back(at::conj(values.to(at::kComplexFloat) * c10::complex<float>(1, 2)));
  sent.push_back(at::ones({1, 1, 1, 1, 1, 1, 1, 1, 1, 2}));
  const Tensors arrived = sent_over(sent);  // with a description of more than one part
  ASSERT_EQ(arrived.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(arrived[i].scalar_type(), sent[i].scalar_type());
    EXPECT_TRUE(at::equal(arrived[i], sent[i])) << i;
    EXPECT_TRUE(arrived[i].is_contiguous());
  }
}

TEST(Channel, BringsNothingAsNothing) {
  EXPECT_TRUE(sent_over({}).empty());
  const Tensors arrived = sent_over({at::Tensor(), at::ones({2}), at::Tensor()});
  ASSERT_EQ(arrived.size(), 3u);
  EXPECT_FALSE(arrived[0].defined());
  EXPECT_TRUE(at::equal(arrived[1], at::ones({2})));
  EXPECT_FALSE(arrived[2].defined());
}

TEST(Channel, WhatRequiresAGradientDoesSoOnTheOtherSideAsALeaf) {
  const at::Tensor weight = at::ones({3}).set_requires_grad(true);
  const Tensors arrived = sent_over({weight * 2, at::ones({3}), at::ones({3}, at::kLong)});
  EXPECT_TRUE(arrived.at(0).requires_grad());
  EXPECT_TRUE(arrived.at(0).is_leaf());
  EXPECT_FALSE(arrived.at(1).requires_grad());
  EXPECT_FALSE(arrived.at(2).requires_grad());
}

// Over a link on which everything takes a while, so that messages overtake nothing by luck.
RunRanksOptions slow_link() {
  RunRanksOptions options;
  options.loopback.delay = [](const comm::OpFacts&) { return std::chrono::microseconds(300); };
  return options;
}

TEST(Channel, SeveralAreOnTheirWayBothWaysWithAShapeEach) {
  for (const bool slow : {false, true}) {
    const auto act = [](bool first) {
      return [first](Channel& channel) {
        const auto ours = [&](int i) { return first ? output(i) : gradient(i); };
        const auto theirs = [&](int i) { return first ? gradient(i) : output(i); };
        const auto shape = [](int i, bool by_first) { return (i * 7) % 5 + (by_first ? 1 : 2); };
        constexpr int kMessages = 6;
        for (int i = 0; i < kMessages; ++i) channel.receive(theirs(i));
        for (int i = 0; i < kMessages; ++i) {
          channel.send(ours(i),
                       {at::full({shape(i, first), 3}, i), at::full({i}, i > 2, at::kBool)});
          channel.progress();
        }
        for (int i = 0; i < kMessages; ++i) {
          const Tensors arrived = channel.take(theirs(i));
          EXPECT_TRUE(at::equal(arrived.at(0), at::full({shape(i, !first), 3}, i)));
          EXPECT_TRUE(at::equal(arrived.at(1), at::full({i}, i > 2, at::kBool)));
        }
        channel.finish_sends();
      };
    };
    on_both(act(true), act(false), slow ? slow_link() : RunRanksOptions{});
  }
}

TEST(Channel, CanBeTakenInAnotherOrderThanItArrives) {
  on_both(
      [](Channel& channel) {
        for (int i = 0; i < 3; ++i) channel.send(output(i), {at::full({2}, i)});
        channel.finish_sends();
      },
      [](Channel& channel) {
        for (int i = 0; i < 3; ++i) channel.receive(output(i));
        for (const int i : {2, 0, 1}) {
          EXPECT_TRUE(at::equal(channel.take(output(i)).at(0), at::full({2}, i)));
        }
      });
}

TEST(Channel, LetsGoOfMemoryThatHasArrived) {
  on_both(
      [](Channel& channel) {
        const at::Tensor tensor = at::ones({100});
        channel.send(output(0), {tensor});
        EXPECT_GT(tensor.storage().use_count(), 1u);  // kept without us
        channel.receive(gradient(0));
        channel.take(gradient(0));  // the other side has got it
        channel.progress();
        EXPECT_EQ(tensor.storage().use_count(), 1u);
        channel.finish_send(output(0));  // nothing is left of it
      },
      [](Channel& channel) {
        channel.receive(output(0));
        channel.take(output(0));
        channel.send(gradient(0), {});
        channel.finish_sends();
      });
}

TEST(Channel, NamesWhatCameInPlaceOfWhatWasExpected) {
  try {
    on_both([](Channel& channel) { channel.send(output(4), {}); },
            [](Channel& channel) {
              channel.receive(output(3));
              channel.take(output(3));
            });
    FAIL() << "it was another message";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("the output of part 0, micro-batch 3 was expected from rank 0, but the "
                          "output of part 0, micro-batch 4 came"));
  }
}

TEST(Channel, RefusesWhatHasNoPlainMemory) {
  on_both(
      [](Channel& channel) {
        EXPECT_THROW(channel.send(output(0), {at::ones({2, 2}).to_sparse()}), ConfigError);
      },
      [](Channel&) {});
}

TEST(Channel, RefusesNccl) {
  const auto hub = comm::make_loopback_hub(2);
  comm::Group group(c10::make_intrusive<test::ForeignBackend>(comm::make_loopback(hub, 0), "nccl"));
  EXPECT_THROW(Channel(group, 1, at::kCPU), ConfigError);
}

TEST(Channel, NobodyTakesWhatNobodyReceives) {
  on_both([](Channel& channel) { EXPECT_THROW(channel.take(output(0)), InternalError); },
          [](Channel&) {});
}

}  // namespace
}  // namespace capstan::pipeline
