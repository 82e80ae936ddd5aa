// The ceiling: the rate at which this machine multiplies matrices. Model FLOPs utilisation is
// relative to this rate. It is measured once while the machine is idle and kept in a file, so that
// the same job has the same ceiling whatever else runs when it starts.
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace megascale::actors {

struct Ceiling {
  double flops_per_second = 0;
  absl::Time measured_at;
  bool idle = false;  // true: the machine was otherwise idle when it was measured
};

struct CeilingSources {
  std::string directory;  // where ceilings are kept; empty: they are not kept
  // Returns FLOP/s. On a busy machine the measurement may be shorter, because its result is less
  // exact and is soon replaced.
  std::function<double(bool idle)> measure;
  std::function<bool()> is_idle;
  std::function<absl::Time()> now;
};

// Returns the kept ceiling of `key` if it was measured on the idle machine. Otherwise measures, and
// keeps and returns the result if the machine is idle or the result is not below the kept one; else
// returns the kept one.
// Effects: writes a file in the directory; ignores a failure to write. Blocking: as the sources do.
Ceiling FindCeiling(const std::string& key, const CeilingSources& sources);

// Returns "219 GFLOP/s, measured 3 h ago on the idle machine".
std::string CeilingText(const Ceiling& ceiling, absl::Time now);

// Returns a key of everything on which a ceiling depends: machine, processor model, instruction
// set, program version, number of cores, and the type in which products are computed.
std::string CeilingKey(const std::string& compute, int cores);

// Returns true if the processors were nearly idle for a fifth of a second. Blocking: that long.
bool MachineIsIdle();

}  // namespace megascale::actors
