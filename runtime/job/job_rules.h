// The rules of a job specification; job_spec.h fills in its defaults first. Private to this folder.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace megascale::job {

// Far more than any machine has, and yet so low that the product of a few sizes fits 64 bits.
constexpr int64_t kSizeMax = 1 << 20;
constexpr int64_t kHiddenSizeMax = 1 << 16;
constexpr int kLearntVocabularyMin = 257;  // bytes and the end token
constexpr int kLearntVocabularyMax = 1 << 20;
constexpr int64_t kBucketSizeMax = int64_t{1} << 40;  // more than any chunk has: one bucket a chunk

// CheckFields and CheckTogether check a specification whose defaults are filled in. Errors:
// InvalidArgument - it breaks rules; the message has a line for each broken rule.

// Checks each field by itself.
absl::Status CheckFields(const v1::JobSpec& spec);

// Checks the rules about several fields. Requires: CheckFields returned OK.
absl::Status CheckTogether(const v1::JobSpec& spec);

// Checks the fields of a data section that say how files become tokens. Part of CheckFields.
absl::Status CheckTokens(const v1::DataSpec& data);

// Check a fault section: CheckFaultFields each field by itself, as part of CheckFields; CheckFault
// the fields together, as part of CheckTogether.
absl::Status CheckFaultFields(const v1::FaultSpec& fault, v1::Device device);
absl::Status CheckFault(const v1::FaultSpec& fault);

}  // namespace megascale::job
