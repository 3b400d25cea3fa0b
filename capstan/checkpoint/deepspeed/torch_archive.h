// A file of torch.save: a zip archive whose members are stored as they are, one of them a pickle,
// the others the bytes of tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "capstan/checkpoint/deepspeed/python_value.h"
#include "capstan/io/file.h"

namespace capstan::checkpoint {

// Where bytes lie on disk.
struct FileSpan {
  std::filesystem::path file;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

class TorchArchive {
 public:
  // Reads the directory and the pickle, no tensors. Throws IoError for anything else than such a
  // file, and as read_pickle() does.
  explicit TorchArchive(const std::filesystem::path& path);

  const PyValue& root() const { return *root_; }
  // The bytes of a contiguous tensor. Throws IoError when they are not in the file.
  FileSpan span_of(const PyTensor& tensor) const;

 private:
  struct Record {
    std::int64_t offset = 0;  // of its bytes in the file
    std::int64_t bytes = 0;
  };
  void read_directory(const io::File& file);
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  std::map<std::string, Record> records_;  // by name, without the archive's folder
  PyRef root_;
};

}  // namespace capstan::checkpoint
