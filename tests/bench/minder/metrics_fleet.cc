#include "tests/bench/minder/metrics_fleet.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "proto/agent.grpc.pb.h"

namespace megascale::bench {

namespace pb = megascale::agent::v1;

namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(1);

}  // namespace

// One stream. gRPC calls the reactions; the fleet's thread calls Report.
class MetricsAgent : public grpc::ClientBidiReactor<pb::AgentUp, pb::AgentDown> {
 public:
  // `samples` outlives the agent; null: it never answers.
  MetricsAgent(const std::string& address, std::string node_id,
               const telemetry::v1::Evidence* samples)
      : node_id_(std::move(node_id)), samples_(samples) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(64 << 20);
    stub_ = pb::AgentService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    pb::Hello* hello = up_.mutable_hello();
    hello->set_protocol_version(pb::PROTOCOL_VERSION_CURRENT);
    hello->set_node_id(node_id_);
    hello->set_incarnation("1");
    hello->set_num_slots(1);
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

  void Report() {
    pb::AgentUp message;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!outgoing_.empty()) return;  // the one before is not written yet
    *message.mutable_actual() = MakeReport();
    outgoing_.push_back(std::move(message));
    WriteNext();
  }

  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true)) return;
    context_.TryCancel();
    RemoveHold();
  }
  void AwaitDone() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_changed_.wait_for(lock, std::chrono::seconds(30), [this] { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    if (down_.has_desired()) Take(down_.desired());
    if (down_.has_fetch_evidence() && samples_ != nullptr) Answer(down_.fetch_evidence());
    down_.Clear();
    StartRead(&down_);
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (ok) WriteNext();
  }
  void OnDone(const grpc::Status&) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    done_changed_.notify_all();
  }

 private:
  struct Job {
    int64_t attempt = 0;
    pb::DesiredJob::Phase phase = pb::DesiredJob::PHASE_UNSPECIFIED;
    std::vector<int> ranks;
  };

  pb::ActualState MakeReport() const {
    pb::ActualState actual;
    actual.set_incarnation("1");
    actual.set_applied_version(version_);
    for (const auto& [job_id, job] : jobs_) {
      pb::ActualJob* entry = actual.add_jobs();
      entry->set_job_id(job_id);
      entry->set_attempt(job.attempt);
      entry->mutable_preflight()->set_state(pb::Preflight::STATE_PASSED);
      if (job.phase != pb::DesiredJob::PHASE_RUN) continue;
      entry->set_num_processes(static_cast<int>(job.ranks.size()) + 1);
      entry->mutable_host()->set_pid(100);
      for (const int rank : job.ranks) {
        pb::ActualRank* running = entry->add_ranks();
        running->set_state(pb::ActualRank::STATE_RUNNING);
        running->mutable_status()->set_rank(rank);
        running->mutable_status()->set_pid(1000 + rank);
        running->mutable_status()->set_phase(telemetry::v1::PHASE_TRAINING);
        running->mutable_status()->set_alive_age_seconds(0.1);
      }
    }
    return actual;
  }

  void Answer(const pb::FetchEvidence& fetch) {
    pb::AgentUp message;
    message.mutable_evidence()->set_request_id(fetch.request_id());
    *message.mutable_evidence()->mutable_evidence() = *samples_;
    const std::lock_guard<std::mutex> lock(mutex_);
    outgoing_.push_back(std::move(message));
    WriteNext();
  }

  void Take(const pb::DesiredState& desired) {
    const std::lock_guard<std::mutex> lock(mutex_);
    version_ = desired.version();
    const std::map<std::string, Job> before = std::exchange(jobs_, {});
    for (const auto& wanted : desired.jobs()) {
      Job& job = jobs_[wanted.job_id()];
      job.attempt = wanted.attempt();
      job.phase = wanted.phase();
      const auto known = before.find(wanted.job_id());
      if (wanted.as_before() && known != before.end()) job.ranks = known->second.ranks;
      for (const auto& run : wanted.placements()) {
        if (run.node_id() != node_id_) continue;
        for (int i = 0; i < run.num_ranks(); ++i) job.ranks.push_back(run.rank() + i);
      }
    }
  }

  void WriteNext() {
    if (writing_ || closed_ || outgoing_.empty()) return;
    up_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    writing_ = true;
    StartWrite(&up_);
  }

  const std::string node_id_;
  const telemetry::v1::Evidence* const samples_;
  std::unique_ptr<pb::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  pb::AgentUp up_;
  pb::AgentDown down_;

  std::mutex mutex_;
  std::condition_variable done_changed_;
  std::deque<pb::AgentUp> outgoing_;
  std::map<std::string, Job> jobs_;
  int64_t version_ = 0;
  bool writing_ = false;
  bool closed_ = false;
  bool done_ = false;
};

MetricsFleet::MetricsFleet(Options options) : options_(std::move(options)) {
  for (int i = 0; i < options_.num_agents; ++i) {
    const auto index = static_cast<size_t>(i);
    const size_t of = index < options_.samples_of.size() ? options_.samples_of[index] : 0;
    const bool is_silent = i >= options_.num_agents - options_.num_silent;
    agents_.push_back(std::make_unique<MetricsAgent>(options_.address, NodeId(i),
                                                     is_silent ? nullptr : &options_.samples[of]));
  }
  beating_ = std::thread([this] { Beat(); });
}

MetricsFleet::~MetricsFleet() {
  stopping_ = true;
  beating_.join();
  for (const auto& agent : agents_) agent->End();
  for (const auto& agent : agents_) agent->AwaitDone();
}

std::string MetricsFleet::NodeId(int index) { return absl::StrFormat("n%05d", index); }

// Reports of all agents are spread over the interval.
void MetricsFleet::Beat() {
  const absl::Time begin = absl::Now();
  for (int64_t beat = 0; !stopping_; ++beat) {
    absl::SleepFor(begin + kHeartbeat * beat / options_.num_agents - absl::Now());
    agents_[static_cast<size_t>(beat % options_.num_agents)]->Report();
  }
}

}  // namespace megascale::bench
