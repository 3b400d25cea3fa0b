// What a person sees of a run: a bar that redraws itself on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "capstan/monitor/step_stats.h"

namespace capstan::cli::train {

using monitor::StepStats;

// "step 120/300  loss 2.3140  lr 6.0e-04  …": the figures on one line.
std::string figures(const StepStats& stats);

// A bar of less than `columns` columns: share done, the first figures that fit, time left.
std::string bar_line(const StepStats& stats, std::chrono::seconds left, int columns);

// "1:05", "2:03:09".
std::string clock_text(std::chrono::seconds time);

// Threads: one.
class ProgressView {
 public:
  virtual ~ProgressView() = default;
  virtual void step(const StepStats& stats) = 0;
  virtual void note(const std::string& text) = 0;  // a line of its own, kept above the bar
  virtual void finish() = 0;                       // the last state stays on the screen
};

struct ViewOptions {
  int columns = 0;  // of the terminal; 0: no terminal
  int log_every = 10;
};

// `out` must outlive the view.
std::unique_ptr<ProgressView> make_progress_view(std::FILE* out, const ViewOptions& options);

// Columns of the terminal behind `out`, or those that CAPSTAN_COLUMNS names (for a rank whose
// output goes through a launcher to a terminal); 0 where there is none, or one that cannot redraw.
int terminal_columns(std::FILE* out);

}  // namespace capstan::cli::train
