#include "fuzz.h"

#include <atomic>
#include <stdexcept>

#include <fmt/format.h>

#include "capstan/config/convert.h"
#include "capstan/config/explain.h"
#include "capstan/config/resolve.h"
#include "capstan/json/writer.h"
#include "support.h"
#include "tests/support/mutator.h"
#include "tests/support/watchdog.h"

namespace capstan::config {
namespace {

// Bytes and words that readers stumble over.
const std::vector<std::string>& tokens() {
  // clang-format off
  static const std::vector<std::string> kTokens = {
      "{", "}", "[", "]", ":", ",", "\"", "'", "'''", "#", "//", "/*", "*/", "\\", "\\u",
      "\\ud800", "\n", "\r\n", "\t", std::string(1, '\0'), "\xEF\xBB\xBF", "\xFF", "\xC3",
      "\xF4\x90\x80\x80", "true", "\"true\"", "false", "null", "\"auto\"", "NaN", "Infinity",
      "-Infinity", "1e999", "-1e999", "1e-999", "5e8", "05", "0", "-1", "1",
      "9223372036854775807", "-9223372036854775808", "18446744073709551616", "[0|1|2|3]",
      "\"[cpu|nvme]\"", "\"cpu\"", "\"nvme\"", "{}", "[]", "[[[[[[[[", "{\"a\":{\"a\":{\"a\":",
      "\"enabled\": true", "\"stage\": 3", "\"type\": \"SGD\"", "\"params\": {}",
      "\"train_batch_size\": 9223372036854775807",
      "\"gradient_accumulation_steps\": 9223372036854775807", "\"bf16\": {\"enabled\": true}",
      "\"zero_optimization\": true",
      "\"capstan\": {\"parameter_groups\": {\"a.b\": {\"parameters\": \"x\"}}}",
  };
  // clang-format on
  return kTokens;
}

const std::vector<std::string>& values() {
  static const std::vector<std::string> kValues = {
      "true",     "false",   "null",     "\"auto\"", "0",     "1",        "2",     "3",
      "16",       "0.5",     "1e-3",     "5e8",      "\"x\"", "[]",       "{}",    "[0.9, 0.95]",
      "\"bf16\"", "\"cpu\"", "\"none\"", "1e12",     "-1",    "\"true\"", "\"7\"", "Infinity"};
  return kValues;
}

std::string in_quotes(const std::string& text) { return fmt::format("\"{}\"", text); }

// Texts of the corpus, changed, and texts made from the schema.
class Texts {
 public:
  Texts(std::uint64_t seed, const std::vector<std::string>& texts)
      : corpus_{.texts = texts, .tokens = tokens(), .values = values()}, mutator_(seed, corpus_) {}

  std::string next() {
    return mutator_.change(below(4) == 0 ? from_schema() : mutator_.pick(corpus_.texts));
  }

  std::size_t below(std::size_t bound) { return mutator_.below(bound); }

 private:
  // Random keys of the schema with values that often fit.
  std::string from_schema() {
    std::vector<Setting> settings;
    const std::vector<Section>& sections = schema().sections();
    for (std::size_t i = 1 + below(8); i > 0; --i) {
      const Section& section = sections[below(sections.size())];
      if (section.keys.empty()) continue;
      const Key& key = section.keys[below(section.keys.size())];
      if (!section.when.empty()) {
        const std::string above = section.path.substr(0, section.path.find('.'));
        settings.push_back({above + ".type", in_quotes(mutator_.pick(section.when))});
      }
      settings.push_back({join_path(section.path, key.name), fitting_value(key)});
    }
    try {
      return text_of(settings);
    } catch (const std::exception&) {
      return "{}";  // the values did not nest, or were no JSON
    }
  }

  std::string fitting_value(const Key& key) {
    if (below(4) == 0) return mutator_.pick(below(3) == 0 ? corpus_.tokens : corpus_.values);
    if (!key.choices.empty()) return in_quotes(mutator_.pick(key.choices));
    const json::Value standard = key.standard;
    return below(2) == 0 ? json::write(standard, {.indent = 0}) : std::to_string(below(9));
  }

  test::Corpus corpus_;
  test::Mutator mutator_;
};

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void require_whole(const std::vector<ErrorInfo>& problems) {
  for (const ErrorInfo& problem : problems) {
    require(!problem.what.empty() && !problem.where.empty() && !problem.fix.empty(),
            "a problem without what, where or fix");
  }
}

// What must hold of everything that resolves.
void require_sound(const Resolved& resolved, bool explained) {
  const engine::BatchOptions& batch = resolved.engine.batch;
  require(
      batch.train_samples == batch.micro_samples * batch.accumulation_steps * resolved.world_size,
      "the batch equation does not hold");
  require(resolved.engine.shard.stage >= 0 && resolved.engine.shard.stage <= 3,
          "a stage outside 0 to 3");
  require(!explained || !explain(resolved).empty(), "nothing to explain");
}

void run_one(const std::string& text, Texts& choose, FuzzReport& report) {
  Context context;
  context.lenient = choose.below(4) == 0;
  if (choose.below(2) == 0) context.world_size = 1 + static_cast<int>(choose.below(9));
  if (choose.below(4) == 0) context.hidden_size = static_cast<std::int64_t>(choose.below(100000));
  json::Document document;
  try {
    document = json::read_document(text, "fuzz");
  } catch (const ConfigError& error) {
    require_whole({error.info()});
    ++report.unreadable;
    return;
  }
  if (text.find("NaN") == std::string::npos) {
    require(json::read_document(json::write(document.root), "again").root == document.root,
            "what was written reads back different");
  }
  const Outcome outcome = check(document, context);
  require_whole(outcome.problems);
  require(outcome.resolved.has_value() == outcome.problems.empty(), "neither resolved nor refused");
  if (outcome.resolved) require_sound(*outcome.resolved, choose.below(8) == 0);
  ++(outcome.resolved ? report.resolved : report.with_problems);
}

}  // namespace

std::vector<std::string> fuzz_corpus() {
  std::vector<std::string> corpus = {"{}", ""};
  for (const char* name :
       {"annotated", "annotated_with_placeholders", "cut_off", "fp16_inside_zero",
        "offload_to_host", "stage1", "stage2_fp16_auto", "stage2_unknown_bucket"}) {
    const std::string text =
        read_source_file(std::string("tests/config/snippets/") + name + ".hjson");
    if (text.empty()) throw std::runtime_error(std::string("no snippet ") + name);
    corpus.push_back(text);
  }
  return corpus;
}

FuzzReport run_fuzz(std::int64_t count, std::uint64_t seed,
                    const std::vector<std::string>& corpus) {
  FuzzReport report;
  Texts texts(seed, corpus);
  std::atomic<std::int64_t> progress = 0;
  const test::Watchdog watchdog(progress);
  for (; report.inputs < count; ++report.inputs) {
    progress = report.inputs;
    const std::string text = texts.next();
    try {
      run_one(text, texts, report);
    } catch (const std::exception& error) {
      report.failure =
          std::string(error.what()) + "\ninput " + std::to_string(report.inputs) + ":\n" + text;
      return report;
    }
  }
  return report;
}

}  // namespace capstan::config
