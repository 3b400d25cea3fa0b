// Homes on disks: of what every step changes, and of what is read many times between two changes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "capstan/base/log.h"
#include "capstan/io/ring.h"
#include "capstan/profile/recorder.h"
#include "capstan/store/home.h"
#include "capstan/store/stream_options.h"
#include "capstan/store/swap_files.h"
#include "capstan/store/swap_reader.h"
#include "capstan/store/swap_stream.h"

namespace capstan::store {

// Takes come in the order of ahead(), each once; what was taken is written behind it.
class StreamedHome final : public Home {
 public:
  // `ledger` and `recorder` must outlive this. Throws IoError as SwapFiles.
  StreamedHome(const SwapOptions& files, StreamOptions options, Ledger& ledger,
               profile::Recorder* recorder);

  Pool& pool() override { return *pool_; }
  bool in_place() const override { return false; }
  void ahead(std::vector<Spans> next) override;
  Taken take(const Spans& spans) override;
  void behind() override;
  void settle() override;
  void write_back(Which which) override { files_.write_back(which); }

 private:
  SwapFiles files_;
  std::unique_ptr<Pool> pool_;
  StreamOptions options_;
  profile::Recorder* recorder_;
  NullLogger silence_;
  std::optional<io::Ring> ring_;      // since something was streamed, like the next
  std::optional<SwapStream> stream_;  // last: uses what stands above
};

// Takes are single spans, in any order; they are not changed.
class ReadHome final : public Home {
 public:
  // `host` gives the memory that values are read to. All must outlive this.
  ReadHome(const SwapOptions& files, const ReadAhead& options, Pool& host, Ledger& ledger,
           profile::Recorder* recorder);

  Pool& pool() override { return *pool_; }
  bool in_place() const override { return false; }
  void ahead(std::vector<Spans> next) override;
  Taken take(const Spans& spans) override;
  void behind() override {}
  void settle() override { reader_.forget(); }
  void write_back(Which which) override { files_.write_back(which); }

 private:
  SwapFiles files_;
  std::unique_ptr<Pool> pool_;
  SwapReader reader_;
};

}  // namespace capstan::store
