#include "capstan/launch/line_splitter.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace capstan::launch {
namespace {

struct Collector {
  std::vector<std::string> lines;
  LineSplitter::Emit emit() {
    return [this](std::string_view line, char end) {
      lines.push_back(std::string(line) + (end == '\r' ? "<CR>" : ""));
    };
  }
};

TEST(LineSplitter, EmitsOnlyWholeLines) {
  for (std::size_t cut = 0; cut <= 12; ++cut) {
    const std::string text = "one\ntwo\n\nend";
    Collector got;
    LineSplitter splitter;
    splitter.feed(std::string_view(text).substr(0, cut), got.emit());
    splitter.feed(std::string_view(text).substr(cut), got.emit());
    EXPECT_EQ(got.lines, (std::vector<std::string>{"one", "two", ""})) << "cut at " << cut;
    splitter.finish(got.emit());
    EXPECT_EQ(got.lines.back(), "end");
  }
}

TEST(LineSplitter, KeepsEveryByte) {
  const std::string binary("a\0b\xff\x1b[0m\r", 9);
  Collector got;
  LineSplitter splitter;
  splitter.feed(binary + "\n", got.emit());
  splitter.finish(got.emit());
  EXPECT_EQ(got.lines, std::vector<std::string>{binary});
}

TEST(LineSplitter, CutsEndlessLines) {
  Collector got;
  LineSplitter splitter;
  const std::string text(3 * LineSplitter::kMaxLineBytes + 5, 'x');
  for (std::size_t at = 0; at < text.size(); at += 1000) {
    splitter.feed(std::string_view(text).substr(at, 1000), got.emit());
  }
  splitter.feed("\n", got.emit());
  std::string joined;
  for (const std::string& line : got.lines) {
    EXPECT_LE(line.size(), LineSplitter::kMaxLineBytes);
    joined += line;
  }
  EXPECT_EQ(joined, text);
}

TEST(LineSplitter, ShowsProgressBarsOnATerminalOnly) {
  const std::string text = "10%\r20%\rdone\r\nnext\n";
  Collector terminal;
  LineSplitter(/*split_at_return=*/true).feed(text, terminal.emit());
  EXPECT_EQ(terminal.lines, (std::vector<std::string>{"10%<CR>", "20%<CR>", "done\r", "next"}));
  Collector file;
  LineSplitter().feed(text, file.emit());
  EXPECT_EQ(file.lines, (std::vector<std::string>{"10%\r20%\rdone\r", "next"}));
}

}  // namespace
}  // namespace capstan::launch
