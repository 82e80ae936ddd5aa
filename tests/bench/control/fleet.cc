#include "tests/bench/control/fleet.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/telemetry/doing.h"
#include "runtime/telemetry/machine_series.h"
#include "runtime/telemetry/rank_work.h"
#include "tests/bench/control/measures.h"

namespace megascale::bench {

namespace pb = megascale::agent::v1;

namespace {

// What an agent of eight ranks has after 15 minutes: a sample of each second.
telemetry::v1::Evidence MakeSamples() {
  constexpr int kSeconds = 900;
  constexpr int kRanks = 8;
  telemetry::v1::Evidence evidence;
  for (int second = 1; second <= kSeconds; ++second) {
    auto* sample = evidence.add_samples();
    sample->set_monotonic_nanos(int64_t{second} * 1'000'000'000);
    sample->set_busy_cores(7.5);
    sample->set_load(8.25);
    sample->set_memory_available_bytes(int64_t{1} << 38);
    sample->set_disk_written_bytes(1e6);
    sample->set_disk_free_bytes(int64_t{1} << 40);
    for (const char* name : {"eth0", "eth1"}) {
      auto* interface = sample->add_interfaces();
      interface->set_name(name);
      interface->set_received_bytes(1.25e9);
      interface->set_sent_bytes(1.25e9);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      auto* process = sample->add_ranks();
      process->set_job_id(kFleetJobId);
      process->set_rank(rank);
      process->set_step(second);
      process->set_busy_cores(0.9);
      process->set_memory_bytes(int64_t{1} << 34);
      process->set_compute_share(0.8);
      process->set_wait_share(0.1);
    }
  }
  evidence.set_monotonic_nanos(int64_t{kSeconds} * 1'000'000'000);
  return evidence;
}

const telemetry::v1::Evidence& KeptSamples() {
  static const auto* const samples = new telemetry::v1::Evidence(MakeSamples());
  return *samples;
}

}  // namespace

control::v1::SubmitJobRequest JobForFleet(int num_agents, int slots) {
  control::v1::SubmitJobRequest request;
  request.set_job_id(kFleetJobId);
  auto* spec = request.mutable_spec();
  spec->set_name("fleet");
  spec->mutable_model()->set_hidden_size(64);
  spec->mutable_model()->set_num_hidden_layers(slots);
  spec->mutable_model()->set_num_attention_heads(2);
  spec->mutable_data()->add_files("/usr/share/common-licenses/GPL-3");
  spec->mutable_train()->set_steps(1'000'000);
  spec->mutable_train()->set_seq_length(16);
  spec->mutable_train()->set_global_batch_size(num_agents);
  spec->mutable_train()->set_micro_batch_size(1);
  spec->mutable_train()->set_eval_interval(0);
  spec->mutable_parallel()->set_data_parallel_size(num_agents);
  spec->mutable_parallel()->set_pipeline_model_parallel_size(slots);
  return request;
}

// One stream. gRPC calls the reactions; the fleet's thread calls Report.
class SimulatedAgent : public grpc::ClientBidiReactor<pb::AgentUp, pb::AgentDown> {
 public:
  // `options` and `samples` outlive the agent; no samples: it never answers.
  SimulatedAgent(const Fleet::Options& options, int index, const telemetry::v1::Evidence* samples)
      : options_(options),
        index_(index),
        node_id_(Fleet::NodeId(index)),
        checkpoint_steps_(options.checkpoint_steps),
        samples_(samples) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(64 << 20);
    const auto channel =
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = pb::AgentService::NewStub(channel);
    pb::Hello* hello = up_.mutable_hello();
    hello->set_protocol_version(pb::PROTOCOL_VERSION_CURRENT);
    hello->set_node_id(node_id_);
    hello->set_incarnation("1");
    hello->set_num_slots(options.slots);
    hello->set_machine_id(node_id_);
    hello->set_instruction_set("amx_bf16");
    hello->set_hostname(node_id_);
    context_.set_wait_for_ready(true);
    stub_->async()->Connect(&context_, this);
    writing_ = true;
    AddHold();
    StartWrite(&up_);
    StartRead(&down_);
    StartCall();
  }

  void Send(pb::AgentUp message) {
    std::lock_guard<std::mutex> lock(mutex_);
    answers_.push_back(std::move(message));
    WriteNext();
  }

  // Sends a report; it replaces one that is not written yet. Returns its size; 0: there was no
  // report.
  int64_t Report(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || !started_) return 0;
    waiting_ = std::make_unique<pb::AgentUp>();
    *waiting_->mutable_actual() = MakeReport(step);
    const auto bytes = static_cast<int64_t>(waiting_->ByteSizeLong());
    WriteNext();
    last_report_ = Now();
    return bytes;
  }

