#include "controlplane/trace/job_spans.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/plan_options.h"
#include "runtime/timeline/step_breakdown.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::trace {
namespace {

namespace control = megascale::control::v1;

RankName NameOf(const plan::RankPlan& plan, const std::string& node_id) {
  const plan::Coordinate at = plan.mesh.CoordinateOf(plan.rank);
  return {.rank = absl::StrCat("rank ", plan.rank),
          .node = base::Printable(node_id),
          .place = absl::StrCat(
              "stage ", at.pipeline, ", data ", at.data,
              plan.mesh.tensor_size() > 1 ? absl::StrCat(", tensor ", at.tensor) : "")};
}

double Seconds(int64_t nanos, int64_t count) {
  return static_cast<double>(nanos) / 1e9 / static_cast<double>(count);
}

}  // namespace

std::vector<int> MachineOfRanks(const control::Job& job) {
  std::map<std::string, int> numbers = {{"", -1}};
  std::vector<int> machines;
  for (const control::RankView& rank : job.ranks()) {
    const auto number = static_cast<int>(numbers.size());
    machines.push_back(numbers.try_emplace(rank.node_id(), number).first->second);
  }
  return machines;
}

absl::StatusOr<std::shared_ptr<const StagePlans>> StagePlans::Create(
    const megascale::job::v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(layout::RankLayout first, layout::RankLayoutOf(spec, 0));
  plan::PlanOptions& options = first.plan_options;
  ASSIGN_OR_RETURN(options.chunks, layout::ChunkCostsOf(spec));
  StagePlans stages;
  stages.steps_max_ = spec.train().steps();
  ASSIGN_OR_RETURN(stages.plans_, plan::BuildRolePlans(options));
  stages.options_ = std::move(options);
  return std::make_shared<const StagePlans>(std::move(stages));
}

plan::RankPlan StagePlans::PlanOf(int rank) const { return plan::PlanOfRank(plans_, rank); }

std::function<const plan::RankPlan*(int rank)> StagePlans::EvaluationPlans() const {
  return [this](int rank) -> const plan::RankPlan* {
    std::call_once(evaluation_->once, [this] {
      plan::PlanOptions options = options_;
      options.evaluates = true;
      if (auto plans = plan::BuildRolePlans(options); plans.ok()) {
        evaluation_->plans = *std::move(plans);
      }
    });
    const auto stage = static_cast<size_t>(mesh().CoordinateOf(rank).pipeline);
    return stage < evaluation_->plans.size() ? &evaluation_->plans[stage] : nullptr;
  };
}

absl::StatusOr<JobSpans> JobSpans::Create(const megascale::job::v1::JobSpec& spec,
                                          absl::Span<const int> ranks, PlannedRanks planned) {
  ASSIGN_OR_RETURN(std::shared_ptr<const StagePlans> stages, StagePlans::Create(spec));
  return Create(std::move(stages), ranks, planned);
}

absl::StatusOr<JobSpans> JobSpans::Create(std::shared_ptr<const StagePlans> stages,
                                          absl::Span<const int> ranks, PlannedRanks planned) {
  const plan::Mesh& mesh = stages->mesh();
  JobSpans spans;
  spans.stages_ = std::move(stages);
  std::vector<int> chosen(ranks.begin(), ranks.end());
  if (chosen.empty()) {
    chosen.resize(static_cast<size_t>(mesh.world_size()));
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  for (const int rank : chosen) {
    if (!mesh.Contains(rank)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, ": the job has ranks 0 to ", mesh.world_size() - 1));
    }
    spans.plans_.push_back({.mesh = mesh, .rank = rank});
    if (planned == PlannedRanks::kAll) spans.Plan(rank);
    spans.names_.push_back(
        {.rank = timeline::NameOf(spans.plans_.back()), .node = "", .place = ""});
  }
  spans.ranks_.resize(spans.plans_.size(), timeline::RankSpans{.known = false, .spans = {}});
  return spans;
}

void JobSpans::Plan(int rank) {
  const int index = IndexOf(rank);
  if (index < 0) return;
  plan::RankPlan& plan = plans_[static_cast<size_t>(index)];
  if (plan.instructions.empty()) plan = stages_->PlanOf(rank);
}

int JobSpans::IndexOf(int rank) const {
  const auto found =
      std::lower_bound(plans_.begin(), plans_.end(), rank,
                       [](const plan::RankPlan& plan, int wanted) { return plan.rank < wanted; });
  return found == plans_.end() || found->rank != rank ? -1
                                                      : static_cast<int>(found - plans_.begin());
}

