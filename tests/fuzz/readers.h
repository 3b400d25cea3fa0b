// Every reader of a file that may come from elsewhere, with inputs to start from.
#pragma once

#include <vector>

#include "tests/support/fuzz.h"

namespace capstan::test {

// pickle, zip, deepspeed, safetensors, index, weights-list
std::vector<FuzzReader> checkpoint_readers();
// hjson, tokenizer, tokens, metrics, hostfile, env-file
std::vector<FuzzReader> text_readers();

std::vector<FuzzReader> all_readers();

}  // namespace capstan::test
