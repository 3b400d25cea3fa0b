// Counts the bytes that libtorch's CPU tensors hold, by the thread that asked for them: ranks are
// threads here.
#pragma once

#include <cstdint>

namespace capstan::test {

// From here on, for the whole process. What was there before is not counted.
void count_tensors();

// Of this thread.
std::int64_t tensor_bytes();
std::int64_t peak_tensor_bytes();
void reset_tensor_peak();

}  // namespace capstan::test
