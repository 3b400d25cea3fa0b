// A language model as the programs use it, whatever its kind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "capstan/models/blueprint.h"
#include "capstan/models/sequences.h"
#include "capstan/models/stage.h"
#include "capstan/sequence_parallel/exchange.h"
#include "capstan/tensor_parallel/cut.h"

namespace capstan::comm {
class Group;
}

namespace capstan::models {

struct NamedWeight {
  std::string name;           // as weight files have it: "transformer.h.0.attn.c_attn.weight"
  at::Tensor weight;          // a view into its parameter, without what exists inside only
  std::string in_model = {};  // the parameter's own name; empty: the same
  // Of a model that is split over tensor ranks: what of the weight, as it would be inside of the
  // whole model, the parameter is. Unset: all of it.
  std::optional<tensor_parallel::WeightCut> cut = {};
  std::int64_t file_rows = 0;  // of the whole weight; set with `cut`

  const std::string& parameter() const { return in_model.empty() ? name : in_model; }
};

// Implemented by a torch::nn::Module whose parts are units.
class Model {
 public:
  virtual ~Model() = default;

  virtual const Blueprint& blueprint() const = 0;
  virtual torch::nn::Module& module() = 0;

  // Mean cross-entropy in fp32 of `targets` [B, T], the token that follows each of `ids`; entries
  // of -100 are left out.
  virtual at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) = 0;

  // What may follow each of these: logits of their last tokens, [B, vocab]. `seen` takes `ids` in.
  // Every unit is used once for all of them, and also for none: a rank without work of its own
  // takes part in the others' gathers.
  virtual std::vector<at::Tensor> next_logits(std::span<Sequences> all) = 0;

  virtual std::vector<NamedWeight> file_weights() = 0;

  // From here on forward() is given a part of each sequence, as many tokens on every rank of the
  // group, and returns our share of the mean over all of them. next_logits() is not changed.
  // False: models of this kind cannot do that. Throws ConfigError where this one cannot be shared
  // by so many.
  virtual bool share_sequences(const sequence_parallel::GroupPtr& /*group*/) { return false; }

  // From here on, in training, a block that computes x + f(x) gives x + scale f(x), and is not used
  // at all where its scale is 0. One scale per block; none: all are 1. Ranks that share a model or
  // its units give the same. False: models of this kind cannot do that.
  virtual bool scale_branches(std::vector<double> /*scales*/) { return false; }

  // Of a model that is split over tensor ranks: their group, which must outlive the graphs of this
  // model; before the first use.
  virtual void join(comm::Group& /*tensor_ranks*/) {}

  // Null: models of this kind cannot be cut into stages.
  virtual Stage* as_stage() { return nullptr; }
};

// As an engine takes it.
inline std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<Model>& model) {
  return {model, &model->module()};
}

}  // namespace capstan::models
