#include "capstan/launch/shared_errors.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace capstan::launch {
namespace {

// Chosen: between its traceback and its end a Python program needs less, and who reads the
// traceback of one that goes on does not mind.
constexpr std::chrono::seconds kLongest{2};
constexpr std::size_t kMostLines = 1000;
constexpr std::size_t kMostTold = 16;

bool begins_error(std::string_view line) {
  constexpr std::array<std::string_view, 3> kBeginnings = {
      "Traceback (most recent call last):", "capstan: error: ", "capstan: internal error: "};
  line.remove_prefix(line.rfind('\r') + 1);  // it may stand behind a progress bar
  return std::ranges::any_of(kBeginnings, [&](std::string_view b) { return line.starts_with(b); });
}

}  // namespace

std::string_view without_own_rank(int rank, std::string_view line) {
  const std::string own = fmt::format("[rank{}]: ", rank);
  if (line.starts_with(own)) line.remove_prefix(own.size());
  // PyTorch writes it before empty lines too, and an editor may have cut off the blank.
  return line == std::string_view(own).substr(0, own.size() - 1) ? std::string_view() : line;
}

bool SharedErrors::hold(int rank, std::string_view line, char end) {
  auto held = held_.find(rank);
  if (held == held_.end()) {
    if (!begins_error(without_own_rank(rank, line))) return false;
    held = held_.emplace(rank, Held{{}, Clock::now() + kLongest}).first;
  }
  held->second.lines.push_back({std::string(line), end});
  if (held->second.lines.size() >= kMostLines) held->second.until = Clock::now();
  return true;
}

SharedErrors::Error SharedErrors::release(int rank) {
  const auto held = held_.find(rank);
  if (held == held_.end()) return {};
  Error error{std::move(held->second.lines), -1};
  held_.erase(held);
  std::string text;
  for (const Line& line : error.lines) {
    text.append(without_own_rank(rank, line.text)) += '\n';
  }
  const auto same = std::ranges::find_if(
      told_, [&](const Told& told) { return told.rank != rank && told.text == text; });
  if (same != told_.end()) {
    error.same_as = same->rank;
  } else {
    told_.push_back({rank, std::move(text)});
    if (told_.size() > kMostTold) told_.pop_front();
  }
  return error;
}

std::optional<SharedErrors::Clock::time_point> SharedErrors::next_due() const {
  std::optional<Clock::time_point> next;
  for (const auto& [rank, held] : held_) {
    next = std::min(next.value_or(held.until), held.until);
  }
  return next;
}

std::vector<int> SharedErrors::due() const {
  std::vector<int> ranks;
  for (const auto& [rank, held] : held_) {
    if (held.until <= Clock::now()) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> SharedErrors::held() const {
  std::vector<int> ranks;
  for (const auto& [rank, held] : held_) ranks.push_back(rank);
  return ranks;
}

}  // namespace capstan::launch
