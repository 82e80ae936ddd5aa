// The spans of running jobs that the heat map and the timeline show. They are read from the agents
// when a client asks, at most every few seconds, and only from as many ranks as the driver has
// memory for. The plans that the spans belong to are made once for each job.
//
//   JobTraces traces({.source = &source, .clock = &clock, .stop = &stop});
//   ASSIGN_OR_RETURN(const std::shared_ptr<const Trace> trace, traces.ForHeatMap(job, 5));
//   HeatMapJson(trace->spans, trace->steps, 5);
//
// Threads: any. Blocking: one thread at a time reads spans; the others wait for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "controlplane/page/page_source.h"
#include "controlplane/trace/job_spans.h"
#include "proto/control.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/stop_signal.h"
#include "runtime/plan/mesh.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::page {

struct Trace {
  trace::JobSpans spans;
  std::vector<timeline::TimedStep> steps;  // at least one
  int64_t attempt = 0;
  int64_t num_steps = 0;  // that were asked for
  absl::Duration at;      // when it was made
  absl::Duration cost;    // how long that took
};

class JobTraces {
 public:
  struct Options {
    PageSource* source = nullptr;        // outlives the object
    const base::Clock* clock = nullptr;  // outlives the object
    base::StopSignal* stop = nullptr;    // ends a read; outlives the object
  };
  explicit JobTraces(const Options& options) : options_(options) {}

  // Returns the newest steps, about `num_steps` of them, of all ranks; for a large job, of some
  // ranks. Errors: FailedPrecondition - the job has ended, no rank has begun a step, or a replica
  // has too many instructions; those of trace::StagePlans::Create and PageSource::Spans.
  absl::StatusOr<std::shared_ptr<const Trace>> ForHeatMap(const control::v1::Job& job,
                                                          int64_t num_steps);
  // As ForHeatMap, for at least the ranks that the timeline of `rank` along `axis` shows. Requires:
  // the job's mesh has this rank and this axis. Errors: as ForHeatMap, except that the limit is on
  // the instructions of this rank instead of those of a replica.
  absl::StatusOr<std::shared_ptr<const Trace>> ForTimeline(const control::v1::Job& job,
                                                           int64_t num_steps, plan::Axis axis,
                                                           int rank);

  // Forgets what it keeps of jobs that are not among these or have ended; does nothing while a
  // thread reads spans.
  void Keep(absl::Span<const control::v1::Job> jobs);

 private:
  // The plans of a job's stages, and when they were used last.
  struct Planned {
    std::shared_ptr<const trace::StagePlans> stages;
    absl::Duration used_at;
  };

  // Requires of all: the lock is held.
  absl::StatusOr<std::shared_ptr<const trace::StagePlans>> StagesOf(const control::v1::Job& job);
  // `ranks`: those to read; empty: all.
  absl::StatusOr<std::shared_ptr<const Trace>> TraceOf(
      const control::v1::Job& job, const std::shared_ptr<const trace::StagePlans>& stages,
      int64_t num_steps, const std::vector<int>& ranks);
  absl::StatusOr<std::shared_ptr<const Trace>> Read(
      const control::v1::Job& job, const std::shared_ptr<const trace::StagePlans>& stages,
      int64_t num_steps, const std::vector<int>& ranks);

  const Options options_;
  std::mutex mutex_;                        // held while spans are read: one reader at a time
  std::map<std::string, Planned> planned_;  // by job
  // By job, and by the ranks whose spans were read.
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<const Trace>> traces_;
};

}  // namespace megascale::page
