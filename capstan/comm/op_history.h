// The order in which a rank issued its operations, so that two ranks can find where their orders
// part: for backends that move bytes between different operations of one size without a word.
// Private to comm.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "capstan/comm/op.h"

namespace capstan::comm {

// Threads: the owner guards it.
class OpHistory {
 public:
  void add(const OpFacts& facts);

  // The last full page as bytes, for a peer's compare(); empty before there is one.
  std::string last_page() const;
  // Why a peer's order is not ours; empty where the page agrees, or is not about operations that
  // are kept here.
  std::string compare(int our_rank, int their_rank, std::string_view their_page) const;

 private:
  static constexpr int kPageOps = 32;
  // As far as ranks may be apart in the seconds between two looks.
  static constexpr int kPages = 64;
  struct Page {
    std::int64_t end = 0;     // the number of the last operation in it; 0: unused
    std::uint64_t order = 0;  // of all operations up to there
    std::array<OpFacts, kPageOps> ops{};
  };
  Page& at(std::int64_t end) { return pages_[(end / kPageOps) % kPages]; }
  const Page& at(std::int64_t end) const { return pages_[(end / kPageOps) % kPages]; }

  std::array<Page, kPages> pages_{};
  std::array<OpFacts, kPageOps> open_{};
  std::uint64_t order_ = 0;
  std::int64_t last_ = 0;
};

}  // namespace capstan::comm
