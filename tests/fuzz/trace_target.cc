#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/base/check.h"
#include "runtime/diagnose/chrome_trace.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/traced_job.h"
#include "runtime/diagnose/what_if_json.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
// The first byte gives the size of the pieces in which the file arrives.
void RunTrace(absl::string_view input) {
  if (input.empty()) return;
  const size_t piece = 1 + static_cast<unsigned char>(input[0]) * size_t{16};
  absl::string_view file = input.substr(1);
  const auto read = [&](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    const size_t count = std::min({size, piece, file.size()});
    std::copy_n(file.data(), count, buffer);
    file.remove_prefix(count);
    return count;
  };
  constexpr diagnose::ChromeTraceLimits kLimits = {.events_max = 10'000, .bytes_max = 1 << 20};
  const auto trace = diagnose::ReadChromeTrace(read, kLimits);
  if (!trace.ok()) return CheckLine(trace.status());
  const auto job = diagnose::JobOfTrace(*trace);
  if (!job.ok()) return CheckLine(job.status());
  const diagnose::WhatIf result = diagnose::AnalyzeSteps(job->graph, job->steps);
  const diagnose::SlowVerdict verdict =
      diagnose::ExplainSlowness(job->graph, job->steps, {}, result);
  MEGASCALE_CHECK(std::isfinite(result.slowdown) && result.slowdown >= 0);
  MEGASCALE_CHECK(std::isfinite(verdict.cause.share));
}

}  // namespace megascale::fuzz
