#include <memory>
#include <stdexcept>

#include "capstan/cli/train/losses.h"
#include "capstan/data/token_data.h"
#include "capstan/data/tokenizer.h"
#include "capstan/data/windows.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"
#include "capstan/launch/environment.h"
#include "capstan/launch/pool.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/readers.h"

namespace capstan::test {
namespace {

std::vector<std::string> json_tokens() {
  return {"{",
          "}",
          "[",
          "]",
          ":",
          ",",
          "\"",
          "'",
          "'''",
          "#",
          "//",
          "/*",
          "*/",
          "\\",
          "\\u",
          "\\ud800",
          "\n",
          "\r\n",
          "\t",
          std::string(1, '\0'),
          "\xEF\xBB\xBF",
          "\xFF",
          "\xC3",
          "true",
          "null",
          "NaN",
          "Infinity",
          "1e999",
          "-1",
          "9223372036854775807",
          "18446744073709551616",
          "[0|1]",
          "[[[[[[[[",
          "{\"a\":{\"a\":{\"a\":"};
}

std::vector<std::string> json_values() {
  return {" true",  " null", " 0",  " -1",   " 4000000000", " 1e300",
          " \"x\"", " []",   " {}", " \"\"", " [1, 2]",     " 18446744073709551616"};
}

FuzzReader hjson_reader() {
  return {.name = "hjson",
          .corpus = {.texts = {"{}", "", R"({"a": [1, 2.5e-3, "x\n", null, true], "b": {"c": -7}})",
                               "# of a document\na: 1\nb: some text, as it is\n"
                               "c: '''\n  lines\n  '''\n{ d: [1\n2 // two\n] }\n",
                               "{\n  stage: 3, /* x */ \"bucket\": [5e8|1e9],\n 'auto': 'auto'\n}"},
                     .tokens = json_tokens(),
                     .values = json_values()},
          .read = [](const std::string& input) {
            const json::Document document = json::read_document(input, "fuzz");
            const std::string text = json::write(document.root);
            if (json::write(json::read_document(text, "again").root) != text) {
              throw std::logic_error("what was written reads back different");
            }
          }};
}

FuzzReader tokenizer_reader() {
  return {.name = "tokenizer",
          .corpus = {.texts = {R"({"added_tokens": [{"id": 9, "content": "<|endoftext|>",
  "special": true, "normalized": false, "single_word": false, "lstrip": false}],
  "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "model": {"type": "BPE", "dropout": null, "unk_token": null,
    "vocab": {"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "hell": 7, "Ġhell": 8},
    "merges": ["h e", "l l", ["he", "ll"], "Ġ hell"]}})"},
                     .tokens = json_tokens(),
                     .values = json_values()},
          .read = [file = std::make_shared<MemoryFile>()](const std::string& input) {
            file->set(input);
            const auto tokenizer = data::load_tokenizer(file->path());
            const auto tokens = tokenizer->encode("hello <|endoftext|> hell, hello");
            for (const data::Token token : tokens) {
              if (token >= tokenizer->vocab()) throw std::logic_error("outside its vocabulary");
            }
            tokenizer->decode(tokens);
          }};
}

FuzzReader tokens_reader() {
  return {.name = "tokens",
          .corpus = {.texts = {std::string(400, '\1'), std::string(9, '\0')}},
          .read = [file = std::make_shared<MemoryFile>()](const std::string& input) {
            file->set(input);
            const auto type =
                input.size() % 3 == 0 ? data::TokenType::uint32 : data::TokenType::uint16;
            constexpr std::int64_t kLength = 16;
            const data::Windows windows(data::TokenData::map_file(file->path(), type), kLength,
                                        /*vocab=*/300);
            std::vector<std::int64_t> ids(kLength);
            std::vector<std::int64_t> targets(kLength);
            for (const std::int64_t sample : {std::int64_t{0}, windows.count() - 1}) {
              windows.read({{sample}}, ids, targets);
            }
          }};
}

FuzzReader metrics_reader() {
  return {
      .name = "metrics",
      .corpus = {.texts = {"{\"step\":1,\"loss\":5.5,\"lr\":0.001}\n{\"step\":2,\"loss\":null}\n"
                           "{\"step\":2,\"validation_loss\":5.25}\n{\"step\":3,\"loss\":4.5"},
                 .tokens = json_tokens(),
                 .values = json_values()},
      .read =
          [file = std::make_shared<MemoryFile>()](const std::string& input) {
            file->set(input);
            cli::train::Curve curve;
            cli::train::read_losses(file->path(), 1000, curve);
            cli::train::curve_page(curve);
          },
      .bytes_per_byte = 20'000};
}

FuzzReader hostfile_reader() {
  return {.name = "hostfile",
          .corpus = {.texts = {"# hosts\nfirst slots=4\nsecond\tslots=2 # two\n\n",
                               "10.0.0.1 slots=8\r\n10.0.0.2 slots=8\r\n", "alone slots=1"},
                     .tokens = {"slots=", " ", "\n", "\t", "#", "=", "-", "\xEF\xBB\xBF", "@"}},
          .read =
              [](const std::string& input) {
                const launch::Pool pool = launch::parse_hostfile(input, "fuzz");
                launch::count_slots(launch::include_hosts(pool, pool.front().name));
              },
          .bytes_per_byte = 30'000};  // 4096 slots in a line
}

FuzzReader env_reader() {
  return {.name = "env-file",
          .corpus = {.texts = {"A=1\nexport B='two words'\n# c\nC=\"x=y\"\n", "PATH=/bin:/usr/bin"},
                     .tokens = {"=", "\n", "'", "\"", "export ", "#", " ", std::string(1, '\0')}},
          .read = [](const std::string& input) { launch::parse_env_file(input, "fuzz"); }};
}

}  // namespace

std::vector<FuzzReader> text_readers() {
  return {hjson_reader(),   tokenizer_reader(), tokens_reader(),
          metrics_reader(), hostfile_reader(),  env_reader()};
}

std::vector<FuzzReader> all_readers() {
  std::vector<FuzzReader> readers = checkpoint_readers();
  for (FuzzReader& reader : text_readers()) readers.push_back(std::move(reader));
  return readers;
}

}  // namespace capstan::test
