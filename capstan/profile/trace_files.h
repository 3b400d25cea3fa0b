// Timelines of ranks as files: a trace for Perfetto and Chrome, a page for any browser, and text to
// send them between ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/profile/timeline.h"

namespace capstan::profile {

// What is drawn, all ranks on one clock.
struct Trace {
  std::string title;
  std::vector<RankTimeline> ranks;
  TracedSettings settings;
};

// The format of chrome://tracing, which ui.perfetto.dev reads too: a process per rank, rows per
// lane. Times begin at 0.
std::string chrome_trace(const Trace& trace);

// A page that needs no other file and no network.
std::string timeline_page(const Trace& trace);

// "rank 0: exposed: …", one line per rank, and the advice for the rank that lost most.
std::string trace_summary(const Trace& trace);

std::string to_text(const RankTimeline& timeline);
// What to_text() wrote. Throws ConfigError on anything else.
RankTimeline timeline_from(std::string_view text);

}  // namespace capstan::profile
