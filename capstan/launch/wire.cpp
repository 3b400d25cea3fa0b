#include "capstan/launch/wire.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

[[noreturn]] void fail_message(std::string_view line) {
  constexpr std::size_t kShown = 120;
  throw CommError(
      {.what = fmt::format("\"{}\" is not a message of an agent", line.substr(0, kShown)),
       .where = "connection between launcher and agent",
       .fix = "keep shell start-up files silent for non-interactive logins, and use one "
              "version of capstan on all hosts"});
}

}  // namespace

std::string encode(const Message& message) {
  std::string line = fmt::format("{} {} {}\n", message.verb, message.number, message.text);
  std::replace(line.begin(), line.end() - 1, '\n', ' ');
  return line;
}

Message decode(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos) fail_message(line);
  Message message;
  message.verb = std::string(line.substr(0, first));
  const char* const begin = line.data() + first + 1;
  const char* const end = line.data() + second;
  const auto [stop, error] = std::from_chars(begin, end, message.number);
  if (error != std::errc{} || stop != end) fail_message(line);
  message.text = std::string(line.substr(second + 1));
  return message;
}

Message ended_message(int rank, const Ending& e) {
  return {"ended", rank,
          fmt::format("{} {} {} {} {} {}", e.exit_code, e.signal, e.peak_rss_bytes,
                      e.out_of_memory ? 1 : 0, e.memory_limit_bytes, e.memory_limit_name)};
}

Ending ending_from_message(const Message& message) {
  std::istringstream in(message.text);
  Ending e;
  in >> e.exit_code >> e.signal >> e.peak_rss_bytes >> e.out_of_memory >> e.memory_limit_bytes;
  if (!in) fail_message(message.text);
  in.get();
  std::getline(in, e.memory_limit_name);
  return e;
}

Message variable_message(const std::string& name, std::string_view value) {
  std::string text = name + "=";
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
    } else {
      text.append(c == '\\' ? 2 : 1, c);
    }
  }
  return {"env", 0, std::move(text)};
}

std::pair<std::string, std::string> variable_from_message(const Message& message) {
  const std::size_t equals = message.text.find('=');
  if (equals == std::string::npos) fail_message("env");  // what it is must not be told
  std::string value;
  for (std::size_t i = equals + 1; i < message.text.size(); ++i) {
    const bool escaped = message.text[i] == '\\' && i + 1 < message.text.size();
    if (escaped) ++i;
    value += escaped && message.text[i] == 'n' ? '\n' : message.text[i];
  }
  return {message.text.substr(0, equals), std::move(value)};
}

Message hello_message(const Hello& hello) {
  return {"hello", hello.first_rank, fmt::format("{} {} {}", hello.token, hello.port, hello.addr)};
}

Hello hello_from_message(const Message& message) {
  std::istringstream in(message.text);
  Hello hello{.first_rank = message.number, .token = {}, .port = 0, .addr = {}};
  if (message.verb != "hello" || !(in >> hello.token >> hello.port >> hello.addr)) {
    fail_message(message.verb + " " + message.text);
  }
  return hello;
}

}  // namespace capstan::launch
