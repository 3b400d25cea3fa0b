#include "fuzz.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>

#include "capstan/config/convert.h"
#include "capstan/config/explain.h"
#include "capstan/config/resolve.h"
#include "capstan/json/writer.h"
#include "support.h"

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

std::string in_quotes(const std::string& text) { return fmt::format("\"{}\"", text); }

class Mutator {
 public:
  Mutator(std::uint64_t seed, const std::vector<std::string>& corpus)
      : random_(seed), corpus_(corpus) {}

  std::string next() {
    std::string text = below(4) == 0 ? from_schema() : pick(corpus_);
    const std::size_t rounds = below(4) == 0 ? 0 : 1 + below(6);
    for (std::size_t i = 0; i < rounds; ++i) mutate(text);
    if (text.size() > 20000) text.resize(20000);
    return text;
  }

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

 private:
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void mutate(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t size = 1 + below(below(8) == 0 ? 400 : 12);
    switch (below(14)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 2:
        text.erase(at, size);
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), size));
        break;
      case 4:
      case 5:
        text.insert(at, pick(tokens()));
        break;
      case 6:
        text.resize(at);
        break;
      case 7: {
        const std::string& other = pick(corpus_);
        text.insert(at, other.substr(below(other.size() + 1), 20 * size));
        break;
      }
      default:
        replace_value(text);
    }
  }

  // A value after some colon: the change that keeps a text readable.
  void replace_value(std::string& text) {
    const std::size_t colon = text.find(':', below(text.size() + 1));
    if (colon == std::string::npos) return;
    const std::size_t end = text.find_first_of(",\n}", colon);
    if (end == std::string::npos) return;
    text.replace(colon + 1, end - colon - 1, some_value());
  }

  std::string some_value() {
    static const std::vector<std::string> kValues = {
        "true",     "false",   "null",     "\"auto\"", "0",     "1",        "2",     "3",
        "16",       "0.5",     "1e-3",     "5e8",      "\"x\"", "[]",       "{}",    "[0.9, 0.95]",
        "\"bf16\"", "\"cpu\"", "\"none\"", "1e12",     "-1",    "\"true\"", "\"7\"", "Infinity"};
    return below(3) == 0 ? pick(tokens()) : pick(kValues);
  }

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
        settings.push_back({above + ".type", in_quotes(pick(section.when))});
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
    if (below(4) == 0) return some_value();
    if (!key.choices.empty()) return in_quotes(pick(key.choices));
    const json::Value standard = key.standard;
    return below(2) == 0 ? json::write(standard, {.indent = 0}) : std::to_string(below(9));
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& corpus_;
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

void run_one(const std::string& text, Mutator& choose, FuzzReport& report) {
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

// Ends the process when the counter stands still for a minute.
class Watchdog {
 public:
  explicit Watchdog(const std::atomic<std::int64_t>& progress)
      : thread_([this, &progress](const std::stop_token& stop) { watch(stop, progress); }) {}
  ~Watchdog() {
    thread_.request_stop();
    wake_.notify_all();
  }

 private:
  void watch(const std::stop_token& stop, const std::atomic<std::int64_t>& progress) {
    std::int64_t last = -1;
    while (!stop.stop_requested()) {
      const std::int64_t seen = progress.load();
      if (seen == last) {
        std::fprintf(stderr, "input %lld takes longer than a minute\n",
                     static_cast<long long>(seen));
        std::_Exit(3);
      }
      last = seen;
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::minutes(1), [&] { return stop.stop_requested(); });
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::jthread thread_;
};

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
  Mutator mutator(seed, corpus);
  std::atomic<std::int64_t> progress = 0;
  const Watchdog watchdog(progress);
  for (; report.inputs < count; ++report.inputs) {
    progress = report.inputs;
    const std::string text = mutator.next();
    try {
      run_one(text, mutator, report);
    } catch (const std::exception& error) {
      report.failure =
          std::string(error.what()) + "\ninput " + std::to_string(report.inputs) + ":\n" + text;
      return report;
    }
  }
  return report;
}

}  // namespace capstan::config
