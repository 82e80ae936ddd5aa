// Lists that are read in pages: where the next page begins is said by a token, which is opaque to
// clients and checked when it comes back. Functions of what they are given, for any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// The most jobs of one page; a request without page_size gets so many.
inline constexpr int32_t kJobsPageMax = 1000;
// A page ends before the job with which it would be larger: gRPC's limit is 4 MiB unless a client
// raises it. One job may be larger.
inline constexpr size_t kPageBytesMax = size_t{3} << 20;

// Makes a token of fields that contain no '/'. The first one names the list.
std::string MakePageToken(const std::vector<std::string>& fields);
// Returns the fields of a token. Errors: InvalidArgument - this driver or one before it did not
// make it, or not for the list `list`; the message begins with `name`, the request's field.
absl::StatusOr<std::vector<std::string>> ReadPageToken(absl::string_view name,
                                                       absl::string_view token,
                                                       absl::string_view list, size_t num_fields);
// Returns the error of ReadPageToken, for a token with fields that make no sense.
absl::Status BadPageToken(absl::string_view name);

// Leaves only the ranks of the page that the request asks for in `response`, which has the job with
// all of them. Errors: InvalidArgument - size or token; Aborted - the job runs another attempt than
// the page before was of, so its ranks may be elsewhere.
absl::Status CutToPageOfRanks(const megascale::control::v1::GetJobRequest& request,
                              megascale::control::v1::GetJobResponse* response);

}  // namespace megascale::driver
