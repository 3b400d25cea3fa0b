// Time on GPUs, by events on their streams.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "capstan/profile/device_clock.h"
#include "capstan/profile/recorder.h"

namespace capstan::profile {

// Touches no device before the first mark. Events are used again and again.
std::shared_ptr<DeviceClock> make_event_clock();

// For SpanFacts::device.
inline int index_of(c10::Device device) { return device.is_cuda() ? device.index() : kHost; }

// One for all groups and engines of a rank, say. Records nothing until somebody reads.
std::shared_ptr<Recorder> make_recorder();

}  // namespace capstan::profile
