// Groups of some of the ranks that are threads of this process, for tests.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "capstan/comm/group_maker.h"
#include "capstan/comm/loopback/loopback.h"

namespace capstan {

// Where the threads find each other.
// Threads: any.
class ThreadMeetings {
 public:
  std::shared_ptr<comm::LoopbackHub> at(const std::vector<int>& ranks, int number) {
    const std::lock_guard lock(mutex_);
    auto& hub = hubs_[{number, ranks}];
    if (hub == nullptr) hub = comm::make_loopback_hub(static_cast<int>(ranks.size()));
    return hub;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::vector<int>>, std::shared_ptr<comm::LoopbackHub>> hubs_;
};

// One per thread, over the meetings of all.
class ThreadGroups final : public comm::GroupMaker {
 public:
  ThreadGroups(ThreadMeetings& meetings, int rank) : meetings_(meetings), rank_(rank) {}
  comm::Group make_parts(const std::vector<std::vector<int>>& parts,
                         const std::string& name) override;

 private:
  ThreadMeetings& meetings_;
  int rank_;
  int made_ = 0;
};

}  // namespace capstan
