#include "capstan/comm/side_channel.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace capstan::comm {
namespace {

class StoreChannel final : public SideChannel {
 public:
  StoreChannel(c10::intrusive_ptr<c10d::Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void post(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }

  std::optional<std::string> read(const std::string& key) override {
    if (!store_->check({prefix_ + key})) {
      return std::nullopt;
    }
    const std::vector<std::uint8_t> value = store_->get(prefix_ + key);
    return std::string(value.begin(), value.end());
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<SideChannel> make_store_channel(c10::intrusive_ptr<c10d::Store> store,
                                                std::string prefix) {
  return std::make_shared<StoreChannel>(std::move(store), std::move(prefix));
}

}  // namespace capstan::comm
