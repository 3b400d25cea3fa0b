#include "capstan/nn/unit.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "capstan/base/error.h"
#include "capstan/nn/unit_tree.h"

namespace capstan::nn {
namespace {

using ::testing::ElementsAre;

// Linear with a second way in, default arguments and mutable state in its arguments.
class BlockImpl : public torch::nn::Cloneable<BlockImpl> {
 public:
  explicit BlockImpl(int width) : width_(width) { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(width_, width_));
    bias = register_parameter("bias", at::zeros({width_}));
  }
  at::Tensor forward(const at::Tensor& x, double scale = 1.0) { return linear(x) * scale + bias; }
  std::tuple<at::Tensor, at::Tensor> encode(at::Tensor x, int& calls) {
    ++calls;
    return {linear(x), x};
  }
  void fill(std::vector<at::Tensor>& into) { into.push_back(bias + 1); }

  torch::nn::Linear linear{nullptr};
  at::Tensor bias;

 private:
  int width_;
};
TORCH_MODULE(Block);

class OverloadedImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x + 1; }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x + y; }
};

class ThrowingImpl : public torch::nn::Module {
 public:
  at::Tensor forward(at::Tensor) { throw std::runtime_error("boom"); }
};

template <typename BlockHolder>
class ModelImpl : public torch::nn::Cloneable<ModelImpl<BlockHolder>> {
 public:
  ModelImpl() { reset(); }
  void reset() override {
    blocks = this->register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(BlockHolder(4));
    head = this->register_module("head", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = block->template as<BlockHolder>()->forward(x, 1.0);
    return head(x);
  }
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
};

class Recorder final : public UnitObserver {
 public:
  void before_forward(UnitBase&, std::span<at::Tensor* const> inputs) override {
    events.push_back("before " + std::to_string(inputs.size()));
    if (replace_input.defined()) *inputs[0] = replace_input;
  }
  void after_forward(UnitBase&, std::span<at::Tensor* const> outputs) override {
    events.push_back("after " + std::to_string(outputs.size()));
    if (add_to_output != 0) *outputs[0] = *outputs[0] + add_to_output;
  }
  void abandon_forward(UnitBase&) noexcept override { events.push_back("abandon"); }

