#include "capstan/models/tape.h"

namespace capstan::models {

int TapeWriter::take(std::int64_t bytes) {
  const int block = static_cast<int>(blocks_.size());
  blocks_.push_back(bytes);
  held_ += bytes;
  events_.push_back({TapeEvent::Kind::take, block, bytes});
  return block;
}

void TapeWriter::give(int block) {
  const std::int64_t bytes = blocks_.at(static_cast<std::size_t>(block));
  held_ -= bytes;
  events_.push_back({TapeEvent::Kind::give, block, bytes});
}

}  // namespace capstan::models
