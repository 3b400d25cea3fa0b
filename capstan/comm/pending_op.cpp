#include "capstan/comm/pending_op.h"

#include "capstan/comm/group_state.h"

namespace capstan::comm {

PendingOp::PendingOp() = default;
PendingOp::PendingOp(std::unique_ptr<InFlight> op) : op_(std::move(op)) {}
PendingOp::PendingOp(PendingOp&&) noexcept = default;

PendingOp& PendingOp::operator=(PendingOp&& other) noexcept {
  if (this != &other) {
    PendingOp dropped(std::move(*this));
    op_ = std::move(other.op_);
  }
  return *this;
}

PendingOp::~PendingOp() {
  if (op_ != nullptr) {
    const std::shared_ptr<GroupState> group = std::move(op_->group);  // no cycle through dropped
    const std::lock_guard lock(group->mutex);
    group->dropped.push_back(std::move(op_));
  }
}

void PendingOp::wait() {
  if (op_ != nullptr) {
    const std::unique_ptr<InFlight> op = std::move(op_);
    const std::shared_ptr<GroupState> group = op->group;
    group->complete(*op);
  }
}

bool PendingOp::done() const {
  if (op_ == nullptr) {
    return true;
  }
  const std::unique_lock order(op_->group->issue, std::try_to_lock);
  return order.owns_lock() && !op_->second && op_->work->isCompleted();
}

}  // namespace capstan::comm
