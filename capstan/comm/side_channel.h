// Where ranks compare notes about an operation that does not finish, for backends that cannot tell
// by themselves.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}  // namespace c10d

namespace capstan::comm {

// Threads: any.
class SideChannel {
 public:
  virtual ~SideChannel() = default;
  // Neither blocks for a peer; both may throw when the channel itself is lost.
  virtual void post(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> read(const std::string& key) = 0;
};

// Over a store that all ranks of the group reach; `prefix` keeps groups apart.
std::shared_ptr<SideChannel> make_store_channel(c10::intrusive_ptr<c10d::Store> store,
                                                std::string prefix);

}  // namespace capstan::comm
