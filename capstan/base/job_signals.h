// What a launcher tells its ranks by a signal of its own.
#pragma once

#include <csignal>

namespace capstan {

// Sent just before SIGTERM when another rank has failed: there is nobody left to finish the step
// with, and nothing to wait for. Programs that do not know it ignore it, which is SIGURG's default.
inline constexpr int kPeerFailedSignal = SIGURG;

}  // namespace capstan
