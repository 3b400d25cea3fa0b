// Work that may fail on one rank and must then fail on all: nobody goes on as if nothing happened,
// and the group stays usable.
#pragma once

#include <functional>
#include <string>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"

namespace capstan::engine {

// Collective. Runs `body` on this rank; when it throws on any rank, every rank
// throws one of the same kind: the first failing rank's. `device` is where collectives work.
void together(comm::Group& group, c10::Device device, const std::function<void()>& body);

// Collective: what rank `root` has.
std::string text_from(comm::Group& group, c10::Device device, const std::string& mine, int root);

// Collective: whether every rank says so.
bool on_all(comm::Group& group, c10::Device device, bool mine);

// Collective: whether every rank's text is the same.
bool same_on_all(comm::Group& group, c10::Device device, const std::string& mine);

}  // namespace capstan::engine
