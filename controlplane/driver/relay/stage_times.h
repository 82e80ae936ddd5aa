// Measures where the time of a running job's newest steps went, from the spans that its agents
// keep. Blocking: until the agents have answered, or for about `kMeasureTimeout`.
#pragma once

#include "absl/time/time.h"
#include "controlplane/driver/relay/span_stream.h"
#include "proto/control.pb.h"

namespace megascale::driver {

inline constexpr absl::Duration kMeasureTimeout = absl::Seconds(2);
inline constexpr int kMeasuredSteps = 3;
// A job with more ranks is not measured; use `StreamSpans` for it.
inline constexpr int kMeasuredRanksMax = 256;

// Returns the times of each stage; empty if they cannot be measured, because the job does not train
// now, has more than kMeasuredRanksMax ranks, or its agents do not answer. Uses `job`, `cluster`,
// `fetch` and `now` of `ports`; `fetch` should wait for only a part of kMeasureTimeout.
google::protobuf::RepeatedPtrField<megascale::control::v1::StageTime> MeasureStages(
    const megascale::control::v1::Job& job, SpanStreamPorts ports);

}  // namespace megascale::driver