  std::vector<std::string> events;
  at::Tensor replace_input;
  double add_to_output = 0;
};

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

TEST(Unit, IsJustTheModuleWithoutAnEngine) {
  Unit<Block> unit(4);
  const at::Tensor x = at::ones({2, 4});
  EXPECT_TRUE(at::equal(unit(x), unit->linear(x) + unit->bias));
  EXPECT_TRUE(at::equal(unit->forward(x, 2.0), unit(x, 2.0)));
}

TEST(Unit, TakesTheHolderOrTheModuleType) {
  static_assert(std::is_same_v<Unit<Block>::Impl, Unit<BlockImpl>::Impl>);
  Unit<Block> unit{nullptr};
  EXPECT_TRUE(unit.is_empty());
  unit = Unit<Block>(4);
  EXPECT_NE(unit->as<BlockImpl>(), nullptr);
}

TEST(Unit, AddsNoLevelToParameterNames) {
  const ModelImpl<Block> plain;
  const ModelImpl<Unit<Block>> marked;
  EXPECT_EQ(parameter_names(plain), parameter_names(marked));
  EXPECT_EQ(parameter_names(marked)[0], "blocks.0.bias");
}

TEST(Unit, TellsItsObserverBeforeAndAfterEachCall) {
  Unit<Block> unit(4);
  Recorder recorder;
  unit->set_observer(recorder);
  const at::Tensor x = at::ones({2, 4});
  unit(x);
  unit->forward(x, 1.0);
  EXPECT_THAT(recorder.events, ElementsAre("before 1", "after 1", "before 1", "after 1"));
  recorder.events.clear();
  int calls = 0;
  auto [hidden, same] = unit.call(&BlockImpl::encode, x, calls);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(same.is_same(x));
  unit.call([](BlockImpl& block) { block.bias.sum(); });
  EXPECT_THAT(recorder.events, ElementsAre("before 1", "after 2", "before 0", "after 0"));
}

TEST(Unit, IsObservedInsideAModuleList) {
  auto model = std::make_shared<ModelImpl<Unit<Block>>>();
  Recorder recorder;
  for (const NamedUnit& found : find_units(*model)) found.unit->set_observer(recorder);
  model->forward(at::ones({1, 4}));
  EXPECT_EQ(recorder.events.size(), 6U);
}

TEST(Unit, LetsTheObserverReplaceInputsAndOutputsWithoutTouchingTheCallers) {
  Unit<Block> unit(4);
  const at::Tensor plain = unit(at::zeros({1, 4}));
  Recorder recorder;
  recorder.replace_input = at::zeros({1, 4});
  recorder.add_to_output = 2;
  unit->set_observer(recorder);
  at::Tensor x = at::ones({1, 4});
  EXPECT_TRUE(at::equal(unit(x), plain + 2));
  EXPECT_TRUE(at::equal(unit->forward(x, 1.0), plain + 2));
  EXPECT_TRUE(at::equal(x, at::ones({1, 4})));
}

TEST(Unit, PassesMutableReferencesThrough) {
  Unit<Block> unit(4);
  Recorder recorder;
  unit->set_observer(recorder);
  std::vector<at::Tensor> filled;
  unit.call(&BlockImpl::fill, filled);
  EXPECT_EQ(filled.size(), 1U);
}

TEST(Unit, WorksWithOverloadedForward) {
  Unit<OverloadedImpl> unit;
  Recorder recorder;
  unit->set_observer(recorder);
  const at::Tensor x = at::ones({1});
  EXPECT_EQ(unit(x).item<float>(), 2);
  EXPECT_EQ(unit->forward(x, x).item<float>(), 2);
  EXPECT_THAT(recorder.events, ElementsAre("before 1", "after 1", "before 2", "after 1"));
}

TEST(Unit, ReportsAForwardThatThrew) {
  Unit<ThrowingImpl> unit;
  Recorder recorder;
  unit->set_observer(recorder);
  EXPECT_THROW(unit(at::ones({1})), std::runtime_error);
  EXPECT_THAT(recorder.events, ElementsAre("before 1", "abandon"));
}

TEST(Unit, FitsIntoSequential) {
  class LayerImpl : public torch::nn::Module {
   public:
    at::Tensor forward(const at::Tensor& x) { return x * 2; }
  };
  torch::nn::Sequential layers(Unit<LayerImpl>(), torch::nn::Linear(4, 4));
  layers->push_back(Unit<LayerImpl>());
  Recorder recorder;
  for (const NamedUnit& found : find_units(*layers)) found.unit->set_observer(recorder);
  layers->forward(at::ones({1, 4}));
  EXPECT_EQ(recorder.events.size(), 4U);
}

TEST(Unit, IsObservedThroughAPointerToAVirtualForward) {
  class LayerImpl : public torch::nn::Module {
   public:
    virtual at::Tensor forward(const at::Tensor& x) { return x * 2; }
  };
  Unit<LayerImpl> unit;
  Recorder recorder;
  unit->set_observer(recorder);
  unit->as<LayerImpl>()->forward(at::ones({1}));
  EXPECT_THAT(recorder.events, ElementsAre("before 1", "after 1"));
}

TEST(Unit, ClonesAsAUnitWithItsOwnParametersAndNoObserver) {
  Unit<Block> unit(4);
  Recorder recorder;
  unit->set_observer(recorder);
  const auto copy = unit->clone();
  auto* const copied = dynamic_cast<UnitBase*>(copy.get());
  ASSERT_NE(copied, nullptr);
  EXPECT_EQ(copied->observer(), nullptr);
  const auto original_parameters = unit->parameters();
  const auto copied_parameters = copy->parameters();
  for (std::size_t i = 0; i < original_parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(original_parameters[i], copied_parameters[i]));
    EXPECT_FALSE(original_parameters[i].is_alias_of(copied_parameters[i]));
  }
}

TEST(Unit, ClonesInsideAModel) {
  class TwoImpl : public torch::nn::Cloneable<TwoImpl> {
   public:
    TwoImpl() { reset(); }
    void reset() override { block = register_module("block", Unit<Block>(4)); }
    Unit<Block> block{nullptr};
  };
  auto model = std::make_shared<TwoImpl>();
  Recorder recorder;
  model->block->set_observer(recorder);
  const auto copy = std::dynamic_pointer_cast<TwoImpl>(model->clone());
  const at::Tensor x = at::ones({1, 4});
  const at::Tensor expected = model->block(x);
  recorder.events.clear();
  EXPECT_TRUE(at::equal(copy->block(x), expected));
  EXPECT_TRUE(recorder.events.empty());
  ASSERT_EQ(find_units(*copy).size(), 1U);
  EXPECT_EQ(find_units(*copy)[0].unit, static_cast<UnitBase*>(copy->block.get()));
}

TEST(Unit, BelongsToOneEngineAtATime) {
  Unit<Block> unit(4);
  Recorder first;
  Recorder second;
  unit->set_observer(first);
  unit->set_observer(first);
  EXPECT_THROW(unit->set_observer(second), ConfigError);
  unit->clear_observer(second);
  EXPECT_EQ(unit->observer(), &first);
  unit->clear_observer(first);
  unit->set_observer(second);
  EXPECT_EQ(unit->observer(), &second);
}

TEST(FindUnits, NamesThemInOrderAndOnce) {
  ModelImpl<Unit<Block>> model;
  model.register_module("again", model.blocks->ptr(1));
  std::vector<std::string> names;
  for (const NamedUnit& found : find_units(model)) names.push_back(found.name);
  EXPECT_THAT(names, ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  Unit<Block> root(2);
  ASSERT_EQ(find_units(*root).size(), 1U);
  EXPECT_EQ(find_units(*root)[0].name, "");
}

}  // namespace
}  // namespace capstan::nn
