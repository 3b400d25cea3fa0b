#include "capstan/cli/page/run_page.h"

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/cli/page/page_data.h"
#include "capstan/cli/page/template.h"
#include "capstan/io/failure.h"

namespace capstan::cli::page {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Between two rewrites; and a rewrite takes at most this share of the time.
constexpr std::chrono::seconds kPause{1};
constexpr int kShare = 50;

// Whoever reads meanwhile sees the old file or the new one.
void replace_file(const fs::path& path, const std::string& text) {
  fs::path partial = path;
  partial += ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) throw io::io_failure({.verb = "write", .file = partial}, errno);
  file.close();
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) throw io::io_failure({.verb = "rename", .file = partial}, error.value());
}

std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string, std::string>>& with) {
  std::string page(text);
  for (const auto& [mark, value] : with) {
    if (const std::size_t at = page.find(mark); at != std::string::npos) {
      page.replace(at, mark.size(), value);
    }
  }
  return page;
}

}  // namespace

fs::path page_in(const fs::path& folder) { return folder / "index.html"; }

RunPage::RunPage(fs::path page, const std::vector<fs::path>& metrics) : page_(std::move(page)) {
  for (const fs::path& path : metrics) files_.emplace_back(path);
}

fs::path RunPage::data_path() const {
  fs::path path = page_;
  return path.replace_extension(".data.js");
}

void RunPage::write_page(bool live) const {
  // The data come last: text in them that looks like a mark stays as it is.
  replace_file(page_, filled(page_html(), {{"/*style*/", std::string(page_css())},
                                           {"/*script*/", std::string(page_js())},
                                           {"/*source*/", data_path().filename().string()},
                                           {"/*data*/", page_data(files_, live)}}));
}

void RunPage::refresh() {
  if (Clock::now() < next_) return;
  const auto began = Clock::now();
  for (monitor::RunFile& file : files_) file.read_more(/*ended=*/false);
  replace_file(data_path(), "runPageData(" + page_data(files_, /*live=*/true) + ");\n");
  if (!begun_) write_page(/*live=*/true);
  begun_ = true;
  const auto now = Clock::now();
  next_ = now + std::max<Clock::duration>(kPause, kShare * (now - began));
}

void RunPage::finish() {
  for (monitor::RunFile& file : files_) {
    file.read_more(/*ended=*/true);
    file.check();
  }
  write_page(/*live=*/false);
  std::error_code gone;  // the page does not need it any more
  fs::remove(data_path(), gone);
}

std::vector<std::string> RunPage::damage() const {
  std::vector<std::string> lines;
  for (const monitor::RunFile& file : files_) {
    if (const std::string what = file.damage(); !what.empty()) {
      lines.push_back(fmt::format("{}: {}", file.path().string(), what));
    }
  }
  return lines;
}

}  // namespace capstan::cli::page