  double last_report() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_report_;
  }
  double left_at() {
    std::lock_guard<std::mutex> lock(mutex_);
    return left_at_;
  }

  void Fail() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [job_id, job] : jobs_) job.failed_attempt = job.attempt;
  }

  pb::ActualState Sample(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    return MakeReport(step);
  }

  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    context_.TryCancel();
    RemoveHold();
  }
  void AwaitDone() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_changed_.wait_for(lock, std::chrono::seconds(30), [this] { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End();
      return;
    }
    if (down_.has_desired()) Take(down_.desired());
    if (down_.has_desired() && options_.on_desired) options_.on_desired(index_, down_.desired());
    if (options_.on_store) {
      for (const auto& reply : down_.store().replies()) options_.on_store(index_, reply);
    }
    if (down_.has_fetch_evidence() && samples_ != nullptr) Answer(down_.fetch_evidence());
    down_.Clear();
    StartRead(&down_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    started_ = true;
    if (ok) WriteNext();
  }
  void OnDone(const grpc::Status&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    done_changed_.notify_all();
  }

 private:
  struct Job {
    int64_t attempt = 0;
    int64_t acked_step = 0;
    pb::StepDuty step_duty = pb::STEP_DUTY_UNSPECIFIED;
    int64_t failed_attempt = 0;
    int64_t committed_step = 0;
    std::string checkpoint_directory;
    std::vector<int64_t> finalize;
    pb::DesiredJob::Phase phase = pb::DesiredJob::PHASE_UNSPECIFIED;
    std::vector<int> ranks;
  };

  pb::ActualState MakeReport(int64_t step) const {
    pb::ActualState actual;
    actual.set_incarnation("1");
    actual.set_applied_version(version_);
    for (const auto& [job_id, job] : jobs_) {
      pb::ActualJob* entry = actual.add_jobs();
      entry->set_job_id(job_id);
      entry->set_attempt(job.attempt);
      entry->mutable_preflight()->set_state(pb::Preflight::STATE_PASSED);
      AddSteps(job, step, entry);
      if (job.phase != pb::DesiredJob::PHASE_RUN) continue;
      if (job.failed_attempt == job.attempt) {
        AddFailure(job, entry);
        continue;
      }
      AddCheckpoint(job, step, entry);
      entry->set_num_processes(static_cast<int>(job.ranks.size()) + 1);
      entry->mutable_host()->set_pid(100);
      for (const int rank : job.ranks) {
        pb::ActualRank* actual_rank = entry->add_ranks();
        actual_rank->set_state(pb::ActualRank::STATE_RUNNING);
        auto* status = actual_rank->mutable_status();
        status->set_rank(rank);
        status->set_pid(1000 + rank);
        status->set_phase(telemetry::v1::PHASE_TRAINING);
        status->set_step(step);
        status->set_alive_age_seconds(0.1);
        status->set_progress_age_seconds(0.05);
        telemetry::SetDoing({.activity = telemetry::v1::ACTIVITY_INSTRUCTION,
                             .instruction = plan::InstructionId(plan::OpKind::kForward, 1, 3)},
                            status);
      }
    }
    return actual;
  }

  static void AddFailure(const Job& job, pb::ActualJob* entry) {
    pb::ActualRank* rank = entry->add_ranks();
    rank->mutable_status()->set_rank(job.ranks[0]);
    rank->set_state(pb::ActualRank::STATE_FAILED);
    rank->mutable_failure()->set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
    rank->mutable_failure()->set_message("killed by the benchmark");
  }

  // The newest checkpoint is on storage; once the driver asks for its manifest, that is, too.
  void AddCheckpoint(const Job& job, int64_t step, pb::ActualJob* entry) const {
    if (checkpoint_steps_ == 0) return;
    const int64_t stored = step / checkpoint_steps_ * checkpoint_steps_;
    for (const int rank : job.ranks) {
      if (stored == 0) break;
      pb::SealedSnapshot* snapshot = entry->add_snapshots();
      snapshot->set_rank(rank);
      snapshot->set_attempt(job.attempt);
      snapshot->set_step(stored);
      if (stored <= job.committed_step) continue;
      pb::StoredShard* shard = entry->add_shards();
      shard->set_rank(rank);
      shard->set_attempt(job.attempt);
      shard->set_step(stored);
    }
    for (const int64_t wanted : job.finalize) {
      pb::StoredManifest* manifest = entry->add_manifests();
      manifest->set_attempt(job.attempt);
      manifest->set_step(wanted);
      manifest->set_directory(absl::StrCat(job.checkpoint_directory, "/step-", wanted));
    }
  }

  // As controlplane/agent/core/job_core.h does it.
  static void AddSteps(const Job& job, int64_t step, pb::ActualJob* entry) {
    const bool runs = job.phase == pb::DesiredJob::PHASE_RUN && job.failed_attempt != job.attempt;
    if (job.step_duty == pb::STEP_DUTY_NONE) return;
    if (job.step_duty == pb::STEP_DUTY_KEEP && runs) return;
    for (int64_t done = job.acked_step + 1; done <= step; ++done) {
      auto* record = entry->add_steps();
      record->set_step(done);
      record->set_loss(2.5);
      record->set_tokens(1 << 20);
      record->set_seconds(1);
      record->set_attempt(job.attempt);
    }
  }

  // As controlplane/agent/service/agent_loop.h does it: metrics have every kept sample, or its
  // columns, or how the ranks spent the steps that are asked for, and other kinds nothing.
  void Answer(const pb::FetchEvidence& fetch) {
    pb::AgentUp message;
    pb::EvidenceChunk* chunk = message.mutable_evidence();
    chunk->set_request_id(fetch.request_id());
    const bool is_metrics = fetch.kind() == telemetry::v1::EVIDENCE_KIND_METRICS;
    if (is_metrics && !fetch.work_of().empty()) {
      std::vector<telemetry::v1::StepRange> ranges(fetch.work_of().begin(), fetch.work_of().end());
      for (auto& rank :
           telemetry::SumWork(fetch.job_id(), std::move(ranges), samples_->samples())) {
        *chunk->mutable_evidence()->add_work() = std::move(rank);
      }
    } else if (is_metrics && fetch.as_series()) {
      *chunk->mutable_evidence()->mutable_series() =
          telemetry::SeriesOf(samples_->samples(), fetch.job_id());
      chunk->mutable_evidence()->set_monotonic_nanos(samples_->monotonic_nanos());
    } else if (is_metrics) {
      *chunk->mutable_evidence() = *samples_;
    }
    Send(std::move(message));
  }

  void Take(const pb::DesiredState& desired) {
    std::lock_guard<std::mutex> lock(mutex_);
    version_ = desired.version();
    std::map<std::string, Job> before = std::exchange(jobs_, {});
    for (const auto& wanted : desired.jobs()) {
      Job& job = jobs_[wanted.job_id()];
      job.attempt = wanted.attempt();
      job.phase = wanted.phase();
      job.acked_step = wanted.acked_step();
      job.step_duty = wanted.step_duty();
      const Job& known = before[wanted.job_id()];
      job.failed_attempt = known.failed_attempt;
      job.checkpoint_directory =
          wanted.as_before() ? known.checkpoint_directory : wanted.checkpoint_directory();
      for (const auto& id : wanted.committed()) job.committed_step = id.step();
      for (const auto& id : wanted.finalize()) job.finalize.push_back(id.step());
      if (wanted.as_before()) job.ranks = known.ranks;
      for (const auto& run : wanted.placements()) {
        if (run.node_id() != node_id_) continue;
        for (int i = 0; i < run.num_ranks(); ++i) job.ranks.push_back(run.rank() + i);
      }
    }
    const Job& ran = before[kFleetJobId];
    if (left_at_ > 0 || ran.phase != pb::DesiredJob::PHASE_RUN) return;
    const auto found = jobs_.find(kFleetJobId);
    const bool runs_on = found != jobs_.end() && found->second.phase == ran.phase &&
                         found->second.attempt == ran.attempt;
    if (!runs_on) left_at_ = Now();
  }

  void WriteNext() {
    if (writing_ || closed_ || (waiting_ == nullptr && answers_.empty())) return;
    if (waiting_ != nullptr) {
      up_ = std::move(*waiting_);
      waiting_.reset();
    } else {
      up_ = std::move(answers_.front());
      answers_.pop_front();
    }
    writing_ = true;
    StartWrite(&up_);
  }

  const Fleet::Options& options_;
  const int index_;
  const std::string node_id_;
  const int checkpoint_steps_;
  const telemetry::v1::Evidence* const samples_;
  std::unique_ptr<pb::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  pb::AgentUp up_;
  pb::AgentDown down_;

  std::mutex mutex_;
  std::condition_variable done_changed_;
  std::unique_ptr<pb::AgentUp> waiting_;
  std::deque<pb::AgentUp> answers_;
  std::map<std::string, Job> jobs_;
  int64_t version_ = 0;
  double last_report_ = 0;
  double left_at_ = 0;  // 0: it did not run the fleet's job, or still does
  bool started_ = false;
  bool writing_ = false;
  bool closed_ = false;
  bool done_ = false;
};

