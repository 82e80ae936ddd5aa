#include "controlplane/driver/relay/stage_times.h"

#include <algorithm>

#include "controlplane/trace/job_spans.h"

namespace megascale::driver {

namespace control = megascale::control::v1;

google::protobuf::RepeatedPtrField<control::StageTime> MeasureStages(const control::Job& job,
                                                                     SpanStreamPorts ports) {
  if (job.state() != control::JOB_STATE_RUNNING || job.ranks_size() > kMeasuredRanksMax) return {};
  auto spans = trace::JobSpans::Create(job.spec());
  if (!spans.ok()) return {};
  const absl::Duration end = ports.now() + kMeasureTimeout;
  ports.emit = [&](const control::StreamSpansResponse& response) {
    spans->Add(response);
    return ports.now() < end;
  };
  control::StreamSpansRequest request;
  request.set_job_id(job.job_id());
  request.set_first_step(std::max<int64_t>(0, job.last_step() - kMeasuredSteps + 1));
  if (!StreamSpans(request, ports).ok()) return {};
  return trace::StageTimes(*spans, spans->Measure(kMeasuredSteps));
}

}  // namespace megascale::driver
