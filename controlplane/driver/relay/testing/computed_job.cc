#include "controlplane/driver/relay/testing/computed_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "controlplane/trace/testing/test_spans.h"
#include "runtime/plan/operation.h"
#include "runtime/simulate/step_time.h"
#include "runtime/telemetry/rank_work.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

ComputedJob::ComputedJob(const Sizes& sizes, std::set<int> culprits)
    : culprits_(std::move(culprits)) {
  job::v1::JobSpec spec = trace::TestSpec();
  spec.mutable_model()->set_num_hidden_layers(sizes.stages);
  spec.mutable_train()->set_global_batch_size(2 * sizes.replicas);
  spec.mutable_parallel()->set_data_parallel_size(sizes.replicas);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(sizes.stages);
  spec.mutable_parallel()->set_tensor_model_parallel_size(sizes.tensor);
  plans_ = trace::JobSpans::Create(spec).value().plans();
  job.set_job_id("j");
  job.set_attempt(2);
  job.set_state(control::JOB_STATE_RUNNING);
  *job.mutable_spec() = spec;
  for (int rank = 0; rank < static_cast<int>(plans_.size()); ++rank) {
    control::RankView* view = job.add_ranks();
    view->set_node_id(absl::StrCat("n", rank / kRanksOfNode));
    view->mutable_status()->set_rank(rank);
  }
}

ComputedJob::Step ComputedJob::StepWith(int64_t pass_nanos) const {
  const auto nanos_of = [&](const plan::RankPlan& plan, const plan::Instruction& i) {
    return plan::IsPass(i.kind()) ? PassNanosOf(plan.rank, pass_nanos) : kPassNanos / 10;
  };
  return std::make_shared<const ComputedStep>(
      ComputedStep{simulate::TimeStep(plans_, nanos_of).value(), pass_nanos});
}

void ComputedJob::ReportFrom(const Step& step) {
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    for (size_t i = 0; i < step->time.ranks[rank].size(); ++i) {
      const timeline::SpanTime& time = step->time.ranks[rank][i];
      if (time.ready >= kForever || time.end < kForever) continue;
      job.mutable_ranks(static_cast<int>(rank))
          ->mutable_status()
          ->set_instruction(plans_[rank].instructions[i].id.packed());
    }
  }
}

SpanStreamPorts ComputedJob::Spans() {
  SpanStreamPorts ports;
  ports.cluster = [] { return control::GetClusterResponse(); };
  ports.fetch = [this](const std::string&, const agent::FetchSpans& fetch) {
    return FetchSpans(fetch);
  };
  ports.now = [] { return absl::Seconds(100); };
  return ports;
}

EvidenceStreamPorts ComputedJob::Metrics() {
  EvidenceStreamPorts ports;
  ports.fetch = [this](const std::string& node, const agent::FetchEvidence& fetch) {
    return FetchMetrics(node, fetch);
  };
  return ports;
}

std::vector<int> ComputedJob::Sample() const {
  std::vector<int> machines;
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    machines.push_back(static_cast<int>(rank) / kRanksOfNode);
  }
  return diagnose::SampleRanks(plans_.front().mesh, machines);
}

absl::StatusOr<agent::SpanChunk> ComputedJob::FetchSpans(const agent::FetchSpans& fetch) {
  agent::SpanChunk chunk;
  chunk.set_monotonic_nanos(trace::kFirstNanos + 100 * trace::kStepNanos);
  if (fetch.clock_only()) return chunk;
  ++num_fetched;
  const auto rank = static_cast<size_t>(fetch.rank());
  for (const auto& [number, step] : steps) {
    if (number < fetch.first_step()) continue;
    const int64_t at = trace::kFirstNanos + number * trace::kStepNanos;
    for (size_t i = 0; i < step->time.ranks[rank].size(); ++i) {
      const plan::Instruction& instruction = plans_[rank].instructions[i];
      const timeline::SpanTime& time = step->time.ranks[rank][i];
      if (time.ready >= kForever) continue;
      telemetry::v1::Span* span = chunk.add_spans();
      span->set_begin_nanos(at + time.ready);
      if (time.end < kForever) span->set_end_nanos(at + time.end);
      span->set_instruction(instruction.id.packed());
      span->set_step(number);
      // A pass of tensor-parallel ranks ends for all of them at the same time.
      if (!plan::IsPass(instruction.kind()) || time.end >= kForever) continue;
      span->set_exchange_nanos(time.end - time.ready - PassNanosOf(fetch.rank(), step->pass_nanos));
    }
  }
  return chunk;
}

agent::EvidenceChunk ComputedJob::SamplesOf(const std::string& node) const {
  agent::EvidenceChunk chunk;
  int number = 0;
  if (!absl::SimpleAtoi(node.substr(1), &number)) return chunk;
  for (const auto& [step_number, step] : steps) {
    *chunk.mutable_evidence()->add_samples() = SampleOf(number, step_number, *step);
  }
  return chunk;
}

agent::EvidenceChunk ComputedJob::FetchMetrics(const std::string& node,
                                               const agent::FetchEvidence& fetch) {
  ++num_metrics;
  const agent::EvidenceChunk samples = SamplesOf(node);
  agent::EvidenceChunk chunk;
  for (telemetry::v1::RankWork& rank : megascale::telemetry::SumWork(
           fetch.job_id(), {fetch.work_of().begin(), fetch.work_of().end()},
           samples.evidence().samples())) {
    *chunk.mutable_evidence()->add_work() = std::move(rank);
  }
  metrics_bytes += static_cast<int64_t>(chunk.ByteSizeLong());
  return chunk;
}

telemetry::v1::MachineSample ComputedJob::SampleOf(int node, int64_t number,
                                                   const ComputedStep& step) const {
  telemetry::v1::MachineSample sample;
  sample.set_monotonic_nanos(trace::kFirstNanos + number * trace::kStepNanos);
  const size_t first = static_cast<size_t>(node) * kRanksOfNode;
  for (size_t rank = first; rank < std::min(plans_.size(), first + kRanksOfNode); ++rank) {
    int64_t compute_nanos = 0;
    for (size_t i = 0; i < step.time.ranks[rank].size(); ++i) {
      const timeline::SpanTime& time = step.time.ranks[rank][i];
      if (plan::NeedsPeers(plans_[rank].instructions[i].id)) continue;
      compute_nanos += time.end - time.begin;
    }
    telemetry::v1::ProcessSample* shown = sample.add_ranks();
    shown->set_job_id(job.job_id());
    shown->set_rank(static_cast<int>(rank));
    shown->set_step(number);
    shown->set_compute_share(static_cast<double>(compute_nanos) /
                             static_cast<double>(trace::kStepNanos));
  }
  return sample;
}

}  // namespace megascale::driver
