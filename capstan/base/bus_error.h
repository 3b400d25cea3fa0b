// Files in use as memory: a disk that fails under one ends a program by SIGBUS, which by itself
// says nothing.
#pragma once

namespace capstan {

// From now on such an end names the file on stderr, and the program exits with kExitUserError. For
// programs only: there is one handler in a process.
void explain_bus_errors();

}  // namespace capstan
