// bpe_encode TOKENIZER_JSON TEXTS OUT: TEXTS holds texts, each as a line with its length in bytes
// and then the bytes; OUT gets a line of tokens per text. Fails if decoding does not give the text
// back and the environment variable EXPECT_ROUND_TRIP is set.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "capstan/data/tokenizer.h"

namespace {

void run(char** argv) {
  const auto tokenizer = capstan::data::load_tokenizer(argv[1]);
  std::ifstream texts(argv[2], std::ios::binary);
  std::ofstream out(argv[3]);
  const bool round_trip = std::getenv("EXPECT_ROUND_TRIP") != nullptr;
  for (std::string line; std::getline(texts, line);) {
    std::string text(std::stoul(line), '\0');
    texts.read(text.data(), static_cast<std::streamsize>(text.size()));
    const auto tokens = tokenizer->encode(text);
    if (round_trip && tokenizer->decode(tokens) != text) {
      throw std::runtime_error("decoding does not give back: " + text);
    }
    for (const auto token : tokens) out << token << ' ';
    out << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw std::runtime_error("usage: bpe_encode TOKENIZER_JSON TEXTS OUT");
    run(argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bpe_encode: %s\n", error.what());
    return 1;
  }
}
