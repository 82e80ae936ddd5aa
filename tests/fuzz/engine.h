// Runs a target on known inputs and on mutations of them, in this process, without measuring
// coverage: any compiler builds it. An input that crashes, hangs (30 s) or takes more memory than
// its target allows is written to a file, and the command that runs it again is printed, before the
// process ends.
// Determinism: the inputs follow from the seed and the corpus. Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {

struct FuzzOptions {
  uint64_t seed = 1;
  // The first limit that is reached ends the run.
  int64_t executions_max = INT64_MAX;
  absl::Duration time_max = absl::InfiniteDuration();
  size_t input_bytes_max = 32 << 10;
  std::string crash_directory = ".";  // folder for inputs that fail
};

struct FuzzStatistics {
  int64_t num_executions = 0;
  absl::Duration time;
  absl::Duration longest;  // time of the longest execution
  int64_t peak_bytes = 0;  // memory beyond what the process had at the beginning
  uint64_t digest = 0;     // of all inputs, in order: equal for equal seeds
};

// Reads the files of a folder, in the order of their names. Errors: NotFound; those of reading.
absl::StatusOr<std::vector<std::string>> ReadCorpus(const std::string& directory);

// Runs one input, with the handlers that write a failing input to a file.
void RunOne(const Target& target, absl::string_view input, const FuzzOptions& options);

// Runs every input of `corpus`, then mutations until a limit is reached.
FuzzStatistics Fuzz(const Target& target, const std::vector<std::string>& corpus,
                    const FuzzOptions& options);

}  // namespace megascale::fuzz
