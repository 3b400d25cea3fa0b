// What `capstan generate` can be told. Both programs read it: `capstan` to start ranks, and
// `capstan-engine` in each rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace capstan::cli::generate {

struct SearchArguments {
  std::int64_t max_new_tokens = 100;
  bool sample = false;       // draw; else the likeliest token, or beams
  double temperature = 1.0;  // lower: more likely, duller text
  std::int64_t top_k = 50;   // only the so many likeliest tokens are drawn from; 0: all
  double top_p = 1.0;        // only the likeliest that make up this probability are
  std::uint64_t seed = 1234;
  int beams = 1;
  double length_penalty = 1.0;           // above 0: longer texts are preferred
  std::string early_stopping = "false";  // false, true, never; as in Hugging Face
};

struct Arguments {
  int ranks = 0;       // 0: one per GPU; without GPUs one
  std::string config;  // a DeepSpeed-style JSON file; empty: default_config()
  std::string device = "auto";
  std::string model;      // a folder of checkpoints, one checkpoint, or weights of Hugging Face
  std::string tag;        // of the checkpoint; empty: the newest
  std::string tokenizer;  // empty: the model folder's, else bytes
  std::vector<std::string> prompts;  // empty: from prompt_file
  std::string prompt_file = "-";     // one prompt per line; -: stdin
  std::int64_t context = 0;          // the model looks at so many last tokens; 0: what it can
  int batch = 8;                     // prompts that each rank has in work at a time
  bool no_cache = false;             // every token looks at all before it anew
  bool json = false;                 // one JSON object per prompt
  SearchArguments search;
};

// The options of the subcommand; `arguments` must outlive `command`.
void add_options(CLI::App& command, Arguments& arguments);

// Where parameters live when no --config is given, as JSON text.
std::string default_config();

}  // namespace capstan::cli::generate
