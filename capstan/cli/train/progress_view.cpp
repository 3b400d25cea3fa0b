#include "capstan/cli/train/progress_view.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "capstan/base/text.h"

namespace capstan::cli::train {
namespace {

constexpr int kBarColumns = 20;
constexpr int kColumnsForBar = 60;       // chosen: in fewer, the figures need the room
constexpr std::string_view kGap = "  ";  // between figures
// Chosen: fast enough to look alive, slow enough not to flood a terminal over ssh.
constexpr std::chrono::milliseconds kRedrawPause{100};

std::string short_count(double value) {
  for (const char* unit : {"", "k", "M", "G"}) {
    if (value < 1000 || *unit == 'G') return fmt::format("{:.3g}{}", value, unit);
    value /= 1000;
  }
  return "";
}

std::string flops_text(double flops) {
  if (flops >= 1e12) return fmt::format("{:.4g} TFLOP/s", flops / 1e12);
  return fmt::format("{:.3g} GFLOP/s", flops / 1e9);
}

std::string bar_text(const StepStats& stats) {
  const auto filled = static_cast<std::size_t>(std::clamp<std::int64_t>(
      kBarColumns * stats.step / std::max<std::int64_t>(1, stats.max_steps), 0, kBarColumns));
  const std::string rest(static_cast<std::size_t>(kBarColumns) - filled, '.');
  return fmt::format("[{}{}]", std::string(filled, '#'), rest);
}

class PlainLines final : public ProgressView {
 public:
  PlainLines(std::FILE* out, int log_every) : out_(out), log_every_(log_every) {}

  void step(const StepStats& stats) override {
    const bool due = stats.step == 1 || stats.step % log_every_ == 0;
    if (due || stats.skipped || stats.step == stats.max_steps) print(figures(stats));
  }
  void note(const std::string& text) override { print(text); }
  void finish() override {}

 private:
  void print(const std::string& text) {
    std::fprintf(out_, "%s\n", text.c_str());
    std::fflush(out_);
  }
  std::FILE* out_;
  int log_every_;
};

class Bar final : public ProgressView {
 public:
  Bar(std::FILE* out, int columns) : out_(out), columns_(columns) {}

  void step(const StepStats& stats) override {
    const auto now = Clock::now();
    if (!first_) first_ = {now, stats.step};
    last_ = stats;
    if (stats.skipped) note(figures(stats));
    if (now - drawn_ < kRedrawPause && stats.step < stats.max_steps) return;
    drawn_ = now;
    draw();
  }

  void note(const std::string& text) override {
    std::fprintf(out_, "%s\033[K\n", text.c_str());
    if (last_) draw();
  }

  void finish() override {
    if (!last_) return;
    draw();
    std::fputs("\n", out_);
    last_.reset();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Start {
    Clock::time_point time;
    std::int64_t step;
  };

  void draw() {
    if (!first_ || !last_) return;
    const std::int64_t done = last_->step - first_->step;
    std::chrono::seconds left{0};
    if (done > 0) {
      const std::chrono::duration<double> each = (Clock::now() - first_->time) / done;
      left = std::chrono::duration_cast<std::chrono::seconds>(
          each * static_cast<double>(last_->max_steps - last_->step));
    }
    // Without wrapping: on a terminal made narrower meanwhile, a line of two rows would stay. What
    // follows the return changes nothing on the screen; it tells a launcher that passes this on
    // that the line is whole, and no "\r\n".
    std::fprintf(out_, "\033[?7l%s\033[K\033[?7h\r\033[m",
                 bar_line(*last_, left, columns_).c_str());
    std::fflush(out_);
  }

  std::FILE* out_;
  int columns_;
  std::optional<Start> first_;
  std::optional<StepStats> last_;
  Clock::time_point drawn_;
};

}  // namespace

std::string figures(const StepStats& stats) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}", stats.step, stats.max_steps,
                                 stats.loss, stats.lr);
  if (stats.loss_scale != 1) text += fmt::format("  scale {:g}", stats.loss_scale);
  text += fmt::format("  {} tok/s  {}  mem {}", short_count(stats.tokens_per_s),
                      flops_text(stats.flops_per_s), format_bytes(stats.device_bytes));
  if (stats.gpu_use) text += fmt::format("  gpu {:.0f}%", *stats.gpu_use * 100);
  if (stats.skipped) text += "  skipped";
  return text;
}

std::string clock_text(std::chrono::seconds time) {
  const auto total = time.count();
  const auto hours = total / 3600;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string bar_line(const StepStats& stats, std::chrono::seconds left, int columns) {
  // One column stays free: a full line would wrap and could not be redrawn.
  const auto room = static_cast<std::size_t>(std::max(0, columns - 1));
  std::string line = columns < kColumnsForBar ? "" : bar_text(stats) + " ";
  const std::string end = fmt::format("{} left", clock_text(left));
  const std::string all = figures(stats);
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t next = std::min(all.find(kGap, begin), all.size());
    const std::size_t length = next - begin;
    if (line.size() + length + kGap.size() + end.size() > room) break;
    line.append(all, begin, length).append(kGap);
    begin = next + kGap.size();
  }
  return (line + end).substr(0, room);
}

std::unique_ptr<ProgressView> make_progress_view(std::FILE* out, const ViewOptions& options) {
  if (options.columns > 0) return std::make_unique<Bar>(out, options.columns);
  return std::make_unique<PlainLines>(out, options.log_every);
}

int terminal_columns(std::FILE* out) {
  if (const char* given = std::getenv("CAPSTAN_COLUMNS"); given != nullptr) {
    int columns = 0;
    std::from_chars(given, given + std::strlen(given), columns);  // nonsense: none
    return std::max(0, columns);
  }
  winsize size{};
  const char* const kind = std::getenv("TERM");
  const bool dumb = kind != nullptr && std::string_view(kind) == "dumb";  // knows no redrawing
  if (dumb || isatty(fileno(out)) == 0) return 0;
  constexpr int kUsualColumns = 80;  // a terminal that does not know its own size
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

}  // namespace capstan::cli::train
