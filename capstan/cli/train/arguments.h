// What `capstan train` can be told. Both programs read it: `capstan` to start ranks, and
// `capstan-engine` in each rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace capstan::cli::train {

struct ModelArguments {
  std::string name = "gpt2-nano";
  std::optional<std::int64_t> layers;  // each of these takes the place of the named model's
  std::optional<std::int64_t> width;
  std::optional<std::int64_t> heads;
  std::optional<std::int64_t> context;
  double dropout = 0.0;
};

struct DataArguments {
  std::string path = ".";    // a text file, a folder of text files, or a .bin of tokens
  std::string files;         // of a folder: patterns of names such as *.md,*.txt; empty: all text
  std::string tokenizer;     // tokenizer.json; empty: learnt from the text
  int token_bits = 16;       // of a .bin file
  std::int64_t vocab = 0;    // 0: 2^bits for a .bin file, kLearntVocab for text
  std::int64_t tokens = 0;   // per sequence; 0: the model's context
  double validation = 0.05;  // share of the tokens that is kept for validation
  bool no_shuffle = false;   // sequences come as they lie in the data
};

// Tokens of a vocabulary that is learnt from text: frequent words whole, all others in pieces.
inline constexpr std::int64_t kLearntVocab = 4096;

struct OutputArguments {
  std::string metrics;   // a JSON object per step goes here; empty: none
  std::string page;      // a folder for the run page; empty: none
  std::string curve;     // an HTML page with the loss curve; empty: none
  int log_every = 50;    // steps between lines where the output is no terminal
  int eval_every = 250;  // steps between validations; 0: only at the end
  int eval_batches = 8;
  int sample_tokens = 300;  // of text at the end; 0: none
  std::string prompt;       // empty: the text begins as documents do
};

// Where the figures of each step go; empty: nowhere. The page is drawn from them.
std::string metrics_path(const OutputArguments& output);

struct MeasureArguments {
  std::optional<std::int64_t> profile;  // steps before the one whose operations are reported
  std::string trace;                    // a folder for the timeline of some steps; empty: none
  std::string trace_steps;              // "3:5"; empty: as the configuration says
};

struct CheckpointArguments {
  std::string save;             // a folder; empty: nothing is saved
  std::int64_t save_every = 0;  // steps between saves; 0: only at the end
  std::string resume;           // a folder; empty: begin anew
  int keep_last = 0;            // older checkpoints go; 0: all stay
  bool new_run = false;         // begin anew although the folder to save to holds checkpoints
  bool wait_for_saves = false;  // training stops while a checkpoint is written
};

struct Arguments {
  int ranks = 0;              // 0: one per GPU; without GPUs two, or one on a single core
  std::optional<int> tensor;  // ranks that share a model; unset: as the configuration says
  std::string config;         // a DeepSpeed-style JSON file; empty: default_config()
  std::int64_t max_steps = 700;
  std::uint64_t seed = 1234;
  std::string device = "auto";  // auto, cpu, cuda
  bool deterministic = false;   // a GPU's sums in the same order in each run
  std::optional<int> pipe;  // stages that the model is cut into; unset: as the configuration says
  std::string schedule;     // of a pipeline; empty: as the configuration says
  int sequence = 0;         // ranks that share each sequence; 0: as the configuration says
  bool no_optimizer_step = false;  // measure forward, backward and reduction only
  bool no_communication = false;   // measure ranks side by side, each a world of its own
  ModelArguments model;
  DataArguments data;
  OutputArguments output;
  MeasureArguments measure;
  CheckpointArguments checkpoint;
};

// The options of the subcommand; `arguments` must outlive `command`.
void add_options(CLI::App& command, Arguments& arguments);

// What is trained with where no --config is given, as JSON text, on a pipeline of `stages`.
std::string default_config(int stages = 1);

}  // namespace capstan::cli::train
