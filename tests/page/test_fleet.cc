#include "tests/page/test_fleet.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"
#include "runtime/simulate/step_time.h"
#include "runtime/telemetry/doing.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::page {
namespace {

constexpr int kRanksOfMachine = 8;
constexpr int64_t kSubmittedSeconds = 1'790'000'000;
constexpr double kFlopsCeiling = 6.4e14;
constexpr int64_t kFirstNanos = 5'000'000'000;
constexpr int64_t kStepNanos = 1'000'000'000;
// Makes a step of the plan take most of kStepNanos.
constexpr double kPlannedStepNanos = 8.5e8;
constexpr int kPlannedRanksMax = 512;

job::v1::JobSpec SpecOf(const TestFleetOptions& options) {
  job::v1::JobSpec spec;
  spec.set_name("gpt-13b");
  spec.mutable_model()->set_num_hidden_layers(2 * options.pipeline);
  spec.mutable_model()->set_hidden_size(64);
  spec.mutable_model()->set_num_attention_heads(8);
  spec.mutable_data()->add_files("/data");
  spec.mutable_train()->set_steps(std::max<int64_t>(400, options.last_step));
  spec.mutable_train()->set_seq_length(64);
  spec.mutable_train()->set_global_batch_size(options.microbatches * options.data);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_data_parallel_size(options.data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(options.pipeline);
  spec.mutable_parallel()->set_tensor_model_parallel_size(options.tensor);
  return job::ResolveJobSpec(spec).value();
}

// A curve that falls, with a noise that is a function of the step.
telemetry::v1::StepRecord RecordOf(int64_t step) {
  telemetry::v1::StepRecord record;
  const auto s = static_cast<double>(step);
  const double noise = std::sin(s * 12.9898) * 0.5 + std::sin(s * 78.233) * 0.5;
  record.set_step(step);
  record.set_loss(2.1 + 6.5 * std::exp(-s / 45) + 0.06 * noise);
  record.set_grad_norm(0.6 + 2.2 * std::exp(-s / 30) + 0.12 * noise);
  record.set_lr(3e-4 * std::min(1.0, s / 40));
  record.set_tokens(1'048'576);
  record.set_seconds(0.93 + 0.03 * noise + (step == 150 ? 1.4 : 0));
  record.set_attempt(step <= 150 ? 1 : 2);
  // It overfits from step 100 on.
  if (step % 25 == 0) {
    record.set_held_out_loss(2.3 + 6.4 * std::exp(-s / 45) + 0.004 * std::max(0.0, s - 100));
  }
  return record;
}

std::string Lengthened(std::string name, size_t num_bytes) {
  name.resize(std::max(name.size(), num_bytes), '+');
  return name;
}

std::string Machine(int index, const TestFleetOptions& options) {
  return Lengthened(absl::StrFormat("node-%03d", index), options.name_bytes);
}

std::string MachineOf(int rank, const TestFleetOptions& options) {
  return Machine(rank / kRanksOfMachine, options);
}

}  // namespace

TestFleet::TestFleet(const TestFleetOptions& options) : options_(options) {
  control::v1::Job ended;
  ended.set_job_id(kHostile);
  ended.mutable_spec()->set_name(kHostile);
  ended.mutable_spec()->mutable_train()->set_steps(100);
  ended.set_state(control::v1::JOB_STATE_FAILED);
  ended.set_reason("RankExited");
  ended.set_message(kHostile);
  ended.set_last_step(40);
  ended.mutable_submitted_at()->set_seconds(kSubmittedSeconds - 90'000);
  ended.mutable_ended_at()->set_seconds(kSubmittedSeconds - 80'000);
  ended.mutable_culprit()->set_node_id(kHostile);
  ended.mutable_culprit()->set_rank(2);
  ended.mutable_culprit()->set_attempt(3);
  ended.mutable_culprit()->set_failure_class(telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  ended.mutable_culprit()->set_evidence(kHostile);
  for (int i = 0; i < options.num_ended_jobs; ++i) {
    jobs_.push_back(ended);
    jobs_.back().set_job_id(Lengthened(absl::StrCat("ended-", i), options.name_bytes));
  }
  jobs_.push_back(std::move(ended));
  AddRunningJob(options);
  AddMachines(options);
}

void TestFleet::AddRunningJob(const TestFleetOptions& options) {
  control::v1::Job running;
  running.set_job_id(kJobId);
  *running.mutable_spec() = SpecOf(options);
  running.set_state(control::v1::JOB_STATE_RUNNING);
  running.set_message("trains");
  running.set_attempt(2);
  running.set_restarts(1);
  running.set_attempt_reason("RankExited");
  running.set_last_step(options.last_step);
  *running.mutable_last_record() = RecordOf(options.last_step);
  for (int64_t step = 25; step <= options.last_step; step += 25) {
    const double loss = RecordOf(step).held_out_loss();
    running.mutable_held_out()->set_step(step);
    running.mutable_held_out()->set_loss(loss);
    if (running.has_lowest_held_out() && running.lowest_held_out().loss() <= loss) continue;
    *running.mutable_lowest_held_out() = running.held_out();
  }
  running.set_tokens_per_second(1'048'576 / 0.93);
  running.set_flops_ceiling(kFlopsCeiling);
  running.set_model_flops_per_second(0.553 * kFlopsCeiling);
  running.mutable_submitted_at()->set_seconds(kSubmittedSeconds);
  running.mutable_started_at()->set_seconds(kSubmittedSeconds + 12);
  running.mutable_last_checkpoint()->set_step(200);
  running.mutable_last_checkpoint()->set_attempt(2);
  running.mutable_last_checkpoint()->set_age_seconds(38);
  running.mutable_last_checkpoint()->set_directory(
      "/srv/megascale/gpt-13b/step-00000200-attempt-2");
  control::v1::TimeAccount* account = running.mutable_time_account();
  account->set_wall_nanos(300 * kStepNanos);
  account->set_kept_nanos(223 * kStepNanos);
  account->set_queue_nanos(5 * kStepNanos);
  account->set_start_nanos(9 * kStepNanos);
  account->set_load_nanos(11 * kStepNanos);
  account->set_checkpoint_nanos(4 * kStepNanos);
  account->set_detection_nanos(1 * kStepNanos);
  account->set_decision_nanos(2 * kStepNanos);
  account->set_recomputation_nanos(40 * kStepNanos);
  account->set_degraded_nanos(4 * kStepNanos);
  account->set_evaluation_nanos(1 * kStepNanos);
  *running.mutable_last_hour() = *account;
  control::v1::NumberWarning* jump = running.add_number_warnings();
  jump->set_kind(control::v1::NumberWarning::KIND_LOSS_JUMP);
  jump->set_message("loss 10.5 in step 91 is 5.2 times the usual 2.03");
  control::v1::Suspicion* suspicion = running.mutable_suspicion();
  suspicion->set_attempt(2);
  suspicion->set_rank(kSlowRank);
  suspicion->set_node_id(MachineOf(kSlowRank, options));
  suspicion->set_verdict("stuck: rank 13 is in F.c1.m3, and 7 ranks wait for it");
  suspicion->add_evidence(kHostile);
  suspicion->mutable_since()->set_seconds(kSubmittedSeconds + 290);
  suspicion->mutable_began_at()->set_seconds(kSubmittedSeconds + 250);
  suspicion->set_action("told: the job's policy evicts nothing");
  const int num_ranks = options.data * options.pipeline * options.tensor;
  for (int rank = 0; rank < num_ranks; ++rank) {
    control::v1::RankView* view = running.add_ranks();
    view->set_node_id(MachineOf(rank, options));
    telemetry::v1::RankStatus* status = view->mutable_status();
    status->set_rank(rank);
    status->set_pid(4000 + rank);
    status->set_phase(telemetry::v1::PHASE_TRAINING);
    status->set_step(options.last_step);
    status->set_alive_age_seconds(0.2);
    status->set_progress_age_seconds(0.1);
    status->mutable_device()->set_name("NVIDIA H100 80GB HBM3");
    status->mutable_device()->set_used_bytes(int64_t{61} << 30);
    // The ranks of the slow one's replica wait for it.
    const int replica = options.data * options.tensor;
    const bool waits = rank != kSlowRank && rank % replica == kSlowRank % replica;
    const plan::InstructionId forward(plan::OpKind::kForward, rank / replica, 3);
    const plan::InstructionId receive(plan::OpKind::kReceiveActivation, rank / replica, 3);
    telemetry::SetDoing({.activity = telemetry::v1::ACTIVITY_INSTRUCTION,
                         .instruction = waits && rank > kSlowRank ? receive : forward},
                        status);
    status->set_doing(telemetry::DescribeDoing(*status));
  }
  jobs_.push_back(std::move(running));
}

void TestFleet::AddMachines(const TestFleetOptions& options) {
  const int num_machines = job().ranks_size() / kRanksOfMachine + 3;
  cluster_.set_version("0.9-test");
  for (int i = 0; i < num_machines; ++i) {
    control::v1::NodeView* node = cluster_.add_nodes();
    node->set_node_id(Machine(i, options));
    node->set_machine_id(absl::StrCat("m", i));
    node->set_num_slots(kRanksOfMachine);
    node->set_alive(true);
    node->set_pool(control::v1::POOL_ACTIVE);
    node->set_heartbeat_age_seconds(0.4);
    node->mutable_resources()->set_cores(96);
    node->mutable_resources()->set_memory_bytes(int64_t{1} << 40);
    const bool is_used = i < num_machines - 3;
    node->set_num_slots_used(is_used ? kRanksOfMachine : 0);
    node->set_num_jobs(is_used ? 1 : 0);
  }
  AddExchanges(options);
  cluster_.mutable_nodes(num_machines - 3)->set_pool(control::v1::POOL_SPARE);
  cluster_.mutable_nodes(num_machines - 2)->set_pool(control::v1::POOL_QUARANTINED);
  cluster_.mutable_nodes(num_machines - 2)->set_quarantine_evidence("memory test: 3 bits differ");
  cluster_.mutable_nodes(num_machines - 1)->set_alive(false);
  cluster_.mutable_nodes(num_machines - 1)->set_node_id(kHostile);
}

// The first machine exchanged with two others, one of which was slow, and with several at once.
void TestFleet::AddExchanges(const TestFleetOptions& options) {
  control::v1::NodeView* node = cluster_.mutable_nodes(0);
  const auto fill = [](double rate, control::v1::ExchangeResult* result) {
    result->set_bytes_per_second(rate);
    result->set_rate_min(kExchangeRateMin);
    result->set_latency_seconds(4e-5);
    result->mutable_ended_at()->set_seconds(kSubmittedSeconds - 60);
  };
  for (const int other : {1, 2}) {
    control::v1::ExchangeResult* result = node->add_exchanges();
    result->set_node_id(Machine(other, options));
    fill(other == 1 ? 2.2e10 : 3e9, result);
  }
  control::v1::ExchangeResult* round = node->mutable_exchange_round();
  fill(2e10, round);
  for (const int other : {1, 2, 3}) round->add_node_ids(Machine(other, options));
}

absl::StatusOr<control::v1::Job> TestFleet::GetJob(const std::string& job_id) {
  for (const control::v1::Job& job : jobs_) {
    if (job.job_id() == job_id) return job;
  }
  return absl::NotFoundError("no such job");
}

// Replicas run alike but for the slow rank's: of a large job two are planned, and the second one
// has the slow rank.
absl::StatusOr<TestFleet::PlannedStep> TestFleet::Plan() const {
  TestFleetOptions planned = options_;
  if (job().ranks_size() > kPlannedRanksMax) planned.data = 2;
  ASSIGN_OR_RETURN(trace::JobSpans spans, trace::JobSpans::Create(SpecOf(planned)));
  const auto work = [](const plan::RankPlan& plan, const plan::Instruction& instruction) {
    const double slowness = plan.rank == kSlowRank ? 1.35 : 1.0;
    return static_cast<double>(instruction.flops + instruction.bytes) * slowness;
  };
  double factor = 1;
  timeline::StepTime time;
  for (int round = 0; round < 2; ++round) {
    ASSIGN_OR_RETURN(
        time, simulate::TimeStep(spans.plans(), [&](const auto& plan, const auto& instruction) {
          return static_cast<int64_t>(work(plan, instruction) * factor);
        }));
    if (round == 0)
      factor = kPlannedStepNanos / static_cast<double>(std::max<int64_t>(1, time.end));
  }
  return PlannedStep{std::move(spans), std::move(time)};
}

absl::Status TestFleet::Spans(
    const control::v1::StreamSpansRequest& request,
    const std::function<bool(const control::v1::StreamSpansResponse&)>& emit) {
  ++num_span_reads_;
  num_ranks_read_ = 0;
  if (!planned_) {
    ASSIGN_OR_RETURN(planned_, Plan());
  }
  const plan::Mesh& planned_mesh = planned_->spans.plans().front().mesh;
  for (int rank = 0; rank < job().ranks_size(); ++rank) {
    const auto& asked = request.ranks();
    if (!asked.empty() && std::find(asked.begin(), asked.end(), rank) == asked.end()) continue;
    const int replica = rank / options_.tensor % options_.data;
    const auto planned_rank = static_cast<size_t>(planned_mesh.RankOf(
        {.data = planned_mesh.data_size() == options_.data ? replica : (replica == 1 ? 1 : 0),
         .pipeline = rank / options_.tensor / options_.data,
         .tensor = rank % options_.tensor}));
    control::v1::StreamSpansResponse response;
    response.set_rank(rank);
    response.set_attempt(job().attempt());
    response.set_node_id(job().ranks(rank).node_id());
    response.set_read_nanos(kFirstNanos + job().last_step() * kStepNanos);
    const plan::RankPlan& plan = planned_->spans.plans()[planned_rank];
    const auto& times = planned_->time.ranks[planned_rank];
    for (int64_t step = std::max<int64_t>(1, request.first_step()); step <= job().last_step();
         ++step) {
      const int64_t at = kFirstNanos + (step - 1) * kStepNanos;
      const int64_t divisor = step < full_time_from_ ? 2 : 1;
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        telemetry::v1::Span* span = response.add_spans();
        span->set_begin_nanos(at + times[i].ready / divisor);
        span->set_end_nanos(at + times[i].end / divisor);
        span->set_instruction(plan.instructions[i].id.packed());
        span->set_step(step);
      }
    }
    ++num_ranks_read_;
    if (on_rank_) on_rank_();
    if (!emit(response)) return absl::CancelledError("the reader is gone");
  }
  return absl::OkStatus();
}

absl::StatusOr<telemetry::v1::Evidence> TestFleet::Evidence(const std::string& job_id, int rank,
                                                            telemetry::v1::EvidenceKind kind) {
  ++num_evidence_reads_;
  ASSIGN_OR_RETURN(const control::v1::Job job, GetJob(job_id));
  constexpr int64_t kNow = 900 * kStepNanos;
  telemetry::v1::Evidence evidence;
  evidence.set_monotonic_nanos(kNow);
  if (kind == telemetry::v1::EVIDENCE_KIND_METRICS) {
    for (int64_t second = 300; second <= 900; ++second) {
      const double wave = std::sin(static_cast<double>(second) * 0.21);
      telemetry::v1::MachineSample* sample = evidence.add_samples();
      sample->set_monotonic_nanos(second * kStepNanos);
      sample->set_busy_cores(61 + 6 * wave);
      sample->set_load(64 + wave);
      sample->set_memory_available_bytes(int64_t{400} << 30);
      sample->set_disk_free_bytes(int64_t{900} << 30);
      sample->set_disk_read_bytes(2e7 + 1e7 * wave);
      for (int local = 0; local < 8; ++local) {
        telemetry::v1::ProcessSample* rank = sample->add_ranks();
        rank->set_tokens_per_second(500 + 10 * wave);
        rank->set_transfer_share(0.25 + 0.0625 * local);
        rank->set_awaiting_share(0.25);
      }
      for (int gpu = 0; gpu < 8 && second % 5 == 0; ++gpu) {
        telemetry::v1::GpuSample* shown = sample->add_gpus();
        shown->set_index(gpu);
        shown->set_busy_share(0.9 + 0.05 * wave);
        shown->set_temperature_celsius(60 + gpu);
        shown->set_power_watts(600);
        shown->set_memory_used_bytes(int64_t{70} << 30);
        shown->set_core_clock_megahertz(gpu == 3 ? 1200 : 1980);
        if (gpu == 3) shown->add_throttled_by(kHostile);
      }
      for (const char* name : {"eth0", kHostile}) {
        telemetry::v1::InterfaceSample* interface = sample->add_interfaces();
        interface->set_name(name);
        interface->set_received_bytes(1.1e10 + 2e9 * wave);
        interface->set_sent_bytes(1.0e10 + 2e9 * wave);
      }
    }
    return evidence;
  }
  for (const int peer : {rank + 1, rank - 1}) {
    telemetry::v1::ExchangeState* state = evidence.add_running();
    state->set_group(peer > rank ? "tensor/0" : kHostile);
    state->set_operation(0);
    state->set_sequence(4181);
    state->set_instruction(plan::InstructionId(plan::OpKind::kForward, 1, 3).packed());
    state->set_peer(peer);
    state->set_send_bytes(1 << 20);
    state->set_transmitted_bytes(1 << 20);
    state->set_delivered_bytes(1 << 19);
    state->set_receive_bytes(1 << 20);
    state->set_received_bytes(1 << 18);
    state->set_begin_nanos(kNow - 4 * kStepNanos);
    state->set_changed_nanos(kNow - (peer > rank ? 3 : 2) * kStepNanos);
  }
  telemetry::v1::ExchangeState* done = evidence.add_completed();
  *done = evidence.running(0);
  done->set_sequence(4180);
  done->set_end_nanos(kNow - 4 * kStepNanos + 1);
  done->set_ok(true);
  return evidence;
}

absl::Status TestFleet::Logs(
    const std::string& job_id, int rank,
    const std::function<bool(const control::v1::StreamLogsResponse&)>& emit) {
  control::v1::StreamLogsResponse response;
  response.set_rank(rank);
  response.set_data(absl::StrCat("rank ", rank, " joined its groups\n", kHostile,
                                 "\n</pre><script>document.title='owned'</script>\n\x1b[31mred\n"));
  emit(response);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<telemetry::v1::StepRecord>> TestFleet::Steps(const control::v1::Job& job,
                                                                        int64_t first_step,
                                                                        int64_t steps_max) {
  std::vector<telemetry::v1::StepRecord> steps;
  for (int64_t step = std::max<int64_t>(1, first_step);
       step <= job.last_step() && static_cast<int64_t>(steps.size()) < steps_max; ++step) {
    steps.push_back(RecordOf(step));
  }
  return steps;
}

absl::StatusOr<std::vector<telemetry::v1::StepRecord>> TestFleet::SampleSteps(
    const control::v1::Job& job, int64_t points) {
  return Steps(job, 1, points);
}

}  // namespace megascale::page
