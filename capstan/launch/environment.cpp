#include "capstan/launch/environment.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

constexpr std::array<std::string_view, 19> kForwardedPrefixes = {
    "NCCL_",    "PYTHON", "CUDA_",    "UCX_", "OMP_",   "MKL_",          "KMP_",
    "GLOO_",    "TORCH",  "PYTORCH_", "HF_",  "WANDB_", "TRANSFORMERS_", "MLFLOW",
    "CAPSTAN_", "DS_",    "XLA_",     "FI_",  "LC_"};
constexpr std::array<std::string_view, 5> kForwardedNames = {"PATH", "LD_LIBRARY_PATH",
                                                             "LD_PRELOAD", "VIRTUAL_ENV", "LANG"};

constexpr std::array<std::string_view, 6> kLauncherPrefixes = {
    "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "TORCHELASTIC_"};
constexpr std::array<std::string_view, 16> kLauncherNames = {
    "RANK",       "WORLD_SIZE",       "LOCAL_RANK",       "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE", "GROUP_RANK",       "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_NAME",  "ROLE_WORLD_SIZE",  "CROSS_RANK",       "CROSS_SIZE",
    "NODE_RANK",  "CAPSTAN_LAUNCHER", "CAPSTAN_LINK",     "CAPSTAN_LINK_TOKEN"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

template <typename Prefixes>
bool has_prefix(const Prefixes& prefixes, std::string_view name) {
  return std::ranges::any_of(prefixes, [&](std::string_view p) { return name.starts_with(p); });
}

bool is_variable_name(std::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) != 0) return false;
  return std::ranges::all_of(name,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::string_view without_quotes(std::string_view value) {
  if (value.size() < 2 || value.front() != value.back()) return value;
  if (value.front() != '"' && value.front() != '\'') return value;
  return value.substr(1, value.size() - 2);
}

}  // namespace

Environment current_environment() {
  Environment env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    env[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  return env;
}

Environment parse_env_file(std::string_view text, const std::string& file) {
  Environment env;
  std::string problems;
  int line_number = 0;
  for (const std::string& raw : split(text, '\n')) {
    ++line_number;
    std::string_view line = trim(raw);
    if (line.empty() || line.front() == '#') continue;
    constexpr std::string_view kExport = "export ";
    if (line.starts_with(kExport)) line = trim(line.substr(kExport.size()));
    const std::size_t equals = line.find('=');
    const std::string_view name = trim(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_variable_name(name)) {
      problems += fmt::format("\n    line {} is not NAME=VALUE", line_number);  // it may be secret
      continue;
    }
    env[std::string(name)] = std::string(without_quotes(trim(line.substr(equals + 1))));
  }
  if (!problems.empty()) {
    throw ConfigError({.what = "cannot use the environment file:" + problems,
                       .where = file,
                       .fix = "write one NAME=VALUE per line"});
  }
  return env;
}

Environment forwarded_variables(const Environment& env) {
  Environment kept;
  for (const auto& [name, value] : env) {
    const bool wanted = has_prefix(kForwardedPrefixes, name) || contains(kForwardedNames, name);
    // The devices of another host are its own; so are the launcher's private variables.
    const bool ours = name == "CUDA_VISIBLE_DEVICES" || contains(kLauncherNames, name);
    if (wanted && !ours) kept[name] = value;
  }
  return kept;
}

Environment without_launcher_variables(Environment env) {
  std::erase_if(env, [](const auto& entry) {
    return has_prefix(kLauncherPrefixes, entry.first) || contains(kLauncherNames, entry.first);
  });
  return env;
}

std::string shell_quote(std::string_view word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_@%+=:,./-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_join(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += shell_quote(word);
  }
  return line;
}

std::vector<std::string> shell_split(std::string_view text, const std::string& where) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool escapes = c == '\\' && quote != '\'' && i + 1 < text.size();
    if (escapes) {
      word += text[++i];
      in_word = true;
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      in_word = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0) {
    throw ConfigError({.what = fmt::format("a quote ({}) is not closed in: {}", quote, text),
                       .where = where,
                       .fix = "close it, or escape it with a backslash"});
  }
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace capstan::launch
