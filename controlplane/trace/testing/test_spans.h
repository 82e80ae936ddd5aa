// Spans of ranks that ran exactly as planned, for tests: an instruction takes as many nanoseconds
// as the sum of its FLOPs and bytes.
#pragma once

#include <cstdint>

#include "controlplane/trace/job_spans.h"
#include "runtime/job/job_spec.h"
#include "runtime/simulate/step_time.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::trace {

// A job with two pipeline stages and two data-parallel replicas.
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

inline timeline::StepTime PlannedTime(const std::vector<plan::RankPlan>& plans) {
  return simulate::TimeStep(plans, [](const plan::RankPlan&,
                                      const plan::Instruction& i) { return i.flops + i.bytes; })
      .value();
}

// When step 1 begins, on a machine's clock, and how long a step takes.
inline constexpr int64_t kFirstNanos = 5'000'000'000;
inline constexpr int64_t kStepNanos = 1'000'000'000;

// Adds a rank's spans of steps `first` to `last`, on its machine's clock. Each instruction begins
// as soon as it is ready.
inline void AddPlannedSteps(const plan::RankPlan& plan,
                            const std::vector<timeline::SpanTime>& planned, int64_t first,
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
