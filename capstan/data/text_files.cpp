#include "capstan/data/text_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fnmatch.h>

#include "capstan/base/error.h"
#include "capstan/base/shown_path.h"
#include "capstan/data/unicode.h"

namespace capstan::data {
namespace {

namespace fs = std::filesystem;

std::string read_whole_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw IoError({.what = std::string("cannot read the file: ") + std::strerror(errno),
                   .where = shown_path(path),
                   .fix = "check that it exists and that you may read it"});
  }
  return text;
}

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const CodePoint point = first_code_point(bytes);
    // U+FFFD itself has three bytes; of one byte it stands for what is not UTF-8.
    if (point.value == 0 || (point.value == 0xfffd && point.bytes == 1)) return false;
    bytes.remove_prefix(static_cast<std::size_t>(point.bytes));
  }
  return true;
}

bool is_left_out(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name == "build";
}

bool is_wanted(const fs::path& path, const std::vector<std::string>& names) {
  const std::string name = path.filename().string();
  return names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& each) {
           return ::fnmatch(each.c_str(), name.c_str(), 0) == 0;
         });
}

std::vector<fs::path> files_below(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<fs::path> files;
  fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied);
  for (; it != fs::recursive_directory_iterator(); ++it) {
    if (is_left_out(it->path())) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file() && !it->is_symlink() && is_wanted(it->path(), names) &&
               it->file_size() <= static_cast<std::uintmax_t>(kMaxTextBytes)) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<Document> read_text(const fs::path& file_or_folder,
                                const std::vector<std::string>& names) {
  std::vector<Document> documents;
  if (fs::is_directory(file_or_folder)) {
    for (const fs::path& path : files_below(file_or_folder, names)) {
      std::string text = read_whole_file(path);
      if (!text.empty() && is_text(text)) documents.push_back({path, std::move(text)});
    }
  } else {
    documents.push_back({file_or_folder, read_whole_file(file_or_folder)});
  }
  const bool any = std::any_of(documents.begin(), documents.end(),
                               [](const Document& each) { return !each.text.empty(); });
  if (!any) {
    throw ConfigError({.what = "there is no text",
                       .where = shown_path(file_or_folder),
                       .fix = names.empty()
                                  ? "give a text file, or a folder with text files in it"
                                  : "choose a folder with text files of the names asked for"});
  }
  return documents;
}

std::vector<Token> tokenize(const std::vector<Document>& documents, Tokenizer& tokenizer) {
  std::vector<Token> row;
  for (const Document& document : documents) {
    const std::vector<Token> tokens = tokenizer.encode(document.text);
    row.insert(row.end(), tokens.begin(), tokens.end());
    if (tokenizer.end_of_text()) row.push_back(*tokenizer.end_of_text());
  }
  return row;
}

}  // namespace capstan::data
