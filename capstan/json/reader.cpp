#include "capstan/json/reader.h"

#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/json/literal.h"
#include "capstan/json/scanner.h"

namespace capstan::json {
namespace {

constexpr std::string_view kPunctuation = "{}[],:";

bool is_punctuation(char c) { return kPunctuation.find(c) != std::string_view::npos; }

// A byte of a key without quotes.
bool is_key_byte(char c) { return static_cast<unsigned char>(c) > ' ' && !is_punctuation(c); }

class Reader {
 public:
  Reader(std::string_view text, const std::string& source, int max_depth)
      : scan_(text, source), max_depth_(max_depth) {}

  Document read() {
    scan_.skip_blank();
    const Place start = scan_.place();
    const bool blank = scan_.at_end();
    Value root = root_without_braces() ? read_members('\0') : read_value();
    root.place = start;
    scan_.skip_blank();
    if (!scan_.at_end()) {
      scan_.fail(fmt::format("there is text after the end: {}", excerpt()), scan_.place(),
                 "remove it, or the closing bracket before it if that came too early");
    }
    return {std::move(root), scan_.source(), std::move(problems_), blank};
  }

 private:
  bool root_without_braces() const {
    return scan_.peek() != '{' && scan_.peek() != '[' && (scan_.at_end() || colon_follows());
  }

  // Whether a key and its colon come next. Works on a copy, so that nothing is consumed.
  bool colon_follows() const {
    Scanner ahead = scan_;
    if (ahead.peek() == '"' || ahead.peek() == '\'') {
      const char quote = ahead.take();
      while (!ahead.at_end() && ahead.peek() != quote && ahead.peek() != '\n') ahead.skip(1);
      ahead.skip(1);
    } else {
      while (is_key_byte(ahead.peek())) ahead.skip(1);
    }
    ahead.skip_spaces();
    return ahead.peek() == ':';
  }

  Value read_value() {
    const Place start = scan_.place();
    Value value = read_value_at(start);
    value.place = start;
    return value;
  }

  Value read_value_at(Place start) {
    switch (scan_.peek()) {
      case '{':
        return nested('{', '}');
      case '[':
        if (const std::string_view text = placeholder(); !text.empty())
          return skip_placeholder(text);
        return nested('[', ']');
      case '"':
      case '\'':
        return Value(read_quoted(scan_, [this] { return open_keys(); }));
      default:
        break;
    }
    if (scan_.at_end()) fail_cut_off("a value is missing at the end of the text", start);
    if (is_punctuation(scan_.peek())) {
      scan_.fail(fmt::format("'{}' was found where a value should be", scan_.peek()), start,
                 "write the value before it, or remove what has no value");
    }
    Value value = read_unquoted(scan_);
    if (!value.quoted) remember_swallowed(*value.text(), start);
    return value;
  }

  Value nested(char open, char close) {
    const Place opened = scan_.place();
    if (++depth_ > max_depth_) {
      scan_.fail(fmt::format("nested deeper than {} levels", max_depth_), opened,
                 "flatten it; no configuration key is nested that deep");
    }
    scan_.skip(1);
    open_.push_back({.what = open, .place = opened, .key = key_});
    Value value = open == '{' ? read_members(close) : read_items(close);
    open_.pop_back();
    --depth_;
    return value;
  }

  Value read_items(char close) {
    Array items;
    scan_.skip_blank();
    while (scan_.peek() != close) {
      if (scan_.at_end()) fail_cut_off("the text ends inside a list", scan_.place());
      if (scan_.peek() == '}') fail_mismatch(close);
      items.push_back(read_value());
      skip_comma();
    }
    scan_.skip(1);
    return Value(std::move(items));
  }

  // Up to `close`, or to the end of the text when `close` is '\0' (a root without braces).
  Value read_members(char close) {
    Object members;
    LineOfKey seen;
    scan_.skip_blank();
    while (close == '\0' ? !scan_.at_end() : scan_.peek() != close || scan_.at_end()) {
      if (scan_.at_end()) fail_cut_off("the text ends inside an object", scan_.place());
      if (scan_.peek() == '}' || scan_.peek() == ']') fail_mismatch(close);
      const Place place = scan_.place();
      std::string key = read_key();
      key_ = key;
      Member member{.key = std::move(key), .value = read_value(), .place = place};
      add(members, std::move(member), seen);
      skip_comma();
    }
    if (close != '\0') scan_.skip(1);
    return Value(std::move(members));
  }

  using LineOfKey = std::unordered_map<std::string, int>;

  void add(Object& members, Member member, LineOfKey& seen) {
    const auto [first, is_new] = seen.emplace(member.key, member.place.line);
    if (is_new) {
      members.push_back(std::move(member));
      return;
    }
    problems_.push_back({.what = fmt::format("\"{}\" is given twice; the first is on line {}",
                                             quote_for_message(member.key), first->second),
                         .where = scan_.where(member.place),
                         .fix = "keep one of the two"});
  }

