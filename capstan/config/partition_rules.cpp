#include "capstan/config/partition_rules.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace capstan::config {
namespace {

constexpr std::string_view kPath = "tensor_parallel.partition_config";

class RuleReader {
 public:
  explicit RuleReader(std::vector<ErrorInfo>& problems) : problems_(problems) {}

  PartitionRules read(const json::Value& value) {
    PartitionRules rules;
    if (value.is_null()) return rules;
    where_ = kPath;
    if (value.object() == nullptr) {
      problem(fmt::format("it is {}, not an object", describe(value.kind())),
              "write {\"layer_specs\": [...]}");
      return rules;
    }
    for (const json::Member& member : *value.object()) take(rules, member);
    return rules;
  }

 private:
  void take(PartitionRules& rules, const json::Member& member) {
    where_ = fmt::format("{}.{}", kPath, member.key);
    if (member.key == "use_default_specs") {
      rules.others_by_default = flag(member.value, true);
    } else if (member.key == "strict_mode") {
      rules.strict = flag(member.value, false);
    } else if (member.key == "layer_specs") {
      const json::Array* const specs = member.value.array();
      if (specs == nullptr) return problem("it is no list", "write a list of objects");
      for (std::size_t i = 0; i < specs->size(); ++i) {
        where_ = spec_ = fmt::format("{}.layer_specs[{}]", kPath, i);
        rules.rules.push_back(rule((*specs)[i]));
      }
    } else if (member.key == "tp_size") {
      problem("the size is said elsewhere", "use tensor_parallel.autotp_size");
    } else {
      problem("this is not known, or not available yet",
              "use layer_specs, use_default_specs and strict_mode");
    }
  }

  PartitionRule rule(const json::Value& spec) {
    PartitionRule rule;
    if (spec.object() == nullptr) {
      problem("it is no object", "write {\"patterns\": [...], \"partition_type\": \"column\"}");
      return rule;
    }
    if (spec.find("patterns") == nullptr) problem("it has no patterns", "add \"patterns\": [...]");
    std::optional<std::int64_t> dim;
    const json::Value* shape = nullptr;
    for (const json::Member& member : *spec.object()) {
      where_ = fmt::format("{}.{}", spec_, member.key);
      if (member.key == "patterns") {
        rule.patterns = texts(member.value);
      } else if (member.key == "model_types") {
        if (!member.value.is_null()) rule.model_types = texts(member.value);
      } else if (member.key == "partition_type") {
        rule.kind = kind(member.value);
      } else if (member.key == "gather_output") {
        rule.gather_output = flag(member.value, false);
      } else if (member.key == "grad_allreduce") {
        rule.sum_gradients = flag(member.value, false);
      } else if (member.key == "partition_dim") {
        if (member.value.integer() != nullptr) dim = *member.value.integer();
      } else if (member.key == "shape") {
        shape = &member.value;
      } else {
        problem("a rule has no such key",
                "use patterns, partition_type, shape, partition_dim, model_types, gather_output "
                "and grad_allreduce");
      }
    }
    check_shape(rule, shape, dim);
    check_flags(rule);
    return rule;
  }

  // [n, -1, ...] cut along 1 is n equal matrices, one after the other.
  void check_shape(PartitionRule& rule, const json::Value* shape, std::optional<std::int64_t> dim) {
    where_ = fmt::format("{}.shape", spec_);
    const json::Array* const sizes = shape == nullptr ? nullptr : shape->array();
    if (sizes == nullptr) {
      const std::int64_t own = rule.kind == PartitionKind::row ? 1 : 0;
      if (dim.value_or(own) != own) {
        where_ = fmt::format("{}.partition_dim", spec_);
        problem(fmt::format("dimension {} of such a weight cannot be cut", *dim),
                "columns are cut along 0, rows along 1; leave the key out");
      }
      return;
    }
    const bool equal = rule.kind == PartitionKind::column && dim.value_or(0) == 1 &&
                       sizes->size() >= 2 && (*sizes)[0].integer() != nullptr &&
                       *(*sizes)[0].integer() > 0 && (*sizes)[1].integer() != nullptr &&
                       *(*sizes)[1].integer() == -1;
    if (!equal) {
      return problem("only columns of equal matrices one after the other can be cut so",
                     "write \"shape\": [3, -1], \"partition_dim\": 1 for three of them, or use "
                     "\"partition_type\": \"skip\"");
    }
    rule.blocks = *(*sizes)[0].integer();
  }

  void check_flags(const PartitionRule& rule) {
    where_ = spec_;
    if (rule.gather_output && rule.kind != PartitionKind::column) {
      problem("gather_output is for columns", "remove it");
    }
    if (rule.sum_gradients && rule.kind != PartitionKind::skip) {
      problem("grad_allreduce is for what stays whole", "use \"partition_type\": \"skip\" with it");
    }
  }

  PartitionKind kind(const json::Value& value) {
    constexpr std::array kKinds = {std::pair{"column", PartitionKind::column},
                                   std::pair{"row", PartitionKind::row},
                                   std::pair{"skip", PartitionKind::skip}};
    const std::string* const text = value.text();
    for (const auto& [name, kind] : kKinds) {
      if (text != nullptr && *text == name) return kind;
    }
    problem("it is not one of the three kinds", "use column, row or skip");
    return PartitionKind::skip;
  }

  std::vector<std::string> texts(const json::Value& value) {
    std::vector<std::string> result;
    const json::Array* const items = value.array();
    for (const json::Value& item : items != nullptr ? *items : json::Array{}) {
      if (item.text() != nullptr) result.push_back(*item.text());
    }
    if (items == nullptr || result.empty() || result.size() != items->size()) {
      problem("it is no list of texts", "write [\".*\\\\.up\\\\.weight$\"], for example");
    }
    return result;
  }

  bool flag(const json::Value& value, bool fallback) {
    if (value.boolean() != nullptr) return *value.boolean();
    problem("it is neither true nor false", fallback ? "write true" : "write false");
    return fallback;
  }

  void problem(std::string what, std::string fix) {
    problems_.push_back({.what = std::move(what), .where = where_, .fix = std::move(fix)});
  }

  std::vector<ErrorInfo>& problems_;
  std::string where_, spec_;
};

}  // namespace

PartitionRules read_partition_rules(const json::Value& value, std::vector<ErrorInfo>& problems) {
  return RuleReader(problems).read(value);
}

}  // namespace capstan::config
