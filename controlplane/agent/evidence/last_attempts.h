// The newest spans, calls and samples of jobs that no longer run on this agent. It keeps those of
// each job's last attempt, so that the driver can still ask why the job failed or how its last
// steps went. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/telemetry.pb.h"

namespace megascale::agent {

struct LastAttempt {
  int64_t attempt = 0;
  std::map<int, v1::SpanChunk> spans;                // by rank
  std::map<int, telemetry::v1::Evidence> exchanges;  // by rank
  telemetry::v1::Evidence samples;                   // of the machine
};

class LastAttempts {
 public:
  static constexpr size_t kJobsMax = 4;                 // those that left last
  static constexpr size_t kBytesMax = size_t{1} << 20;  // about, of a job
  // What it keeps: of each rank the spans of kSteps steps (fewer if they do not fit) and kCalls
  // calls, and the machine's samples of kSamples seconds.
  static constexpr int64_t kSteps = 16;
  static constexpr int kCalls = 64;
  static constexpr int kSamples = 60;

  // Keeps the newest part of `last`.
  void Keep(const std::string& job_id, LastAttempt last);

  // Answer as the running attempt does. Errors: NotFound - nothing is kept of that attempt here.
  absl::StatusOr<v1::SpanChunk> Spans(const v1::FetchSpans& fetch) const;
  absl::StatusOr<telemetry::v1::Evidence> Evidence(const v1::FetchEvidence& fetch) const;

 private:
  const LastAttempt* Find(const std::string& job_id, int64_t attempt) const;

  std::deque<std::pair<std::string, LastAttempt>> jobs_;  // the newest last
};

}  // namespace megascale::agent
