// An engine over a model that lives in Python: owns what the C++ engine only refers to.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/comm/group.h"
#include "capstan/config/resolve.h"
#include "capstan/engine/engine.h"
#include "capstan/engine/engine_state.h"
#include "capstan/python/py_optimizer.h"
#include "capstan/shard/loose_shard.h"
#include "capstan/shard/module_tree.h"

namespace capstan::python {

// A model as capstan/model_view.py reads it.
struct PyModel {
  // name, class name, index of the parent, is a list, indices of its own parameters
  // Name, class, parent, is a list, is called, own parameters; see shard/module_tree.h.
  using Node = std::tuple<std::string, std::string, int, bool, bool, std::vector<int>>;
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<std::string> travel;  // dtype of gradients on the wire; "": as configured
  std::vector<at::Tensor> buffers;
  std::vector<std::pair<std::string, at::Tensor>> stored_buffers;  // those that checkpoints hold
  std::map<std::string, std::string> aliases;  // second name of a tied parameter -> its first
  // Of parameters that are parts of larger ones: name, the whole one's name in files, its shape,
  // and where in it the part begins and how long it is.
  using Slice = std::tuple<std::string, std::string, std::vector<std::int64_t>,
                           std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::vector<Slice> slices;
  std::vector<Node> tree;
  // Key, stages and own names of weights that stages of a pipeline share; see engine/parts.h.
  std::vector<std::tuple<std::string, std::vector<int>, std::vector<std::string>>> ties;
  std::vector<std::shared_ptr<shard::LooseShard>> loose;  // by parameter; empty: none is sharded
  std::optional<c10::Device> device;
};

// All ranks, and make_parts(lists of ranks) -> the group of the list that this rank is in.
struct PyRanks {
  std::shared_ptr<comm::Group> group;
  pybind11::object make_parts;
  pybind11::object make_monitors;  // see py_monitors.h
  engine::MeshOptions mesh = {};
};

// Threads: one caller at a time; needs no GIL but where a callable is called.
class PyEngine {
 public:
  PyEngine(const PyModel& model, const config::Resolved& config, PyRanks ranks,
           const PyOptimizer& optimizer, pybind11::object log);

  engine::Engine& engine() { return *engine_; }
  engine::EngineState& inside() { return engine_->inside(); }
  shard::ShardedModel& sharded() { return inside().sharded(); }

  // Name of each boundary, and whether anything must be gathered or waited for at its use.
  std::vector<std::pair<std::string, bool>> boundaries() const;
  // The tensors are replaced by those that the module should see.
  std::vector<at::Tensor> begin_forward(int boundary, std::vector<at::Tensor> inputs);
  void end_forward(std::vector<at::Tensor> outputs);
  void drop_forward();

  const shard::Unit& unit_of(int param);
  // Somebody reads a parameter through one of our modules: it is whole for the use that is open.
  void borrow(int param);
  // Returns when those that can be read as they are have the values of the last step.
  void await_updates(const std::vector<int>& params);
  void pin(const std::vector<int>& params);
  void unpin(const std::vector<int>& params);
  // How often values were changed through this object: by steps, writes and loads.
  std::int64_t changes() const { return changes_; }
  void note_change() { ++changes_; }
  // For the model to keep when this ends; see shard/loose_shard.h.
  std::vector<std::shared_ptr<shard::LooseShard>> leave_shards() {
    return shard::leave_shards(sharded(), peers_);
  }

 private:
  class Log;
  class Parts;

  std::int64_t changes_ = 0;
  std::vector<std::string> boundary_names_;
  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<comm::Group> peers_;  // of all ranks, those that shards are cut over
  std::shared_ptr<comm::GroupMaker> parts_;
  std::shared_ptr<Logger> log_;
  std::shared_ptr<engine::Engine> engine_;  // ends without the GIL
};

}  // namespace capstan::python
