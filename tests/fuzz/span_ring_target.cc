// A worker writes nonsense into its ring of spans and its heartbeat slot: what the agent reads of
// them is bounded, and what the driver and `diagnose` make of it, too.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/check.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/stall.h"
#include "runtime/job/job_spec.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

constexpr int kRanks = 2;
constexpr int kStepsMax = 4;
constexpr int64_t kSeenNanos = 1'000'000'000;

job::v1::JobSpec TwoStages() {
  job::v1::JobSpec spec;
  spec.set_name("j");
  spec.mutable_model()->set_hidden_size(8);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/text");
  spec.mutable_train()->set_steps(20);
  spec.mutable_train()->set_seq_length(8);
  spec.mutable_train()->set_global_batch_size(2);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(kRanks);
  return job::ResolveJobSpec(spec).value();
}

// Takes bytes from the front of an input; zeros once it is at its end.
class Bytes {
 public:
  explicit Bytes(absl::string_view input) : rest_(input) {}
  bool at_end() const { return rest_.empty(); }
  template <typename Number>
  Number Take() {
    Number number = 0;
    const size_t count = std::min(sizeof(number), rest_.size());
    std::memcpy(&number, rest_.data(), count);
    rest_.remove_prefix(count);
    return number;
  }

 private:
  absl::string_view rest_;
};

struct Shared {
  std::unique_ptr<base::SharedMemory> spans =
      base::SharedMemory::Create("fuzz-spans", telemetry::SpanBytes(kRanks)).value();
  std::unique_ptr<base::SharedMemory> heartbeats =
      base::SharedMemory::Create("fuzz-slots", telemetry::HeartbeatBytes(kRanks)).value();
};

// A worker that uses its writer as it should, with values as the input has them. At its end it also
// writes where it should not.
class Worker {
 public:
  Worker(const Shared& shared, int index, const plan::RankPlan& plan)
      : shared_(shared), writer_(shared.spans.get(), index), plan_(plan) {}

  void Do(Bytes* input) {
    const auto what = input->Take<uint8_t>();
    const int lane = what / 16 % telemetry::kSpanLanes;
    switch (what % 4) {
      case 0:
        return Begin(lane, input);
      case 1:
        return End(lane, input);
      default:
        pokes_.push_back({.is_slot = what % 4 == 3,
                          .at = input->Take<uint32_t>(),
                          .word = input->Take<uint64_t>()});
    }
  }
  void Poke() const {
    for (const Word& poke : pokes_) {
      const base::SharedMemory& region = poke.is_slot ? *shared_.heartbeats : *shared_.spans;
      const size_t at = poke.at % (region.size_bytes() / sizeof(poke.word));
      std::memcpy(region.data() + at * sizeof(poke.word), &poke.word, sizeof(poke.word));
    }
  }

 private:
  struct Word {
    bool is_slot = false;
    uint32_t at = 0;
    uint64_t word = 0;
  };
  void Begin(int lane, Bytes* input) {
    const auto index = input->Take<uint8_t>();
    telemetry::Span span;
    span.instruction = index < 250
                           ? plan_.instructions[index % plan_.instructions.size()].id.packed()
                           : input->Take<uint64_t>();
    span.step = input->Take<uint8_t>() % 8;
    if (span.step == 7) span.step = input->Take<int64_t>();
    span.begin_nanos = Time(input);
    span.lane = static_cast<uint8_t>(lane);
    writer_.Begin(span);
    has_begun_[static_cast<size_t>(lane)] = true;
  }
  void End(int lane, Bytes* input) {
    if (!std::exchange(has_begun_[static_cast<size_t>(lane)], false)) return;
    writer_.End(lane, Time(input), input->Take<uint8_t>(), Time(input));
  }
  static int64_t Time(Bytes* input) {
    const auto millis = input->Take<uint16_t>();
    return millis < 0xff00 ? int64_t{millis} * 1'000'000 : input->Take<int64_t>();
  }

  const Shared& shared_;
  telemetry::SpanWriter writer_;
  const plan::RankPlan& plan_;
  std::array<bool, telemetry::kSpanLanes> has_begun_ = {};
  std::vector<Word> pokes_;
};