Fleet::Fleet(Options options) : options_(std::move(options)) {
  for (int i = 0; i < options_.num_agents; ++i) {
    agents_.push_back(std::make_unique<SimulatedAgent>(options_, i, SamplesOf(i)));
  }
  beating_ = std::thread([this] { Beat(); });
}

Fleet::~Fleet() {
  stopping_ = true;
  beating_.join();
  for (const auto& agent : agents_) agent->End();
  for (const auto& agent : agents_) agent->AwaitDone();
}

std::string Fleet::NodeId(int index) { return absl::StrFormat("n%05d", index); }

const telemetry::v1::Evidence* Fleet::SamplesOf(int index) const {
  if (index >= options_.num_agents - options_.num_silent) return nullptr;
  if (options_.samples.empty()) return &KeptSamples();
  const auto place = static_cast<size_t>(index);
  return &options_.samples[place < options_.samples_of.size() ? options_.samples_of[place] : 0];
}

void Fleet::Beat() {
  const absl::Time begin = absl::Now();
  for (int64_t beat = 0; !stopping_; ++beat) {
    const absl::Time due = begin + options_.heartbeat_interval * beat / options_.num_agents;
    absl::SleepFor(due - absl::Now());
    const int64_t bytes = agents_[static_cast<size_t>(beat % options_.num_agents)]->Report(step_);
    if (bytes == 0) continue;
    report_bytes_ += bytes;
    ++num_reports_;
  }
}

void Fleet::ReportFirst() { agents_[0]->Report(step_); }

void Fleet::Send(int index, pb::AgentUp message) {
  agents_[static_cast<size_t>(index)]->Send(std::move(message));
}

void Fleet::Lose(int index) { agents_[static_cast<size_t>(index)]->End(); }

void Fleet::Fail(int index) { agents_[static_cast<size_t>(index)]->Fail(); }

double Fleet::LastReport(int index) const {
  return agents_[static_cast<size_t>(index)]->last_report();
}

std::vector<double> Fleet::LeftAt() const {
  std::vector<double> times;
  for (const auto& agent : agents_) {
    const double left = agent->left_at();
    if (left > 0) times.push_back(left);
  }
  std::sort(times.begin(), times.end());
  return times;
}

double Fleet::report_bytes() const {
  return static_cast<double>(report_bytes_) /
         static_cast<double>(std::max<int64_t>(1, num_reports_));
}

std::string Fleet::SampleReport(int index) const {
  return agents_[static_cast<size_t>(index)]->Sample(step_).SerializeAsString();
}

}  // namespace megascale::bench
