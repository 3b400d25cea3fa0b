#include "capstan/pipeline/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"

namespace capstan::pipeline {
namespace {

// Of the first part of a description; a longer one has a second part of the rest.
constexpr std::int64_t kHeadWords = 64;
constexpr std::int64_t kUndefined = -1;  // in place of a dtype

// Before the tensors: how many words there are, the transfer, how many tensors.
constexpr std::int64_t kIntroWords = 5;

std::vector<std::int64_t> describe(const Transfer& transfer, const Tensors& tensors) {
  std::vector<std::int64_t> words = {0, transfer.gradient ? 1 : 0, transfer.part,
                                     transfer.micro_batch, std::ssize(tensors)};
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      words.push_back(kUndefined);
      continue;
    }
    words.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    words.push_back(tensor.requires_grad() ? 1 : 0);
    words.push_back(tensor.dim());
    words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  words[0] = std::ssize(words);
  return words;
}

at::Tensor words_tensor(std::int64_t words) { return at::empty({words}, at::kLong); }

// Its memory as it travels. Requires a contiguous tensor.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().view({tensor.numel()}).view(at::kByte);
}

void check_tensor(const Transfer& transfer, const at::Tensor& tensor, std::size_t index) {
  if (!tensor.defined() || tensor.layout() == at::kStrided) return;
  throw ConfigError(
      {.what = fmt::format("tensor {} is not strided: a pipeline sends plain tensors", index),
       .where = to_string(transfer),
       .fix = "call to_dense() before the end of the stage"});
}

}  // namespace

Channel::Channel(comm::Group& group, int peer, c10::Device device)
    : group_(group), peer_(peer), device_(device) {
  if (group.backend().getBackendName() != "nccl") return;
  throw ConfigError({.what = "a pipeline cannot send over NCCL yet",
                     .where = fmt::format("group '{}'", group.name()),
                     .fix = "hand in a group over MPI or Gloo; tensors may be on a GPU over MPI"});
}

void Channel::send(const Transfer& transfer, const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) check_tensor(transfer, tensors[i], i);
  const std::string label = to_string(transfer);
  const std::vector<std::int64_t> words = describe(transfer, tensors);
  const at::Tensor description = words_tensor(std::max(kHeadWords, words[0]));
  std::memcpy(description.mutable_data_ptr(), words.data(), words.size() * sizeof(words[0]));
  std::vector<comm::PendingOp> ops;
  ops.push_back(group_.send(description.narrow(0, 0, kHeadWords), peer_, label));
  if (words[0] > kHeadWords) {
    const std::int64_t rest = words[0] - kHeadWords;
    ops.push_back(group_.send(description.narrow(0, kHeadWords, rest), peer_, label));
  }
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().contiguous();
    ops.push_back(group_.send(bytes_of(plain), peer_, label));
  }
  outgoing_.push_back({transfer, std::move(ops)});
}

void Channel::receive(const Transfer& transfer) {
  incoming_.emplace_back().transfer = transfer;
  progress();
}

bool Channel::advance(Incoming& message, bool wait) {
  using State = Incoming::State;
  const std::string label = to_string(message.transfer);
  while (message.state != State::payload) {
    if (message.state == State::waits) {
      message.description = words_tensor(kHeadWords);
      message.op = group_.recv(message.description, peer_, label);
      message.state = State::head;
    }
    if (!wait && !message.op.done()) return false;
    message.op.wait();
    const std::int64_t words = message.description.const_data_ptr<std::int64_t>()[0];
    if (message.state == State::head && words > kHeadWords) {
      const at::Tensor head = std::exchange(message.description, words_tensor(words));
      message.description.narrow(0, 0, kHeadWords).copy_(head);
      message.op =
          group_.recv(message.description.narrow(0, kHeadWords, words - kHeadWords), peer_, label);
      message.state = State::rest;
    } else {
      start_payload(message);
      message.state = State::payload;
    }
  }
  return true;
}

void Channel::start_payload(Incoming& message) {
  const std::int64_t* word = message.description.const_data_ptr<std::int64_t>();
  const Transfer sent = {.gradient = word[1] != 0,
                         .part = static_cast<int>(word[2]),
                         .micro_batch = static_cast<int>(word[3])};
  if (sent != message.transfer) {
    throw CommError({.what = fmt::format("the {} was expected from rank {}, but the {} came",
                                         to_string(message.transfer), peer_, to_string(sent)),
                     .where = fmt::format("group '{}', rank {}", group_.name(), group_.rank()),
                     .fix = "give every stage the same schedule, with as many micro-batches"});
  }
  const std::int64_t count = word[4];
  word += kIntroWords;
  const std::string label = to_string(message.transfer);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t dtype = *word++;
    if (dtype == kUndefined) {
      message.tensors.emplace_back();
      message.require_grad.push_back(false);
      continue;
    }
    message.require_grad.push_back(*word++ != 0);
    const auto dims = static_cast<std::size_t>(*word++);
    at::Tensor tensor = at::empty(
        {word, dims}, at::TensorOptions(static_cast<at::ScalarType>(dtype)).device(device_));
    word += dims;
    if (tensor.numel() > 0) message.payload.push_back(group_.recv(bytes_of(tensor), peer_, label));
    message.tensors.push_back(std::move(tensor));
  }
}

Tensors Channel::take(const Transfer& transfer) {
  for (auto message = incoming_.begin(); message != incoming_.end(); ++message) {
    advance(*message, /*wait=*/true);
    if (message->transfer != transfer) continue;
    for (comm::PendingOp& op : message->payload) op.wait();
    Tensors tensors = std::move(message->tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (message->require_grad[i]) tensors[i].set_requires_grad(true);
    }
    incoming_.erase(message);
    progress();
    return tensors;
  }
  throw InternalError(
      {.what = fmt::format("nobody has begun to receive the {}", to_string(transfer))});
}

void Channel::progress() {
  for (Incoming& message : incoming_) {
    if (!advance(message, /*wait=*/false)) break;
  }
  std::erase_if(outgoing_, [](Outgoing& message) {
    if (!std::ranges::all_of(message.ops, &comm::PendingOp::done)) return false;
    for (comm::PendingOp& op : message.ops) op.wait();
    return true;
  });
}

void Channel::finish_send(const Transfer& transfer) {
  std::erase_if(outgoing_, [&](Outgoing& message) {
    if (message.transfer != transfer) return false;
    for (comm::PendingOp& op : message.ops) op.wait();
    return true;
  });
}

void Channel::finish_sends() {
  for (Outgoing& message : outgoing_) {
    for (comm::PendingOp& op : message.ops) op.wait();
  }
  outgoing_.clear();
}

}  // namespace capstan::pipeline
