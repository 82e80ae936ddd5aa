// Where the time of a running job's newest steps went, from what its agents keep. Blocking: until
// the agents have answered, or for about `kMeasureTimeout`.
#pragma once

#include "absl/time/time.h"
#include "controlplane/driver/relay/span_stream.h"
#include "proto/control.pb.h"

namespace megascale::driver {

inline constexpr absl::Duration kMeasureTimeout = absl::Seconds(2);
inline constexpr int kMeasuredSteps = 3;
// Of a job with more ranks nothing is measured: `StreamSpans` has them all.
inline constexpr int kMeasuredRanksMax = 256;

// None where it cannot be measured: of a job that does not train just now, or has many ranks, or
// whose agents do not answer. ports: job, cluster, fetch and now; fetch should wait for a part of
// kMeasureTimeout only.
google::protobuf::RepeatedPtrField<megascale::control::v1::StageTime> MeasureStages(
    const megascale::control::v1::Job& job, SpanStreamPorts ports);

}  // namespace megascale::driver
