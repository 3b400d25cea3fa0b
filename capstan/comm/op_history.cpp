#include "capstan/comm/op_history.h"

#include <cstring>
#include <type_traits>

#include <fmt/format.h>

namespace capstan::comm {

void OpHistory::add(const OpFacts& facts) {
  open_[static_cast<std::size_t>(last_ % kPageOps)] = facts;
  order_ = mix(order_, facts);
  if (++last_ % kPageOps == 0) at(last_) = {last_, order_, open_};
}

std::string OpHistory::last_page() const {
  static_assert(std::is_trivially_copyable_v<Page>);  // it travels as bytes
  const Page& page = at(last_ / kPageOps * kPageOps);
  if (page.end == 0) return {};
  return {reinterpret_cast<const char*>(&page), sizeof(Page)};
}

std::string OpHistory::compare(int our_rank, int their_rank, std::string_view their_page) const {
  Page theirs;
  if (their_page.size() != sizeof(Page)) return {};
  std::memcpy(&theirs, their_page.data(), sizeof(Page));
  const Page& ours = at(theirs.end);
  if (theirs.end == 0 || ours.end != theirs.end || ours.order == theirs.order) return {};
  for (std::size_t i = 0; i < kPageOps; ++i) {
    if (same_collective(ours.ops[i], theirs.ops[i])) continue;
    return mismatch_text(theirs.end - kPageOps + static_cast<std::int64_t>(i) + 1,
                         {our_rank, ours.ops[i]}, {their_rank, theirs.ops[i]});
  }
  return fmt::format("ranks {} and {} issued different collectives before #{}", our_rank,
                     their_rank, theirs.end - kPageOps + 1);
}

}  // namespace capstan::comm