// As the agent and the driver pass spans on.
control::v1::StreamSpansResponse ResponseOf(const Shared& shared, int rank) {
  telemetry::SpanReader reader(shared.spans.get(), rank);
  std::vector<telemetry::Span> spans;
  const int64_t num_lost = reader.Drain(&spans);
  MEGASCALE_CHECK(num_lost >= 0);
  MEGASCALE_CHECK(spans.size() <=
                  static_cast<size_t>(telemetry::kSpanLanes * telemetry::kSpansPerLane));
  const std::vector<telemetry::Span> open = reader.Open();
  MEGASCALE_CHECK(open.size() <= static_cast<size_t>(telemetry::kSpanLanes));
  spans.insert(spans.end(), open.begin(), open.end());
  control::v1::StreamSpansResponse response;
  response.set_rank(rank);
  response.set_num_lost(num_lost);
  response.set_read_nanos(kSeenNanos);
  for (const telemetry::Span& span : spans) {
    telemetry::v1::Span* added = response.add_spans();
    added->set_begin_nanos(span.begin_nanos);
    added->set_end_nanos(span.end_nanos);
    added->set_instruction(span.instruction);
    added->set_step(span.step);
    added->set_lane(span.lane);
    added->set_code(span.code);
    added->set_bytes(span.bytes);
    added->set_exchange_nanos(span.exchange_nanos);
  }
  return response;
}

void CheckSlots(const Shared& shared) {
  for (int slot = 0; slot < kRanks; ++slot) {
    const telemetry::v1::RankStatus status =
        telemetry::ReadHeartbeat(*shared.heartbeats, slot, absl::Nanoseconds(kSeenNanos));
    MEGASCALE_CHECK(std::isfinite(status.alive_age_seconds()));
    MEGASCALE_CHECK(std::isfinite(status.progress_age_seconds()));
    MEGASCALE_CHECK(status.SerializeAsString().size() < 1000);
  }
}

void Diagnose(const trace::JobSpans& spans) {
  const std::vector<timeline::TimedStep> steps = spans.Measure(kStepsMax);
  MEGASCALE_CHECK(steps.size() <= kStepsMax + 2);
  std::vector<bool> known;
  for (const timeline::RankSpans& rank : spans.ranks()) known.push_back(rank.known);
  for (const auto& stage : trace::StageTimes(spans, steps)) {
    MEGASCALE_CHECK(std::isfinite(stage.step_seconds()));
  }
  const diagnose::StallVerdict stall = diagnose::ExplainStall(
      spans.plans(),
      diagnose::PositionsOf(spans.plans(), spans.ranks(), spans.stages()->EvaluationPlans()));
  MEGASCALE_CHECK(stall.root.rank >= -1 && stall.root.rank < kRanks);
  const auto job = diagnose::JobOfSteps(spans.plans(), known, steps);
  if (!job.ok()) return CheckLine(job.status());
  const diagnose::WhatIf result =
      diagnose::AnalyzeSteps(job->graph, job->steps, diagnose::kMeasuredJobOptions);
  MEGASCALE_CHECK(std::isfinite(result.slowdown) && result.slowdown >= 0);
  const diagnose::SlowVerdict verdict =
      diagnose::ExplainSlowness(job->graph, job->steps, diagnose::kMeasuredJobOptions, result, {});
  MEGASCALE_CHECK(std::isfinite(verdict.cause.share));
  MEGASCALE_CHECK(verdict.cause.worker >= -1 && verdict.cause.worker < kRanks);
}

}  // namespace

// The input is a list of what two workers write.
void RunSpanRing(absl::string_view input) {
  static const auto* const shared = new Shared;
  static const auto* const empty =
      new trace::JobSpans(trace::JobSpans::Create(TwoStages()).value());
  telemetry::FormatHeartbeats(*shared->heartbeats);
  trace::JobSpans spans = *empty;
  std::vector<Worker> workers;
  for (int rank = 0; rank < kRanks; ++rank) {
    workers.emplace_back(*shared, rank, spans.plans()[static_cast<size_t>(rank)]);
  }
  for (Bytes bytes(input); !bytes.at_end();) {
    workers[bytes.Take<uint8_t>() % kRanks].Do(&bytes);
  }
  for (const Worker& worker : workers) worker.Poke();
  for (int rank = 0; rank < kRanks; ++rank) spans.Add(ResponseOf(*shared, rank));
  CheckSlots(*shared);
  Diagnose(spans);
}

}  // namespace megascale::fuzz
