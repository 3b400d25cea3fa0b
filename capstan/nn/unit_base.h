// What every unit of a C++ model has besides its module: a slot for the one observer that is told
// about each call (an engine, usually). A model without an engine leaves the slot empty.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace capstan::nn {

class UnitBase;

// Told about each call of the units it was given to.
// Threads: called on the thread that runs forward; one call at a time per unit.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;

  // Before the module's forward (or other method) runs. `inputs` are the tensors among the
  // arguments; each place may be given another tensor, which the module then sees.
  virtual void before_forward(UnitBase& unit, std::span<at::Tensor* const> inputs) = 0;

  // After it returned; `outputs` are the tensors of the result, replaceable like the inputs.
  virtual void after_forward(UnitBase& unit, std::span<at::Tensor* const> outputs) = 0;

  // Instead of after_forward, when the module (or before_forward) threw.
  virtual void abandon_forward(UnitBase& unit) noexcept = 0;
};

// Found in a tree of modules by dynamic_cast: see unit_tree.h.
class UnitBase {
 public:
  UnitBase() = default;
  // A copy of a module is another module: it starts without an observer and keeps its own.
  UnitBase(const UnitBase&) {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): nothing is assigned
  UnitBase& operator=(const UnitBase&) { return *this; }
  virtual ~UnitBase() = default;

  virtual torch::nn::Module& module() = 0;

  UnitObserver* observer() const { return observer_; }

  // `observer` must outlive this unit or be taken away first. Throws ConfigError when another one
  // is there: a unit belongs to at most one engine.
  void set_observer(UnitObserver& observer);
  // Does nothing unless `observer` is the one that is set.
  void clear_observer(const UnitObserver& observer);

 private:
  UnitObserver* observer_ = nullptr;
};

}  // namespace capstan::nn
