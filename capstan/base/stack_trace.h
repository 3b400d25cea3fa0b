// Who called whom, for the report of a bug of ours.
#pragma once

#include <string>
#include <vector>

namespace capstan {

// Addresses only, so that taking one is cheap; their names are looked up when the text is asked
// for.
class StackTrace {
 public:
  // Of the calling thread, innermost first, from the caller of here() on.
  static StackTrace here();

  // One line per call, each begun with a newline: the function's name as far as the program exports
  // it, else the file and the offset in it, which addr2line understands.
  std::string to_text() const;

 private:
  std::vector<void*> calls_;
};

}  // namespace capstan
