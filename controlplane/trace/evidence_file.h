// What a diagnosis was made from, in a file: gzip of lines of JSON, one for each answer of the
// driver. `megascale diagnose --save` writes it of a job that runs, and the driver of one that has
// ended. The file holds the names of machines and of the job's files, and no training data.
// Pure functions.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"

namespace megascale::trace {

struct EvidenceFile {
  control::v1::Job job;
  control::v1::GetClusterResponse cluster;
  std::vector<control::v1::StreamSpansResponse> spans;
  std::map<int, std::vector<control::v1::StreamEvidenceResponse>> evidence;  // by kind
  std::vector<control::v1::StreamLogsResponse> logs;  // the first error of a rank, if any
};

// A file has no more bytes, unpacked.
inline constexpr size_t kEvidenceBytesMax = size_t{1} << 28;

// Returns the content of a file that has at most `bytes_max` bytes, unpacked. Errors:
// ResourceExhausted - it would be larger.
absl::StatusOr<std::string> PackEvidence(const EvidenceFile& file,
                                         size_t bytes_max = kEvidenceBytesMax);

// Reads the content of a file, plain or gzip. Errors: InvalidArgument - it has more than
// `bytes_max` bytes, unpacked, something else is in it, or a job that no driver takes.
absl::StatusOr<EvidenceFile> UnpackEvidence(absl::string_view content,
                                            size_t bytes_max = kEvidenceBytesMax);

}  // namespace megascale::trace
