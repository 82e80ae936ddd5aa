#include "controlplane/page/job_traces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/page/trace_json.h"
#include "runtime/base/status.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::page {
namespace {

// A picture of spans is at most this old, or older if making it takes long: at most a fifth of the
// time. Its spans are read in at most this time.
constexpr absl::Duration kTraceAgeMax = absl::Seconds(2);
constexpr int kTraceShare = 5;
constexpr absl::Duration kTraceTime = absl::Seconds(4);
constexpr size_t kTracesMax = 3;
// Plans of this many jobs are kept, if a replica's instructions are at most kTracedSpansMax.
constexpr size_t kPlannedJobsMax = 3;
// The page reads the spans of all ranks of a job with at most this many, and of some ranks of a
// larger one.
constexpr int kTracedRanksMax = 512;
constexpr int kSampledRanksMax = 2048;
// At most this many spans are read, by reading fewer steps and fewer ranks: a span takes about 100
// bytes, an instruction of a plan about 200.
constexpr int64_t kTracedSpansMax = 1'000'000;

// Returns the number of instructions in a step of all these ranks. For a replica: the plans of
// StagePlans, one rank of each stage.
int64_t InstructionsOf(absl::Span<const plan::RankPlan> plans) {
  int64_t count = 0;
  for (const plan::RankPlan& plan : plans) {
    count += static_cast<int64_t>(plan.instructions.size());
  }
  return count;
}

absl::Status TooManyInstructions(const control::v1::Job& job, const std::string& of,
                                 int64_t count) {
  return absl::FailedPreconditionError(absl::StrCat(
      of, " has ", count, " instructions in a step, too many for the page; use `megascale trace ",
      job.job_id(), "`"));
}

// True if the spans of all ranks may be read.
bool ReadsAll(const trace::StagePlans& stages) {
  const plan::Mesh& mesh = stages.mesh();
  return mesh.world_size() <= kTracedRanksMax &&
         InstructionsOf(stages.plans()) * (mesh.world_size() / mesh.pipeline_size()) <=
             kTracedSpansMax;
}

// Returns the ranks whose spans the heat map reads; empty: all. In a large job it reads one
// tensor-parallel rank of each stage of a replica, so that every wait between stages and between
// replicas is among them; in a still larger job, those of every second, third … replica.
// Requires: a replica's instructions are at most kTracedSpansMax.
std::vector<int> SampleOf(const trace::StagePlans& stages) {
  if (ReadsAll(stages)) return {};
  const plan::Mesh& mesh = stages.mesh();
  const int num_stages = mesh.pipeline_size();
  const int64_t sum = InstructionsOf(stages.plans());
  const auto replicas_max = static_cast<int>(std::clamp<int64_t>(
      std::min<int64_t>(kSampledRanksMax / num_stages, kTracedSpansMax / std::max<int64_t>(1, sum)),
      1, mesh.data_size()));
  const int every = (mesh.data_size() + replicas_max - 1) / replicas_max;
  std::vector<int> ranks;
  for (int stage = 0; stage < num_stages; ++stage) {
    for (int data = 0; data < mesh.data_size(); data += every) {
      ranks.push_back(mesh.RankOf({.data = data, .pipeline = stage}));
    }
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const trace::StagePlans>> JobTraces::StagesOf(
    const control::v1::Job& job) {
  if (job.has_ended_at()) {
    return absl::FailedPreconditionError("the job has ended, and spans are kept while it runs");
  }
  const absl::Duration now = options_.clock->Monotonic();
  if (const auto found = planned_.find(job.job_id()); found != planned_.end()) {
    found->second.used_at = now;
    return found->second.stages;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const trace::StagePlans> stages,
                   trace::StagePlans::Create(job.spec()));
  if (InstructionsOf(stages->plans()) > kTracedSpansMax) return stages;
  if (planned_.size() >= kPlannedJobsMax) {
    planned_.erase(std::min_element(
        planned_.begin(), planned_.end(),
        [](const auto& a, const auto& b) { return a.second.used_at < b.second.used_at; }));
  }
  planned_[job.job_id()] = {.stages = stages, .used_at = now};
  return stages;
}

absl::StatusOr<std::shared_ptr<const Trace>> JobTraces::Read(
    const control::v1::Job& job, const std::shared_ptr<const trace::StagePlans>& stages,
    int64_t num_steps, const std::vector<int>& ranks) {
  ASSIGN_OR_RETURN(trace::JobSpans spans, trace::JobSpans::Create(stages, ranks));
  const int64_t num_instructions = 1 + InstructionsOf(spans.plans());
  const int64_t steps_max =
      std::clamp(kTracedSpansMax / num_instructions, int64_t{1}, std::max(int64_t{1}, num_steps));
  control::v1::StreamSpansRequest request;
  request.set_job_id(job.job_id());
  request.set_first_step(std::max<int64_t>(0, job.last_step() - steps_max + 1));
  request.mutable_ranks()->Add(ranks.begin(), ranks.end());
  const absl::Duration begin = options_.clock->Monotonic();
  const absl::Duration end = begin + kTraceTime;
  bool is_cut = false;
  const absl::Status read = options_.source->Spans(request, [&](const auto& response) {
    spans.Add(response);
    is_cut = options_.clock->Monotonic() >= end || options_.stop->WaitFor(absl::ZeroDuration());
    return !is_cut;
  });
  // What came before the time was over is shown; the other ranks are unknown.
  if (!read.ok() && !is_cut) return read;
  std::vector<timeline::TimedStep> steps = spans.Measure(static_cast<int>(steps_max));
  if (steps.empty()) {
    return absl::FailedPreconditionError(
        spans.errors().empty() ? "no rank has begun a step of this attempt" : spans.errors()[0]);
  }
  const absl::Duration now = options_.clock->Monotonic();
  return std::make_shared<const Trace>(Trace{.spans = std::move(spans),
                                             .steps = std::move(steps),
                                             .attempt = job.attempt(),
                                             .num_steps = num_steps,
                                             .at = now,
                                             .cost = now - begin});
}

absl::StatusOr<std::shared_ptr<const Trace>> JobTraces::TraceOf(
    const control::v1::Job& job, const std::shared_ptr<const trace::StagePlans>& stages,
    int64_t num_steps, const std::vector<int>& ranks) {
  const auto key = std::make_pair(job.job_id(), ranks);
  const auto found = traces_.find(key);
  if (found != traces_.end() && found->second->attempt == job.attempt() &&
      found->second->num_steps >= num_steps &&
      options_.clock->Monotonic() - found->second->at <
          std::max(kTraceAgeMax, kTraceShare * found->second->cost)) {
    return found->second;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Trace> read, Read(job, stages, num_steps, ranks));
  if (found == traces_.end() && traces_.size() >= kTracesMax) {
    traces_.erase(
        std::min_element(traces_.begin(), traces_.end(),
                         [](const auto& a, const auto& b) { return a.second->at < b.second->at; }));
  }
  traces_[key] = read;
  return read;
}

absl::StatusOr<std::shared_ptr<const Trace>> JobTraces::ForHeatMap(const control::v1::Job& job,
                                                                   int64_t num_steps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ASSIGN_OR_RETURN(const auto stages, StagesOf(job));
  const int64_t of_replica = InstructionsOf(stages->plans());
  if (of_replica > kTracedSpansMax) return TooManyInstructions(job, "a replica", of_replica);
  return TraceOf(job, stages, num_steps, SampleOf(*stages));
}

absl::StatusOr<std::shared_ptr<const Trace>> JobTraces::ForTimeline(const control::v1::Job& job,
                                                                    int64_t num_steps,
                                                                    plan::Axis axis, int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ASSIGN_OR_RETURN(const auto stages, StagesOf(job));
  const plan::Mesh& mesh = stages->mesh();
  const auto stage = static_cast<size_t>(mesh.CoordinateOf(rank).pipeline);
  const size_t of_rank = stages->plans()[stage].instructions.size();
  if (of_rank > kTimelineRankSpansMax) {
    return TooManyInstructions(job, absl::StrCat("rank ", rank), static_cast<int64_t>(of_rank));
  }
  return TraceOf(job, stages, num_steps,
                 ReadsAll(*stages) ? std::vector<int>() : TimelineRanks(mesh, axis, rank));
}

void JobTraces::Keep(absl::Span<const control::v1::Job> jobs) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || (traces_.empty() && planned_.empty())) return;
  const auto runs = [&](const std::string& job_id) {
    return std::any_of(jobs.begin(), jobs.end(), [&](const control::v1::Job& job) {
      return job.job_id() == job_id && !job.has_ended_at();
    });
  };
  std::erase_if(traces_, [&](const auto& trace) { return !runs(trace.first.first); });
  std::erase_if(planned_, [&](const auto& planned) { return !runs(planned.first); });
}

}  // namespace megascale::page
