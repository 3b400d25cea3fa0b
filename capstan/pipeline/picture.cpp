#include "capstan/pipeline/picture.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace capstan::pipeline {
namespace {

std::string text_of(const Instruction& instruction, bool chunks) {
  const bool weights = instruction.op == Op::backward_weights;
  std::string text = instruction.op == Op::forward ? "F" : weights ? "W" : "B";
  text += std::to_string(instruction.micro_batch);
  if (chunks) text += static_cast<char>('a' + instruction.chunk % 26);
  return text;
}

// From ticks to columns.
struct Scale {
  std::int64_t unit = std::numeric_limits<std::int64_t>::max();  // the shortest work
  std::int64_t columns = 1;                                      // that it takes
  bool chunks = false;

  std::size_t operator()(std::int64_t time) const {
    return static_cast<std::size_t>(time * columns / unit);
  }
};

Scale scale_of(const Simulation& run) {
  Scale scale;
  for (const auto& spans : run.stages) {
    for (const Span& span : spans) {
      if (span.end > span.begin) scale.unit = std::min(scale.unit, span.end - span.begin);
      scale.chunks = scale.chunks || span.instruction.chunk > 0;
    }
  }
  for (const auto& spans : run.stages) {
    for (const Span& span : spans) {
      scale.columns =
          std::max(scale.columns, std::ssize(text_of(span.instruction, scale.chunks)) + 1);
    }
  }
  return scale;
}

// Fills the columns but for the last, which keeps neighbours apart.
void fill(std::string& line, std::size_t begin, std::size_t end, const std::string& text,
          char rest) {
  if (begin >= end) return;
  std::string cell = text.substr(0, end - begin - 1);
  cell.resize(end - begin - 1, rest);
  line.replace(begin, cell.size(), cell);
}

}  // namespace

std::size_t picture_columns(const Simulation& run) { return scale_of(run)(run.length); }

std::string draw(const Simulation& run) {
  const Scale scale = scale_of(run);
  const std::size_t name_width = std::to_string(run.stages.size() - 1).size();
  std::string picture;
  for (std::size_t stage = 0; stage < run.stages.size(); ++stage) {
    std::string line(scale(run.length), ' ');
    std::int64_t idle_since = 0;
    for (const Span& span : run.stages[stage]) {
      if (span.end == span.begin) continue;
      fill(line, scale(idle_since), scale(span.begin), "", '.');
      fill(line, scale(span.begin), scale(span.end), text_of(span.instruction, scale.chunks), '-');
      idle_since = span.end;
    }
    fill(line, scale(idle_since), scale(run.length), "", '.');
    if (!line.empty()) line.pop_back();  // the last column is always blank
    std::string name = std::to_string(stage);
    name.insert(0, name_width - name.size(), ' ');
    picture.append("stage ").append(name).append("  ").append(line).append("\n");
  }
  return picture;
}

}  // namespace capstan::pipeline
