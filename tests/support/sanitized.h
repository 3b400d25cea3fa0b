// What sanitizers make impossible to measure.
#pragma once

namespace capstan {

// The address sanitizer keeps freed memory for a while, and adds to what is in use.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kMeasuresMemory = false;
#else
inline constexpr bool kMeasuresMemory = true;
#endif

}  // namespace capstan
