#include "capstan/base/host_list.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan {
namespace {

// A cluster has fewer hosts than this; a typing mistake such as [1-99999999] has more.
constexpr int kMaxHosts = 1 << 20;

[[noreturn]] void fail_host_list(std::string_view text, std::string_view where,
                                 std::string_view problem) {
  throw ConfigError({.what = fmt::format("cannot read \"{}\": {}", text, problem),
                     .where = std::string(where),
                     .fix = "write hosts as node1,node2 or node[1-2], counts as 4 or 4(x2)"});
}

std::optional<int> parse_count(std::string_view digits) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) return {};
  return value;
}

// Pieces between commas that are outside brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view text) {
  std::vector<std::string_view> pieces;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']') --depth;
    if (text[i] == ',' && depth == 0) {
      pieces.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

// "08-10" or "7" -> numbers with the width of the first one.
std::vector<std::string> expand_range(std::string_view range, std::string_view text,
                                      std::string_view where) {
  const std::size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  const std::optional<int> from = parse_count(first);
  const std::optional<int> to = parse_count(last);
  if (!from || !to || *from > *to || *to - *from >= kMaxHosts) {
    fail_host_list(text, where, fmt::format("\"{}\" is not a range", range));
  }
  std::vector<std::string> numbers;
  for (int i = *from; i <= *to; ++i) numbers.push_back(fmt::format("{:0{}}", i, first.size()));
  return numbers;
}

// One piece may hold several brackets ("rack[1-2]node[1-4]"): the leftmost is expanded first.
void expand_piece(std::string_view piece, std::string_view text, std::string_view where,
                  std::vector<std::string>& hosts) {
  const std::size_t open = piece.find('[');
  if (open == std::string_view::npos) {
    if (piece.empty()) fail_host_list(text, where, "a host name is missing");
    if (piece.find(']') != std::string_view::npos)
      fail_host_list(text, where, "\"]\" without \"[\"");
    if (hosts.size() >= kMaxHosts) fail_host_list(text, where, "too many hosts");
    hosts.emplace_back(piece);
    return;
  }
  const std::size_t close = piece.find(']', open);
  if (close == std::string_view::npos) fail_host_list(text, where, "\"[\" without \"]\"");
  for (const std::string& range : split(piece.substr(open + 1, close - open - 1), ',')) {
    for (const std::string& number : expand_range(range, text, where)) {
      expand_piece(fmt::format("{}{}{}", piece.substr(0, open), number, piece.substr(close + 1)),
                   text, where, hosts);
    }
  }
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view text, std::string_view where) {
  std::vector<std::string> hosts;
  for (const std::string_view piece : split_outside_brackets(text)) {
    expand_piece(trim(piece), text, where, hosts);
  }
  return hosts;
}

std::vector<int> expand_counts(std::string_view text, std::string_view where) {
  std::vector<int> counts;
  for (const std::string& piece : split(text, ',')) {
    const std::string_view whole = trim(piece);
    const std::size_t open = whole.find("(x");
    const std::optional<int> count = parse_count(whole.substr(0, open));
    std::optional<int> times = 1;
    if (open != std::string_view::npos) {
      if (whole.back() != ')') fail_host_list(text, where, "\"(x\" without \")\"");
      times = parse_count(whole.substr(open + 2, whole.size() - open - 3));
    }
    if (!count || !times || *times > kMaxHosts) {
      fail_host_list(text, where, fmt::format("\"{}\" is not a count", whole));
    }
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  }
  return counts;
}

}  // namespace capstan