  std::string read_key() {
    const Place start = scan_.place();
    std::string key;
    if (scan_.peek() == '"' || scan_.peek() == '\'') {
      key = read_quoted(scan_, [this] { return open_keys(); });
    } else {
      while (is_key_byte(scan_.peek())) key += scan_.take();
      if (key.empty()) {
        scan_.fail(fmt::format("expected a key here, found {}", excerpt()), start,
                   "write \"key\": value; one comma between two members is enough");
      }
    }
    scan_.skip_blank();
    if (scan_.at_end()) {
      fail_cut_off(fmt::format("the text ends after \"{}\"", key), start);
    }
    if (scan_.peek() != ':') {
      scan_.fail(fmt::format("there is no ':' after \"{}\"", key), scan_.place(),
                 fmt::format("write \"{}\": followed by its value", key));
    }
    scan_.skip(1);
    scan_.skip_blank();
    return key;
  }

  void skip_comma() {
    scan_.skip_blank();
    if (scan_.peek() != ',') return;
    scan_.skip(1);
    scan_.skip_blank();
  }

  // The text of a documentation's placeholder "[a|b|c]" that starts here, else empty.
  std::string_view placeholder() const {
    const std::string_view rest = scan_.rest();
    const std::size_t close = rest.find_first_of("]{}:,\"'\n", 1);
    if (close == std::string_view::npos || rest[close] != ']') return {};
    const std::string_view text = rest.substr(0, close + 1);
    return text.find('|') != std::string_view::npos ? text : std::string_view{};
  }

  Value skip_placeholder(std::string_view text) {
    const std::string choices(text.substr(1, text.size() - 2));
    const std::string first = split(choices, '|').front();
    problems_.push_back(
        {.what = fmt::format("[{}] is how documentation lists the choices, not a value", choices),
         .where = scan_.where(scan_.place()),
         .fix = fmt::format("write one of them, for example \"{}\": {}", key_, trim(first))});
    scan_.skip(text.size());
    return {};
  }

  // The keys that lead to the innermost open object: "zero_optimization.offload_optimizer".
  std::string open_keys() const {
    std::string path;
    for (const Open& open : open_) {
      if (open.key.empty()) continue;
      if (!path.empty()) path += '.';
      path += open.key;
    }
    return path;
  }

  void remember_swallowed(const std::string& text, Place place) {
    if (text.find_first_of("}],") != std::string::npos) swallowed_ = place;
  }

  [[noreturn]] void fail_cut_off(const std::string& what, Place place) const {
    std::string detail = what;
    if (!open_.empty()) {
      detail += fmt::format("; '{}' opened on line {}", open_.back().what, open_.back().place.line);
      if (!open_keys().empty()) detail += fmt::format(" ({})", open_keys());
      detail += " is not closed";
    }
    std::string fix = "the text looks cut off: copy all of it, or add what is missing";
    if (swallowed_.line != 0) {
      fix = fmt::format(
          "put the string on line {} in quotes: without them it runs to the end of its line, "
          "brackets "
          "and commas included",
          swallowed_.line);
    }
    scan_.fail(std::move(detail), place, std::move(fix));
  }

  [[noreturn]] void fail_mismatch(char expected) const {
    const std::string wanted =
        expected == '\0' ? "nothing is open here" : fmt::format("'{}' is expected", expected);
    scan_.fail(fmt::format("'{}' does not close anything: {}", scan_.peek(), wanted), scan_.place(),
               "remove it, or add the bracket that it should close");
  }

  std::string excerpt() const {
    const std::string_view line = scan_.rest().substr(0, scan_.rest().find('\n'));
    return fmt::format("\"{}\"", quote_for_message(line));
  }

  struct Open {
    char what;
    Place place;
    std::string key;
  };

  Scanner scan_;
  std::vector<ErrorInfo> problems_;
  std::vector<Open> open_;
  std::string key_;  // the last key read
  Place swallowed_;  // the last unquoted string that holds brackets or commas
  int max_depth_;
  int depth_ = 0;
};

}  // namespace

Document read_document(std::string_view text, const std::string& source, const ReadLimits& limits) {
  if (text.size() > limits.bytes) {
    throw ConfigError(
        {.what = fmt::format("the text is {} long, which is too much for a configuration",
                             format_bytes(static_cast<std::int64_t>(text.size()))),
         .where = source,
         .fix = "check that this is the right file"});
  }
  require_utf8(text, source);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return Reader(text, source, limits.depth).read();
}

Value read(std::string_view text, const std::string& source, const ReadLimits& limits) {
  Document document = read_document(text, source, limits);
  if (!document.problems.empty()) throw ConfigError(document.problems.front());
  return std::move(document.root);
}

}  // namespace capstan::json
