// Lists that are read in pages. A token says where the next page begins; it is opaque to clients
// and checked when it comes back. Functions of what they are given, for any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// The maximum number of jobs of one page, also for a request without page_size.
inline constexpr int32_t kJobsPageMax = 1000;
// A page ends before the job that would make it larger than this, because gRPC's limit is 4 MiB
// unless a client raises it. A page of one job may be larger.
inline constexpr size_t kPageBytesMax = size_t{3} << 20;

// Makes a token of fields that contain no '/'. The first one names the list.
std::string MakePageToken(const std::vector<std::string>& fields);
// Returns the fields of a token. Errors: InvalidArgument - neither this driver nor an earlier one
// made the token, or it is for another list than `list`; the message begins with `name`, the
// request's field.
absl::StatusOr<std::vector<std::string>> ReadPageToken(absl::string_view name,
                                                       absl::string_view token,
                                                       absl::string_view list, size_t num_fields);
// Returns the error of ReadPageToken, for a token with fields that make no sense.
absl::Status BadPageToken(absl::string_view name);

// Removes all ranks from `response`, which has the job with all its ranks, except for the page that
// the request asks for. Errors: InvalidArgument - size or token; Aborted - a new attempt has begun
// since the page before, so the ranks may be elsewhere.
absl::Status CutToPageOfRanks(const megascale::control::v1::GetJobRequest& request,
                              megascale::control::v1::GetJobResponse* response);

}  // namespace megascale::driver
