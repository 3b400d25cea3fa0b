#include "capstan/cli/program.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/base/guard.h"
#include "capstan/base/text.h"
#include "capstan/cli/exact_numbers.h"
#include "capstan/cli/report/build_facts.h"

namespace capstan::cli {
namespace {

struct Chosen {
  const CLI::App* command;
  std::string words;  // "capstan config check": the commands that were recognised
};

Chosen chosen_command(const CLI::App& app) {
  Chosen chosen{&app, app.get_name()};
  while (!chosen.command->get_subcommands().empty()) {
    chosen.command = chosen.command->get_subcommands().front();
    chosen.words += " " + chosen.command->get_name();
  }
  return chosen;
}

// Commands without a group are not for people.
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string choices(const CLI::App& app, const std::string& where) {
  return fmt::format("choose one of: {}; {} --help says what they do",
                     fmt::join(command_names(app), ", "), where);
}

ErrorInfo wrong_command(const CLI::App& app, const std::string& where, const std::string& word) {
  const std::string near = nearest_name(word, command_names(app));
  return {.what = fmt::format("there is no command \"{}\"", word),
          .where = where,
          .fix = near.empty() ? choices(app, where) : fmt::format("did you mean \"{}\"?", near)};
}

// CLI11 only says that a command is missing; people want to know which word was wrong.
void check_command_words(const CLI::App& app, const std::string& where,
                         std::span<char* const> words) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty() || words.empty() || words.front()[0] == '-') return;
  const std::string word = words.front();
  for (const CLI::App* command : commands) {
    if (!command->check_name(word)) continue;
    return check_command_words(*command, fmt::format("{} {}", where, word), words.subspan(1));
  }
  throw ConfigError(wrong_command(app, where, word));
}

// What an option takes, in words; empty where only --help tells.
std::string wanted_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // e.g. INT:POSITIVE, INT:{16,32}, FLOAT
  const auto says = [&type](const char* word) { return type.find(word) != std::string::npos; };
  if (says("SIZE")) return "a whole number of bytes, or one with a unit: 64mb";
  const std::string number = says("INT") ? "a whole number" : "a number";
  if (says("NONNEGATIVE")) return fmt::format("0 or {} above it", number);
  if (says("POSITIVE")) return number + " above 0";
  if (const std::size_t at = type.find('{'); at != std::string::npos) {
    return "one of " + type.substr(at + 1, type.rfind('}') - at - 1);
  }
  constexpr std::string_view kIn = " in [";  // CLI11's range: " in [0 - 1]"
  if (const std::size_t at = type.find(kIn); at != std::string::npos) {
    const std::string range = type.substr(at + kIn.size(), type.rfind(']') - at - kIn.size());
    const std::size_t dash = range.find(" - ");
    return fmt::format("{} from {} to {}", number, range.substr(0, dash), range.substr(dash + 3));
  }
  if (says("UINT")) return number + " that is not negative";
  return says("INT") || says("FLOAT") ? number : "";
}

// What to give instead of a number that is what the option takes, but for its size; else `wanted`.
std::string wanted_instead_of(const std::string& value, const std::string& wanted) {
  const auto wants = [&wanted](const char* word) { return wanted.find(word) != wanted.npos; };
  const bool negative = value.starts_with('-');
  const std::string size = value.substr(negative ? 1 : 0);
  const char* const signs = wants("whole") ? "0123456789" : "0123456789.e+";
  const bool is_number = !size.empty() && size.find_first_not_of(signs) == size.npos;
  const bool large = is_number && std::strtod(size.c_str(), nullptr) >= 1e9;
  if (!large || wants(" from ") || (negative && (wants("0") || wants("negative")))) return wanted;
  return negative ? "a number nearer to 0" : "a smaller number";
}

// CLI11's texts begin with the option and hold, for a number, a range up to the largest that there
// is. Nothing where the error is of another kind.
std::optional<ErrorInfo> explain_value(const CLI::ParseError& error, const CLI::App& command) {
  const std::string text = error.what();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool its = text.starts_with(name + ":") || text.find(": " + name + " = ") != text.npos;
    const std::string wanted = its ? wanted_value(*option) : "";
    if (wanted.empty()) continue;
    const std::string given = option->results().empty() ? "" : option->results().back();
    // Of a size with a unit CLI11 has cut off what it could read.
    const bool size = option->get_type_name().find("SIZE") != std::string::npos;
    const std::string names = option->get_name(/*positional=*/false, /*all_options=*/true);
    return ErrorInfo{.what = size            ? fmt::format("{} is not a possible size", names)
                             : given.empty() ? fmt::format("{} has no value", names)
                                             : fmt::format("{} is {}", names, given),
                     .fix = "give " + wanted_instead_of(given, wanted)};
  }
  return std::nullopt;
}

ErrorInfo explain(const CLI::ParseError& error, const CLI::App& app) {
  const auto [command, where] = chosen_command(app);
  ErrorInfo info{.what = error.what(),
                 .where = where,
                 .fix = fmt::format("{} --help shows what can be given", where)};
  if (std::optional<ErrorInfo> value = explain_value(error, *command)) {
    value->where = where;
    return *value;
  }
  const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const std::vector<std::string> extra = app.remaining(/*recurse=*/true);
  if (extra.empty() && lacks && !command_names(*command).empty()) {
    return {.what = "a command is missing", .where = where, .fix = choices(*command, where)};
  }
  // What is lacking may be what a wrong word was meant for.
  const bool wrong_word = lacks || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (extra.empty() || !wrong_word) return info;
  info.what = fmt::format("\"{}\" was not expected here", extra.front());
  const std::string flag = extra.front().substr(0, extra.front().find('='));
  std::string near = nearest_name(flag, flag_names(*command));
  if (near.empty()) near = nearest_name(flag, flag_names(app));
  if (near == flag) {
    info.fix = fmt::format("write it after {}", where);
  } else if (!near.empty()) {
    info.fix = fmt::format("did you mean {}?", near);
  }
  return info;
}

int run_command(const std::string& about, const AddCommands& add_commands, int argc, char** argv) {
  CLI::App app{about, "capstan"};
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("capstan {}", build_facts().version));
  int exit_code = 0;
  add_commands(app, exit_code);
  require_exact_numbers(app);
  check_command_words(app, app.get_name(), std::span(argv, argc).subspan(argc > 0 ? 1 : 0));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    throw ConfigError(explain(error, app));
  }
  return exit_code;
}

void report(const std::string& text) { std::fprintf(stderr, "capstan: %s\n", text.c_str()); }

}  // namespace

int run_program(const std::string& about, const AddCommands& add_commands, int argc, char** argv) {
  return run_guarded<report>(
      [&](int count, char** words) { return run_command(about, add_commands, count, words); }, argc,
      argv);
}

}  // namespace capstan::cli
