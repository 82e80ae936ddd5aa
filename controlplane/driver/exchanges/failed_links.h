// Links between machines over which ranks got no answer, while both machines reached the driver:
// DriverState.failed_links. Which of the two is at fault, or whether one is, nobody knows; so a
// failed link quarantines nobody, and new attempts use at most one of its two ends where there is
// room (placement.h). A link is known by its machines (party.h), so that another node id there
// changes nothing. It is forgotten after kFailedLinkMemory, when the two have exchanged bytes in a
// test or in an attempt that trains, or when one of them is uncordoned. Pure; threads: plain
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/driver_log.pb.h"

namespace megascale::driver {

inline constexpr absl::Duration kFailedLinkMemory = absl::Hours(1);
// The newest stay.
inline constexpr int kFailedLinksMax = 256;

// Keeps a link that failed now. Does nothing unless both nodes are known, alive and not the same.
void NoteFailedLink(absl::string_view one, absl::string_view other, int64_t now_unix_nanos,
                    v1::DriverState* state);

// Forget the links that failed too long ago; those between any two of these nodes; and those of one
// node. The last returns whether there were any.
void ForgetOldLinks(int64_t now_unix_nanos, v1::DriverState* state);
void ForgetLinksAmong(const std::vector<std::string>& node_ids, v1::DriverState* state);
bool ForgetLinksOf(absl::string_view node_id, v1::DriverState* state);
bool HasFailedLink(const v1::DriverState& state, absl::string_view node_id);

// Returns the pairs of nodes that are the ends of failed links.
using NodePairs = std::vector<std::pair<std::string, std::string>>;
NodePairs FailedPairs(const v1::DriverState& state);

}  // namespace megascale::driver
