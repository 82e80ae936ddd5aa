// Ranks that ran as planned, for tests: what they would tell of a step whose instructions take as
// many nanoseconds as they have FLOPs and bytes.
#pragma once

#include <cstdint>

#include "controlplane/trace/job_spans.h"
#include "runtime/job/job_spec.h"

namespace megascale::trace {

// Two stages of two replicas.
inline megascale::job::v1::JobSpec TestSpec() {
  megascale::job::v1::JobSpec spec;
  spec.set_name("j");
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_hidden_size(8);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/data");
  spec.mutable_train()->set_steps(100);
  spec.mutable_train()->set_seq_length(8);
  spec.mutable_train()->set_global_batch_size(8);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_data_parallel_size(2);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
  return job::ResolveJobSpec(spec).value();
}

inline simulate::StepTime PlannedTime(const std::vector<plan::RankPlan>& plans) {
  return simulate::TimeStep(plans, [](const plan::Instruction& i) { return i.flops + i.bytes; })
      .value();
}

// When step 1 begins, by a machine's clock, and how long each takes.
inline constexpr int64_t kFirstNanos = 5'000'000'000;
inline constexpr int64_t kStepNanos = 1'000'000'000;

// Adds the spans of steps `first` to `last` of `rank`, begun when ready, as its machine's clock
// shows them.
inline void AddPlannedSteps(const plan::RankPlan& plan,
                            const std::vector<simulate::SpanTime>& planned, int64_t first,
                            int64_t last,
                            google::protobuf::RepeatedPtrField<telemetry::v1::Span>* spans) {
  for (int64_t step = first; step <= last; ++step) {
    const int64_t at = kFirstNanos + (step - 1) * kStepNanos;
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      telemetry::v1::Span* span = spans->Add();
      span->set_begin_nanos(at + planned[i].ready);
      span->set_end_nanos(at + planned[i].end);
      span->set_instruction(plan.instructions[i].id.packed());
      span->set_step(step);
    }
  }
}

}  // namespace megascale::trace
