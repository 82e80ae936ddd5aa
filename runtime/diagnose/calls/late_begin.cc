#include "runtime/diagnose/calls/late_begin.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace megascale::diagnose {
namespace {

// A call is late if it begins so much after the first one.
constexpr double kLateSeconds = 0.01;
constexpr int kLateCallsMin = 3;
// A rank is named if it has this share of all delays.
constexpr double kShareMin = 0.7;

struct Delays {
  int num_calls = 0;
  int num_late = 0;
  double seconds = 0;       // of all calls
  double late_seconds = 0;  // of the late ones
};

}  // namespace

LateRank FindLateRank(absl::Span<const BegunCall> calls) {
  using Key = std::tuple<int, std::string, uint64_t, uint64_t>;
  std::map<Key, std::map<int, int64_t>> begins;  // by rank
  for (const BegunCall& call : calls) {
    begins[{call.machine, call.group, call.sequence, call.instruction}][call.rank] =
        call.begin_nanos;
  }
  std::map<int, Delays> delays;  // by rank
  double all_seconds = 0;
  for (const auto& [key, of_call] : begins) {
    if (of_call.size() < 2) continue;
    int64_t first = of_call.begin()->second;
    for (const auto& [rank, begin] : of_call) first = std::min(first, begin);
    for (const auto& [rank, begin] : of_call) {
      // In floating point, where hostile times cannot overflow.
      const double seconds = (static_cast<double>(begin) - static_cast<double>(first)) / 1e9;
      Delays& of_rank = delays[rank];
      ++of_rank.num_calls;
      of_rank.seconds += seconds;
      all_seconds += seconds;
      if (seconds < kLateSeconds) continue;
      ++of_rank.num_late;
      of_rank.late_seconds += seconds;
    }
  }
  for (const auto& [rank, of_rank] : delays) {
    if (of_rank.num_late < kLateCallsMin || of_rank.seconds < kShareMin * all_seconds) continue;
    return {.rank = rank,
            .num_calls = of_rank.num_calls,
            .num_late = of_rank.num_late,
            .seconds = of_rank.late_seconds / of_rank.num_late};
  }
  return {};
}

}  // namespace megascale::diagnose
