// What agents and the launcher say to each other: one message per line, "verb number text".
//
//   agent to launcher   hello RANK TOKEN PORT ADDR      first rank; a free port; where it is
//                       out RANK LINE / err RANK LINE   one line of a rank's output
//                       outbar RANK LINE / errbar …     one that a carriage return ended
//                       ended RANK CODE SIGNAL RSS OOM LIMIT NAME
//                       failed RANK SENTENCE            the rank could not be started
//   launcher to agent   redraw 1 _                      a terminal shows it: send such lines apart
//                       start PORT ADDR                 where rank 0 listens; start the ranks
//                       signal N _                      pass it on
//                       stop N _                        begin to stop with that signal
#pragma once

#include <string>
#include <string_view>

#include "capstan/launch/ending.h"

namespace capstan::launch {

struct Message {
  std::string verb;
  int number = 0;
  std::string text;  // may hold any byte but a line feed

  bool operator==(const Message&) const = default;
};

// With the line feed that ends it; line feeds inside the text become blanks.
std::string encode(const Message& message);
// Throws CommError on a line that is no message.
Message decode(std::string_view line);

Message ended_message(int rank, const Ending& ending);
// Throws CommError on a text that ended_message() does not write.
Ending ending_from_message(const Message& message);

struct Hello {
  int first_rank = 0;
  std::string token;
  int port = 0;
  std::string addr;
};

Message hello_message(const Hello& hello);
Hello hello_from_message(const Message& message);  // throws CommError

}  // namespace capstan::launch
