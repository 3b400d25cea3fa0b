// Whether an error says that memory is out. What to do then: ladder.h.
#pragma once

#include <exception>

namespace capstan::engine {

// libtorch's allocators and the standard library report it in different ways.
bool is_out_of_memory(const std::exception& error);

}  // namespace capstan::engine
