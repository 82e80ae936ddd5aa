// How many threads compute. Private to this folder.
#pragma once

#include <algorithm>
#include <thread>

namespace megascale::inference {

// Returns `num_threads`; if it is not positive, the number of this machine's cores.
inline int ThreadsOrAll(int num_threads) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return num_threads > 0 ? num_threads : cores;
}

}  // namespace megascale::inference
