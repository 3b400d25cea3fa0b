// What is said to an engine when it saves and loads, and what it answers: plain values, whichever
// door the engine was made through.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/checkpoint/save.h"
#include "capstan/layout/box.h"

namespace capstan::engine {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// How one parameter or buffer appears in files where that differs from the model.
struct StoredAs {
  std::string in_model;
  std::string in_files;              // empty: it is not stored
  std::optional<std::int64_t> rows;  // of dim 0 that are stored; those behind exist inside only
  // What of a larger tensor it is, that other ranks have the rest of; several parameters may be
  // parts of one.
  std::optional<layout::TensorSlice> slice = {};
};

// What a checkpoint holds of a model beside its parameters. Engines of C++ models find buffers and
// aliases by themselves.
struct ModelExtras {
  std::vector<NamedTensor> buffers;            // the same on every rank
  std::map<std::string, std::string> aliases;  // second name of a tied parameter -> its first
  std::vector<StoredAs> stored_as;
};

struct SaveOptions {
  std::string tag;                          // empty: global_step<N>
  std::string client_state = "{}";          // JSON text, an object; comes back with a load
  std::vector<NamedTensor> client_tensors;  // likewise; rank 0's are taken
  std::string data = "null";                // JSON text: where in the data the run stands
  std::string lr_scheduler = "null";        // JSON text: state of a schedule that is not ours
  // Of an optimizer that is not ours; the engine knows its own.
  std::vector<checkpoint::ParamGroup> param_groups;
  bool save_latest = true;                         // false: beside the run, never the newest
  bool exclude_frozen_parameters = false;          // only what is trained
  bool weights_only = false;                       // no masters, optimizer, RNG
  bool asynchronous = false;                       // written in the background; see finish_saves()
  int keep_last = 0;                               // > 0: older ones go after the commit
  std::vector<checkpoint::ExtraFile> extra_files;  // rank 0's are taken
};

struct Saved {
  std::string tag;
  std::filesystem::path folder;
  std::int64_t bytes = 0;  // of all tensors, over all ranks
};

struct LoadOptions {
  std::string tag;                       // empty: the newest complete one
  bool load_module_strict = true;        // false: missing, extra and misshapen weights are skipped
  bool load_optimizer_states = true;     // false: masters are made from the weights
  bool load_lr_scheduler_states = true;  // false: the schedule goes on where it stands
  // Weights (and masters from them), nothing else; also from a folder of Hugging Face's.
  bool load_module_only = false;
};

struct Loaded {
  std::string tag;
  std::filesystem::path folder;
  std::string client_state;  // JSON text
  std::vector<NamedTensor> client_tensors;
  std::string data;                  // JSON text
  std::string lr_scheduler;          // JSON text
  std::vector<std::string> skipped;  // lenient loads: what did not fit, one sentence each
};

}  // namespace capstan::engine
