// Which rank begins its collectives late. Spans cannot tell: a rank's span of an exchange begins
// before the communicator is called, and all members wait for the last of them, so that the
// exchange takes equally long for all. The communicators' own records show when each member called.
// A pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace megascale::diagnose {

// A call of a collective that a rank has begun.
struct BegunCall {
  int rank = -1;
  // A number. Begins are compared only within a machine, because they are times of its clock.
  int machine = -1;
  std::string group = "";
  uint64_t sequence = 0;
  uint64_t instruction = 0;
  int64_t begin_nanos = 0;
};

struct LateRank {
  int rank = -1;       // -1: no rank is late alone
  int num_calls = 0;   // of this rank together with others of its machine
  int num_late = 0;    // of these calls: begun late
  double seconds = 0;  // the mean delay of the late calls
};

// Names a rank if it has begun several collectives later than other ranks of its machine, and most
// of the total delay of all ranks is its own.
LateRank FindLateRank(absl::Span<const BegunCall> calls);

}  // namespace megascale::diagnose
