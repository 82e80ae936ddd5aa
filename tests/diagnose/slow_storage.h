// Storage that reads slowly: in a program that links this library, each pread first sleeps for as
// many seconds as the switch "slow-storage" says. Without SlowStorage, pread is the system's.
#pragma once

#include <string>

namespace megascale::injection {

// Reads the switch from this folder from now on. Call it before there are threads.
void SlowStorage(const std::string& folder);

}  // namespace megascale::injection
