#include "capstan/engine/together.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <vector>

#include <ATen/ops/empty.h>

#include "capstan/base/error.h"
#include "capstan/comm/numbers.h"

namespace capstan::engine {
namespace {

constexpr const char* kLabel = "outcome";

enum class Failure : std::int64_t { none, config, io, other };

struct Outcome {
  Failure failure = Failure::none;
  ErrorInfo info;
};

Outcome outcome_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError&) {
    throw;  // the peers know already
  } catch (const ConfigError& error) {
    return {Failure::config, error.info()};
  } catch (const IoError& error) {
    return {Failure::io, error.info()};
  } catch (const Error& error) {
    return {Failure::other, error.info()};
  } catch (const std::exception& error) {
    return {Failure::other, {.what = error.what(), .where = "", .fix = ""}};
  }
  return {};
}

}  // namespace

std::string text_from(comm::Group& group, c10::Device device, const std::string& mine, int root) {
  const auto bytes =
      comm::from_all_ranks(group, device, std::ssize(mine), kLabel)[static_cast<std::size_t>(root)];
  if (bytes == 0) return "";
  at::Tensor text = at::empty({bytes}, at::kByte);
  if (group.rank() == root) std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  text = text.to(device);
  group.broadcast(text, root, "text").wait();
  text = text.cpu();
  const auto* const chars = static_cast<const char*>(text.const_data_ptr());
  return {chars, chars + bytes};
}

bool on_all(comm::Group& group, c10::Device device, bool mine) {
  const std::vector<std::int64_t> all = comm::from_all_ranks(group, device, mine ? 1 : 0, kLabel);
  return std::find(all.begin(), all.end(), 0) == all.end();
}

bool same_on_all(comm::Group& group, c10::Device device, const std::string& mine) {
  return on_all(group, device, text_from(group, device, mine, 0) == mine);
}

void together(comm::Group& group, c10::Device device, const std::function<void()>& body) {
  const Outcome mine = outcome_of(body);
  const auto failures =
      comm::from_all_ranks(group, device, static_cast<std::int64_t>(mine.failure), kLabel);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto failure = static_cast<Failure>(failures[static_cast<std::size_t>(rank)]);
    if (failure == Failure::none) continue;
    const ErrorInfo info{.what = text_from(group, device, mine.info.what, rank),
                         .where = text_from(group, device, mine.info.where, rank),
                         .fix = text_from(group, device, mine.info.fix, rank)};
    if (failure == Failure::config) throw ConfigError(info);
    if (failure == Failure::io) throw IoError(info);
    throw InternalError(info);
  }
}

}  // namespace capstan::engine
