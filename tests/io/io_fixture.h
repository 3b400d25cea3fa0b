// What the tests of io/ share: a folder, bytes that differ everywhere, and each path by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/base/log.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/file.h"
#include "capstan/io/open_queue.h"
#include "tests/support/temp_folder.h"

namespace capstan::io {

struct PathCase {
  IoPath path = IoPath::threads;
  bool direct = false;
};

inline std::ostream& operator<<(std::ostream& out, const PathCase& which) {
  return out << to_string(which.path) << (which.direct ? "_direct" : "_cached");
}

inline std::string case_name(const testing::TestParamInfo<PathCase>& info) {
  return to_string(info.param.path) + (info.param.direct ? "_direct" : "_cached");
}

inline const auto kAllPaths =
    testing::Values(PathCase{IoPath::io_uring, true}, PathCase{IoPath::io_uring, false},
                    PathCase{IoPath::threads, true}, PathCase{IoPath::threads, false});

class RecordingLogger final : public Logger {
 public:
  void log(LogLevel, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(text);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class IoTest : public testing::TestWithParam<PathCase> {
 protected:
  void SetUp() override {
    if (GetParam().path != IoPath::io_uring) return;
    try {
      (void)open_queue({}, IoPath::io_uring);
    } catch (const Error& error) {
      GTEST_SKIP() << "no io_uring here: " << error.what();
    }
  }

  File create(const std::string& name) {
    return File::open(folder_ / name, {.access = Access::create, .direct = GetParam().direct});
  }
  OpenedQueue queue(const Options& options = {}) { return open_queue(options, GetParam().path); }

  test::TempFolder folder_;
  RecordingLogger logger_;
};

// A byte that depends on its place, with a period that no block size divides.
inline std::byte pattern(std::int64_t at) {
  return static_cast<std::byte>((at * 31 + at / 251) & 0xff);
}

inline void fill_pattern(std::span<std::byte> bytes, std::int64_t first = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = pattern(first + static_cast<std::int64_t>(i));
  }
}

inline std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> chars((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto* data = reinterpret_cast<const std::byte*>(chars.data());
  return {data, data + chars.size()};
}

}  // namespace capstan::io
