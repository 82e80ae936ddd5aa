// What the GPUs of one or more machines do, in a few columns. A value that no GPU reports stays
// empty. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/telemetry.pb.h"

namespace megascale::cli {

struct GpuSummary {
  int count = 0;
  std::optional<double> busy_share;           // mean of the GPUs that report it
  std::optional<int64_t> memory_used_bytes;   // sum
  std::optional<int64_t> memory_bytes;        // sum
  std::optional<double> temperature_celsius;  // the highest
  std::optional<double> power_watts;          // sum
  int num_throttled = 0;
  std::vector<std::string> throttled_by;      // each reason once, sorted, printable
  std::optional<int64_t> corrected_errors;    // sum, since the drivers were loaded
  std::optional<int64_t> uncorrected_errors;  // sum
};

GpuSummary SummaryOf(absl::Span<const telemetry::v1::GpuSample* const> gpus);

// The columns of a table for people, and a machine's cells: number of GPUs, how busy they are,
// memory used of all memory, the highest temperature, power, and what is wrong: throttling with its
// reasons, memory errors.
std::vector<std::string> GpuColumns();
std::vector<std::string> GpuCells(const GpuSummary& summary);

// A value for programs, in the unit that its name says; nullopt: unknown.
struct GpuValue {
  absl::string_view name;
  std::optional<double> value;
};
std::vector<GpuValue> GpuValues(const GpuSummary& summary);

}  // namespace megascale::cli
