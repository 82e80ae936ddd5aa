// Groups equal stacks of many ranks, so that the few stacks that differ stand out. Pure functions.
//
// Source: Wan et al., SOSP '25 (ByteRobust): aggregation of the stacks of all ranks; the groups of
// few ranks lead to the cause.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::telemetry {

// What one thread of a rank executes.
struct RankStack {
  int rank = 0;
  std::string thread;                  // its name
  std::vector<std::string> functions;  // innermost first
};

struct LikeStacks {
  std::string thread;
  std::vector<std::string> functions;
  std::vector<int> ranks;  // ascending, each once
};

// Returns the groups of threads with the same name (apart from a number at its end) and the same
// functions. The groups with the fewest ranks come first, then by rank, thread and functions.
std::vector<LikeStacks> PutTogether(absl::Span<const RankStack> stacks);

// Returns the name of a function without its arguments, template arguments, return type, anonymous
// namespaces and our own namespace: "void megascale::comm::Wait<int>(int) [clone .cold]" is
// "comm::Wait".
std::string ShortFunction(absl::string_view function);

}  // namespace megascale::telemetry
