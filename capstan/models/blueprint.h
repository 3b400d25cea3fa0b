// A model on paper: what is known of it before it is made, whatever its kind. Needs no libtorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/models/tape.h"
#include "capstan/recompute/options.h"

namespace capstan::models {

// What every language model has.
struct Sizes {
  std::int64_t vocab = 0;    // as in files
  std::int64_t context = 0;  // longest sequence, in tokens
  std::int64_t width = 0;    // of the residual stream
  std::int64_t layers = 0;
  std::int64_t heads = 0;
};

// What one stage of a pipeline has: some blocks, and at the ends of the model the embeddings and
// the output layer.
struct BlockRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool embeddings = false;
  bool output = false;
  bool operator==(const BlockRange&) const = default;
};

// What a program decides; what is unset stays as it is.
struct Changes {
  std::optional<std::int64_t> vocab;
  std::optional<std::int64_t> context;
  std::optional<std::int64_t> width;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> heads;
  std::optional<double> dropout;
  std::optional<std::uint64_t> seed;  // of the initial weights
  // Until they are loaded, weights are zeros that take no memory.
  std::optional<bool> weights_loaded_later;
  std::optional<recompute::Options> recompute;
  std::optional<BlockRange> part;  // the model is a stage of a pipeline
};

// What a pass does beside matrix products and attention.
struct Moved {
  double forward = 0;  // bytes that element-wise operations read and write for each token
  double backward = 0;
  double operations_forward = 0;  // of all kinds in a pass, each with the delay of a start
  double operations_backward = 0;
  double blocks = 1;  // of a forward's time, the share of the blocks
};

// How weight files name the tensors of a model.
struct FileNames {
  std::string root;    // what names begin with; some published files leave it out: "transformer."
  std::string blocks;  // what follows for the blocks, before their number: "h."
  std::map<std::string, std::string> tied;  // second name of a tensor in some files -> its first

  std::string block(std::int64_t index) const { return root + blocks + std::to_string(index); }
};

// A size under its key in config.json, and the option of `capstan train` that sets it.
struct ChosenSize {
  std::string key;
  std::string option;
  std::int64_t value = 0;
};

// The same, and the tensor whose dimension shows it; an empty one: the number of blocks does.
struct WeightSize {
  std::string key;
  std::int64_t value = 0;
  std::string tensor;  // without FileNames::root
  std::size_t dim = 0;
};

// Immutable.
class Blueprint {
 public:
  virtual ~Blueprint() = default;

  virtual std::string title() const = 0;  // of the kind, for messages: "GPT-2"
  virtual Sizes sizes() const = 0;
  virtual bool weights_loaded_later() const = 0;
  // Throws ConfigError when no model can be like that.
  virtual std::shared_ptr<const Blueprint> with(const Changes& changes) const = 0;

  // Trainable elements, tied weights once, without what exists inside only.
  virtual std::int64_t parameter_count() const = 0;
  // Forward and backward of one token in a sequence of `tokens`; nothing computed again is counted.
  virtual double flops_per_token(std::int64_t tokens) const = 0;

  // Of the embeddings, of each block and of the output layer: what they cost in a pass, compared
  // with each other. Empty: a model of this kind cannot be cut into stages.
  virtual std::vector<double> layer_costs(std::int64_t /*tokens*/) const { return {}; }

  virtual Moved moved_bytes(DType /*dtype*/) const { return {}; }
  // Parameters, units and the memory of a forward and backward. No parameters: not known of models
  // of this kind.
  virtual Paper on_paper(const TapeOptions& /*how*/) const { return {}; }

  virtual FileNames file_names() const = 0;
  // config.json, with which transformers' from_pretrained() builds the same model.
  virtual std::string config_json(std::int64_t end_of_text) const = 0;
  virtual std::vector<ChosenSize> chosen_sizes() const = 0;
  virtual std::vector<WeightSize> weight_sizes() const = 0;
};

// There is none of that name among `names`; says which is nearest.
ConfigError no_such_model(const std::string& name, const std::vector<std::string>& names);

}  // namespace capstan::models
