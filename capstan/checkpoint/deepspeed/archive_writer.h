// Writes a file that torch.load reads: a pickle and the tensors it speaks of, streamed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "capstan/checkpoint/deepspeed/python_value.h"
#include "capstan/checkpoint/piece_writer.h"

namespace capstan::checkpoint {

// Collects tensors while the values that hold them are made, then writes everything.
class ArchiveWriter {
 public:
  // `fill` gives the tensor's bytes when the file is written.
  PyRef tensor(Element element, std::vector<std::int64_t> shape, Fill fill);
  // One fp32 number as a tensor, as torch's optimizers keep their step.
  PyRef scalar(float value);

  void write(const std::filesystem::path& path, const PyValue& root) const;

 private:
  struct Data {
    std::int64_t bytes = 0;
    Fill fill;
  };
  std::vector<Data> data_;
};

}  // namespace capstan::checkpoint
