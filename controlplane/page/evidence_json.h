// What an agent keeps about a rank or its machine, as JSON. Pure functions. All texts and numbers
// come from another machine: texts are made printable, lists are cut.
#pragma once

#include "nlohmann/json.hpp"
#include "proto/telemetry.pb.h"

namespace megascale::page {

// Returns the calls of communicators that the rank is in, sorted by how long no byte has moved, the
// longest first; and the newest calls that it has completed, newest first. At most kExchangesMax of
// each.
inline constexpr int kExchangesMax = 64;
nlohmann::json ExchangesJson(const telemetry::v1::Evidence& evidence);

// Returns the newest kSamplesMax seconds of a machine as arrays of equal length, oldest first. The
// array "seconds" has the time of each sample relative to now, 0 or less. Network rates are sums
// over interfaces.
inline constexpr int kSamplesMax = 900;
nlohmann::json MachineMetricsJson(const telemetry::v1::Evidence& evidence);

}  // namespace megascale::page
