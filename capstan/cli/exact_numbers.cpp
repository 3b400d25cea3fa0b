#include "capstan/cli/exact_numbers.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

namespace capstan::cli {
namespace {

template <typename Number>
bool reads_whole(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return stop == end && error == std::errc();
}

template <typename Integer>
bool is_integer(const std::string& text) {
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  const bool octal = text.size() > digits + 1 && text[digits] == '0';
  Integer number = 0;
  return !octal && reads_whole(text, number);
}

bool is_finite(const std::string& text) {
  double number = 0;
  return reads_whole(text, number) && std::isfinite(number);
}

using Accepts = bool (*)(const std::string& text);

// Null for an option that takes something else.
Accepts accepted_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // e.g. INT:POSITIVE, UINT, FLOAT
  if (type.starts_with("INT")) return is_integer<std::int64_t>;
  if (type.starts_with("UINT")) return is_integer<std::uint64_t>;
  return type.starts_with("FLOAT") ? is_finite : nullptr;
}

}  // namespace

void require_exact_numbers(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    const Accepts accepts = accepted_by(*option);
    if (accepts == nullptr) continue;
    // The text that people see is made where errors are explained.
    option->check([accepts](const std::string& text) {
      return accepts(text) ? std::string() : "not such a number: " + text;
    });
  }
  for (CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    require_exact_numbers(*command);
  }
}

}  // namespace capstan::cli
