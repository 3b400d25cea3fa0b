// bpe_learn VOCAB FOLDER OUT: OUT gets the tokenizer.json that is learnt from the folder's text.
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "capstan/data/learn_tokenizer.h"

int main(int argc, char** argv) {
  namespace data = capstan::data;
  try {
    if (argc != 4) throw std::runtime_error("usage: bpe_learn VOCAB FOLDER OUT");
    std::ofstream(argv[3]) << data::learn_tokenizer(data::read_text(argv[2]), std::stol(argv[1]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bpe_learn: %s\n", error.what());
    return 1;
  }
}
