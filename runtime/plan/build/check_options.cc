#include "runtime/plan/build/check_options.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/instruction.h"

namespace megascale::plan {
namespace {

// Checks that bucket counts and costs, if given, cover every chunk.
absl::Status CheckBuckets(const PlanOptions& options) {
  const auto num_chunks = static_cast<size_t>(options.num_chunks());
  if (!options.num_buckets.empty() && options.num_buckets.size() != num_chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("numbers of buckets of ", options.num_buckets.size(),
                     " chunks were given; expected none or ", num_chunks));
  }
  for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int num_buckets = options.NumBuckets(static_cast<int>(chunk));
    if (num_buckets < 1 || num_buckets > InstructionId::kMaxBucket + 1) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " has ", num_buckets,
                                                     " buckets; expected 1 to ",
                                                     InstructionId::kMaxBucket + 1));
    }
    if (options.chunks.empty()) continue;
    const size_t num_costs = options.chunks[chunk].buckets.size();
    if (num_costs == static_cast<size_t>(num_buckets) || (num_costs == 0 && num_buckets == 1)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("costs of ", num_costs, " buckets of chunk ",
                                                   chunk, " were given; expected ", num_buckets));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const PlanOptions& options, int rank) {
  const int64_t num_chunks =
      int64_t{options.mesh.pipeline_size()} * std::max(1, options.chunks_per_stage);
  if (!options.mesh.Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in the mesh of ",
                                                   options.mesh.world_size(), " ranks"));
  }
  if (options.num_microbatches < 1 || options.num_microbatches >= InstructionId::kNoMicrobatch) {
    return absl::InvalidArgumentError(absl::StrCat("num_microbatches is ", options.num_microbatches,
                                                   "; expected 1 to ",
                                                   InstructionId::kNoMicrobatch - 1));
  }
  if (num_chunks >= InstructionId::kNoChunk) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline size times chunks per stage is ",
                                                   num_chunks, "; expected at most ",
                                                   InstructionId::kNoChunk - 1));
  }
  RETURN_IF_ERROR(CheckSchedule(ScheduleOptionsOf(options)));
  if (options.spare_slots < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("spare_slots is ", options.spare_slots, "; expected 0 or more"));
  }
  if (options.zero_stage != 1 && options.zero_stage != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage is ", options.zero_stage, "; expected 1 or 2"));
  }
  if (options.has_tied_ends && options.mesh.pipeline_size() == 1) {
    return absl::InvalidArgumentError(
        "has_tied_ends is true with one pipeline stage, which sends itself nothing; expected "
        "false, or several stages");
  }
  if (!options.chunks.empty() && static_cast<int>(options.chunks.size()) != num_chunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "costs of ", options.chunks.size(), " chunks were given; expected none or ", num_chunks));
  }
  return CheckBuckets(options);
}

}  // namespace megascale::plan
