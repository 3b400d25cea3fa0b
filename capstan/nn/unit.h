// Unit<Block>: a module holder that marks a unit boundary in a C++ model: the parameters inside
// are gathered, reduced and released together. Without an engine it is just the module.
//
//   capstan::nn::Unit<Block> block{nullptr};             // Block or BlockImpl
//   block = register_module("block", nn::Unit<Block>(options));
//   y = block(x);                                        // or block->forward(x)
//   z = block.call(&BlockImpl::encode, x);               // any other method
//   y = module->as<nn::Unit<Block>>()->forward(x);       // from a ModuleList; as<Block>() would
//                                                        // call the plain forward, unseen
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "capstan/nn/observed_call.h"
#include "capstan/nn/unit_base.h"

namespace capstan::nn {

template <typename Method>
struct MethodType;
template <typename Result, typename Class, typename... Parameters>
struct MethodType<Result (Class::*)(Parameters...)> {
  using type = Result(Parameters...);
};
template <typename Result, typename Class, typename... Parameters>
struct MethodType<Result (Class::*)(Parameters...) const> {
  using type = Result(Parameters...);
};

// Forward's type where there is exactly one forward; void where it is overloaded or absent.
template <typename Block>
struct ForwardType {
  using type = void;
};
template <typename Block>
  requires requires { typename MethodType<decltype(&Block::forward)>::type; }
struct ForwardType<Block> {
  using type = typename MethodType<decltype(&Block::forward)>::type;
};

// Overloaded forward: each call is passed on with the types of its arguments.
template <typename Block, typename Forward>
class ObservedForward : public Block, public UnitBase {
 public:
  using Block::Block;

  template <typename... Arguments>
  auto forward(Arguments&&... arguments)
      -> decltype(std::declval<Block&>().Block::forward(std::forward<Arguments>(arguments)...)) {
    return observed_call(
        *this,
        [this](auto&&... value) -> decltype(std::declval<Block&>().Block::forward(
                                    std::forward<decltype(value)>(value)...)) {
          return Block::forward(std::forward<decltype(value)>(value)...);
        },
        std::forward<Arguments>(arguments)...);
  }
};

// One forward: ours has its very type, so that Sequential and AnyModule accept a unit, and it
// overrides a virtual one.
template <typename Block, typename Result, typename... Parameters>
class ObservedForward<Block, Result(Parameters...)> : public Block, public UnitBase {
 public:
  using Block::Block;

  Result forward(Parameters... parameters) {  // NOLINT(modernize-use-override): not all are virtual
    const auto call = [this](Parameters... values) -> Result {
      return Block::forward(std::forward<Parameters>(values)...);
    };
    return observed_call(*this, call, std::forward<Parameters>(parameters)...);
  }
};

// The module itself: it *is* a Block, so names of parameters are those of the plain model.
template <typename Block>
class UnitImpl final : public ObservedForward<Block, typename ForwardType<Block>::type> {
 public:
  using Base = ObservedForward<Block, typename ForwardType<Block>::type>;
  using Base::Base;

  torch::nn::Module& module() override { return *this; }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    std::shared_ptr<torch::nn::Module> copy = Block::clone(device);
    if constexpr (std::is_copy_assignable_v<Block> && std::is_copy_constructible_v<UnitImpl>) {
      // Block::clone makes a plain Block; take its members over into a unit.
      auto unit = std::make_shared<UnitImpl>(*this);
      static_cast<Block&>(*unit) = dynamic_cast<const Block&>(*copy);
      return unit;
    } else {
      return copy;
    }
  }
};

template <typename Block>
struct ImplOf {
  using type = Block;
};
template <typename Block>
  requires requires { typename Block::ContainedType; }
struct ImplOf<Block> {
  using type = typename Block::ContainedType;
};

template <typename Block>
class Unit : public torch::nn::ModuleHolder<UnitImpl<typename ImplOf<Block>::type>> {
 public:
  using Impl = typename ImplOf<Block>::type;
  using Base = torch::nn::ModuleHolder<UnitImpl<Impl>>;
  using Base::Base;

  // Accepts what Block's own forward accepts, default arguments included.
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments)
      -> decltype(std::declval<Impl&>().forward(std::forward<Arguments>(arguments)...)) {
    return call(
        [](Impl& block, auto&&... value) -> decltype(block.Impl::forward(
                                             std::forward<decltype(value)>(value)...)) {
          return block.Impl::forward(std::forward<decltype(value)>(value)...);
        },
        std::forward<Arguments>(arguments)...);
  }

  // Calls `function(block, arguments...)`, a method or a callable, as one use of the unit.
  template <typename Function, typename... Arguments>
  auto call(Function&& function, Arguments&&... arguments) {
    UnitImpl<Impl>& unit = *this->get();
    return observed_call(
        unit,
        [&unit,
         &function](auto&&... value) -> std::invoke_result_t<Function&, Impl&, decltype(value)...> {
          return std::invoke(function, static_cast<Impl&>(unit),
                             std::forward<decltype(value)>(value)...);
        },
        std::forward<Arguments>(arguments)...);
  }
};

}  // namespace capstan::nn
