// What agents and the launcher say to each other: one message per line, "verb number text".
//
//   agent to launcher   hello RANK TOKEN PORT ADDR      first rank; a free port; where it is
//                       out RANK LINE / err RANK LINE   one line of a rank's output
//                       outbar RANK LINE / errbar …     one that a carriage return ended
//                       ended RANK CODE SIGNAL RSS OOM LIMIT NAME
//                       failed RANK SENTENCE            the rank could not be started
//   launcher to agent   env 0 NAME=VALUE                a variable for every rank
//                       redraw 1 _                      a terminal shows it: send such lines apart
//                       start PORT ADDR                 where rank 0 listens; start the ranks
//                       signal N _                      pass it on
//                       stop N _                        begin to stop with that signal
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "capstan/launch/ending.h"
#include "capstan/launch/line_splitter.h"

namespace capstan::launch {

struct Message {
  std::string verb;
  int number = 0;
  std::string text;  // may hold any byte but a line feed

  bool operator==(const Message&) const = default;
};

// The longest that an agent sends: a line of a rank, its verb and its rank.
inline constexpr std::size_t kMaxMessageBytes = LineSplitter::kMaxLineBytes + 64;

// With the line feed that ends it; line feeds inside the text become blanks.
std::string encode(const Message& message);
// Throws CommError on a line that is no message.
Message decode(std::string_view line);

Message ended_message(int rank, const Ending& ending);
// Throws CommError on a text that ended_message() does not write.
Ending ending_from_message(const Message& message);

// Any value: a line feed in it is sent as "\n", a backslash doubled.
Message variable_message(const std::string& name, std::string_view value);
// Throws CommError on a text that variable_message() does not write.
std::pair<std::string, std::string> variable_from_message(const Message& message);
// Linux starts no program with a variable that is longer; each byte of it may become two.
inline constexpr std::size_t kMaxVariableBytes = std::size_t{2} * (128 << 10);

struct Hello {
  int first_rank = 0;
  std::string token;
  int port = 0;
  std::string addr;
};

Message hello_message(const Hello& hello);
Hello hello_from_message(const Message& message);  // throws CommError

}  // namespace capstan::launch
