// The names of the files in a checkpoint directory, and functions that list and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/agent.pb.h"
#include "proto/checkpoint.pb.h"

namespace megascale::checkpoint {

inline constexpr absl::string_view kManifestFile = "manifest.json";
inline constexpr int kFormatVersion = 1;

std::string StepDirectoryName(int64_t step, int64_t attempt);  // "step-00000100-attempt-2"
std::string ShardFileName(int rank);                           // "rank-00003.safetensors"
std::string ShardRecordName(int rank);                         // "rank-00003.json"

// Parses what StepDirectoryName returns; nullopt for any other name.
std::optional<megascale::agent::v1::CheckpointId> ParseStepDirectoryName(absl::string_view name);

// Lists the step directories in `root`, complete or not, oldest first (by step, then attempt).
// Errors: NotFound - no such directory.
absl::StatusOr<std::vector<megascale::agent::v1::CheckpointId>> ListStepDirectories(
    const std::string& root);

// Lists the complete checkpoints in `root` (their manifest can be read), newest first. Errors:
// NotFound - there is no such directory.
absl::StatusOr<std::vector<megascale::checkpoint::v1::CheckpointSummary>> ListCheckpoints(
    const std::string& root);

// Reads the manifest of a step directory. Errors: NotFound - no checkpoint here, or an incomplete
// one; DataLoss - it cannot be parsed; FailedPrecondition - a newer format.
absl::StatusOr<megascale::checkpoint::v1::Manifest> ReadManifest(const std::string& directory);

}  // namespace megascale::checkpoint
