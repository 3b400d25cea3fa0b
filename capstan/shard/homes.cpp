#include "capstan/shard/homes.h"

namespace capstan::shard {
namespace {

// The last units among those that `may`, until they hold this share of all elements that may.
std::vector<bool> last_units(const Plan& plan, double share, const std::vector<bool>& may) {
  double all = 0;
  for (std::size_t i = 0; i < may.size(); ++i) {
    if (may[i]) all += static_cast<double>(plan.units[i].layout.padded_elems());
  }
  std::vector<bool> taken(may.size(), false);
  double elems = 0;
  for (std::size_t i = may.size(); i-- > 0;) {
    if (!may[i] || elems >= share * all) continue;
    taken[i] = true;
    elems += static_cast<double>(plan.units[i].layout.padded_elems());
  }
  return taken;
}

// Raises `share`, which `may` bounds, by one unit; false: there is none left.
bool raise(const Plan& plan, const std::vector<bool>& may, double most, double& share) {
  const std::vector<bool> now = last_units(plan, share, may);
  const std::vector<bool> limit = last_units(plan, most, may);
  double all = 0;
  double elems = 0;
  bool raised = false;
  for (std::size_t i = may.size(); i-- > 0;) {
    if (!may[i]) continue;
    const auto size = static_cast<double>(plan.units[i].layout.padded_elems());
    all += size;
    const bool next = !raised && !now[i] && limit[i];
    raised = raised || next;
    if (now[i] || next) elems += size;
  }
  if (raised) share = (elems - 0.5) / all;  // half an element less: exactly these
  return raised;
}

std::vector<bool> trainable_units(const Plan& plan) {
  std::vector<bool> may;
  may.reserve(plan.units.size());
  for (const UnitSpec& unit : plan.units) may.push_back(unit.trainable);
  return may;
}

std::vector<bool> released_units(const Plan& plan, const Policy& policy) {
  std::vector<bool> may;
  may.reserve(plan.units.size());
  for (const UnitSpec& unit : plan.units) {
    may.push_back(policy.params == Gather::per_use && !unit.resident);
  }
  return may;
}

double share_of(const Home& home) { return home.used() ? home.share : 0.0; }

}  // namespace

std::vector<UnitHomes> choose_homes(const Plan& plan, const Policy& policy, const Homes& homes) {
  const std::vector<bool> states =
      last_units(plan, share_of(homes.optimizer), trainable_units(plan));
  const std::vector<bool> params =
      last_units(plan, share_of(homes.params), released_units(plan, policy));
  std::vector<UnitHomes> chosen(plan.units.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (states[i]) chosen[i].states = homes.optimizer.placement;
    if (params[i]) chosen[i].params = homes.params.placement;
  }
  return chosen;
}

bool move_one_more(const Plan& plan, const Policy& policy, const Homes& most, Homes& homes) {
  return raise(plan, trainable_units(plan), share_of(most.optimizer), homes.optimizer.share) ||
         raise(plan, released_units(plan, policy), share_of(most.params), homes.params.share);
}

}  // namespace capstan::shard