namespace {

// Recordings of numerics version 3 and older have one gather of norms, and one of trust sums,
// where plans now have several in a row. The gathers that they lack took no time.
void AddGathersOfNewerPlans(std::vector<telemetry::Span>* spans) {
  using plan::OpKind;
  const bool is_newer = std::any_of(spans->begin(), spans->end(), [](const telemetry::Span& span) {
    return plan::InstructionId::FromPacked(span.instruction).operation() ==
           OpKind::kGatherDataNorms;
  });
  if (is_newer) return;
  std::vector<telemetry::Span> all;
  all.reserve(spans->size());
  for (const telemetry::Span& span : *spans) {
    const auto id = plan::InstructionId::FromPacked(span.instruction);
    const auto add = [&](const plan::InstructionId& missing) {
      telemetry::Span gather = span;
      gather.instruction = missing.packed();
      gather.end_nanos = span.begin_nanos;
      gather.bytes = gather.exchange_nanos = 0;
      all.push_back(gather);
    };
    if (id.operation() == OpKind::kReduceNorm) {
      add(plan::InstructionId(OpKind::kGatherTensorNorms));
      add(plan::InstructionId(OpKind::kGatherDataNorms));
    } else if (id.operation() == OpKind::kGatherTrustSums) {
      add(plan::InstructionId(OpKind::kGatherTensorTrustSums, id.chunk()));
    }
    all.push_back(span);
  }
  *spans = std::move(all);
}

}  // namespace

void JobSpans::Add(const control::StreamSpansResponse& response) {
  const int known = IndexOf(response.rank());
  if (known < 0) return;
  const auto index = static_cast<size_t>(known);
  Plan(response.rank());
  names_[index] = NameOf(plans_[index], response.node_id());
  if (!response.error().empty()) {
    errors_.push_back(absl::StrCat("rank ", response.rank(), ": ", response.error()));
    return;
  }
  timeline::RankSpans& spans = ranks_[index];
  const auto is_time = [](int64_t nanos) { return nanos >= 0 && nanos < kClockNanosMax; };
  const int64_t ahead = std::clamp(response.clock_ahead_nanos(), -kClockNanosMax, kClockNanosMax);
  spans.known = true;
  spans.seen_nanos = std::clamp(response.read_nanos(), int64_t{0}, kClockNanosMax) - ahead;
  for (const telemetry::v1::Span& span : response.spans()) {
    if (!is_time(span.begin_nanos()) || !is_time(span.end_nanos())) continue;
    if (span.step() < 0 || span.step() > stages_->steps_max()) continue;
    spans.spans.push_back({.begin_nanos = span.begin_nanos() - ahead,
                           .end_nanos = span.end_nanos() == 0 ? 0 : span.end_nanos() - ahead,
                           .instruction = span.instruction(),
                           .step = span.step(),
                           .bytes = span.bytes(),
                           .lane = static_cast<uint8_t>(span.lane()),
                           .code = static_cast<uint8_t>(span.code()),
                           .exchange_nanos = span.exchange_nanos()});
  }
  AddGathersOfNewerPlans(&spans.spans);
  num_lost_ += response.num_lost();
  clocks_.insert(ahead);
  clock_error_nanos_ = std::max(clock_error_nanos_, response.clock_error_nanos());
}

std::vector<timeline::TimedStep> JobSpans::Measure(int num_steps) const {
  return timeline::MeasureSteps(plans_, ranks_, num_steps);
}

google::protobuf::RepeatedPtrField<control::StageTime> StageTimes(
    const JobSpans& spans, absl::Span<const timeline::TimedStep> steps) {
  const auto num_whole = std::count_if(steps.begin(), steps.end(),
                                       [](const timeline::TimedStep& step) { return step.whole; });
  google::protobuf::RepeatedPtrField<control::StageTime> stages;
  for (int stage = 0; stage < spans.plans().front().mesh.pipeline_size(); ++stage) {
    timeline::StepBreakdown sum;
    int64_t num_ranks = 0;
    int64_t last_step = 0;
    for (size_t index = 0; index < spans.plans().size(); ++index) {
      const plan::RankPlan& plan = spans.plans()[index];
      if (plan.stage() != stage || !spans.ranks()[index].known) continue;
      ++num_ranks;
      for (const timeline::TimedStep& step : steps) {
        if (!step.whole) continue;
        sum += timeline::BreakDown(plan, step.time.ranks[index]);
        last_step = std::max(last_step, step.step);
      }
    }
    const int64_t count = num_ranks * num_whole;
    if (count == 0) continue;
    control::StageTime& time = *stages.Add();
    time.set_stage(stage);
    time.set_num_ranks(static_cast<int32_t>(num_ranks));
    time.set_num_steps(static_cast<int32_t>(num_whole));
    time.set_last_step(last_step);
    time.set_step_seconds(Seconds(sum.total(), count));
    time.set_compute_seconds(Seconds(sum.compute, count));
    time.set_optimizer_seconds(Seconds(sum.optimizer, count));
    time.set_tensor_parallel_seconds(Seconds(sum.tensor_parallel, count));
    time.set_pipeline_seconds(Seconds(sum.pipeline, count));
    time.set_data_parallel_seconds(Seconds(sum.data_parallel, count));
    time.set_data_wait_seconds(Seconds(sum.data_wait, count));
    time.set_bubble_seconds(Seconds(sum.bubble, count));
  }
  return stages;
}

}  // namespace megascale::trace
