// The real agent in its own process, between a driver's service that this test implements and
// children that do not train (test_program.cc).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "controlplane/agent/core/gpu_turns.h"
#include "controlplane/launch/process_keeper.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/job/job_spec.h"

namespace megascale::agent {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using v1::ActualRank;
using v1::DesiredJob;

constexpr absl::Duration kDeadline = absl::Seconds(60);

// The driver's side of the stream: keeps what the agent says, answers store requests at once.
class TestDriver : public v1::AgentService::Service {
 public:
  explicit TestDriver(std::string address) : address_(std::move(address)) { Open(); }
  ~TestDriver() override { Close(); }

  void Open() {
    num_sets_ = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Close() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void RefuseWith(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }

  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream) override {
    v1::AgentUp up;
    if (!stream->Read(&up)) return grpc::Status::OK;
    {
      absl::MutexLock lock(&mutex_);
      if (!refusal_.ok()) return refusal_;
      hello_ = up.hello();
      stream_ = stream;
      desired_.set_incarnation(hello_.incarnation());
      SendDesired();
    }
    while (stream->Read(&up)) {
      absl::MutexLock lock(&mutex_);
      if (up.has_actual()) TakeReport(up.actual());
      if (up.has_log()) log_ = up.log();
      if (up.has_spans()) spans_ = up.spans();
      if (up.has_evidence()) evidence_ = up.evidence();
      for (const v1::StoreRequest& request : up.store().requests()) Answer(request);
    }
    absl::MutexLock lock(&mutex_);
    if (stream_ == stream) stream_ = nullptr;
    return grpc::Status::OK;
  }

  // Sends a new desired state: the one before, changed by `change`.
  void Want(const std::function<void(v1::DesiredState*)>& change) {
    absl::MutexLock lock(&mutex_);
    change(&desired_);
    desired_.set_version(desired_.version() + 1);
    SendDesired();
  }

  // Waits until the newest actual state fulfils `condition`.
  bool Await(const std::function<bool(const v1::ActualState&)>& condition) {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return condition(actual_); };
    const bool ok = mutex_.AwaitWithTimeout(absl::Condition(&met), kDeadline);
    if (!ok) ADD_FAILURE() << "the actual state stays\n" << actual_.DebugString();
    return ok;
  }
  bool AwaitJob(const std::function<bool(const v1::ActualJob&)>& condition) {
    return Await([&](const v1::ActualState& state) {
      return state.jobs_size() == 1 && condition(state.jobs(0));
    });
  }
  v1::ActualJob job() {
    absl::MutexLock lock(&mutex_);
    return actual_.jobs_size() == 1 ? actual_.jobs(0) : v1::ActualJob();
  }
  // Waits until the reports have shown `count` different GPUs.
  bool AwaitGpus(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return gpus_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&met), kDeadline);
  }
  // The most bytes that GPUs took in a report.
  size_t gpu_bytes_max() {
    absl::MutexLock lock(&mutex_);
    return gpu_bytes_max_;
  }
  bool AwaitHello() {
    absl::MutexLock lock(&mutex_);
    const auto connected = [&] { return stream_ != nullptr; };
    return mutex_.AwaitWithTimeout(absl::Condition(&connected), kDeadline);
  }
  v1::Hello hello() {
    absl::MutexLock lock(&mutex_);
    return hello_;
  }

  // Waits until `count` values were set in the store since Open.
  bool AwaitSets(int count) {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return num_sets_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&met), kDeadline);
  }

  v1::LogChunk FetchLog(int rank) {
    absl::MutexLock lock(&mutex_);
    const std::string id = absl::StrCat("fetch-", ++num_fetches_);
    v1::AgentDown down;
    down.mutable_fetch_log()->set_request_id(id);
    down.mutable_fetch_log()->set_job_id("job-1");
    down.mutable_fetch_log()->set_attempt(1);
    down.mutable_fetch_log()->set_rank(rank);
    down.mutable_fetch_log()->set_max_bytes(1000);
    stream_->Write(down);
    const auto answered = [&] { return log_.request_id() == id; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&answered), kDeadline));
    return log_;
  }

  v1::SpanChunk FetchSpans(v1::FetchSpans fetch) {
    absl::MutexLock lock(&mutex_);
    fetch.set_request_id(absl::StrCat("fetch-", ++num_fetches_));
    v1::AgentDown down;
    *down.mutable_fetch_spans() = fetch;
    stream_->Write(down);
    const auto answered = [&] { return spans_.request_id() == fetch.request_id(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&answered), kDeadline));
    return spans_;
  }

  v1::EvidenceChunk FetchEvidence(v1::FetchEvidence fetch) {
    absl::MutexLock lock(&mutex_);
    fetch.set_request_id(absl::StrCat("fetch-", ++num_fetches_));
    v1::AgentDown down;
    *down.mutable_fetch_evidence() = fetch;
    stream_->Write(down);
    const auto answered = [&] { return evidence_.request_id() == fetch.request_id(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&answered), kDeadline));
    return evidence_;
  }

 private:
  void TakeReport(const v1::ActualState& report) {
    actual_ = report;
    v1::ActualState without = report;
    without.clear_gpus();
    gpu_bytes_max_ = std::max(gpu_bytes_max_, report.ByteSizeLong() - without.ByteSizeLong());
    for (const telemetry::v1::GpuSample& gpu : report.gpus()) {
      if (gpu.temperature_celsius() == 64) gpus_.insert(gpu.index());
    }
  }
  void SendDesired() {
    if (stream_ == nullptr) return;
    v1::AgentDown down;
    *down.mutable_desired() = desired_;
    stream_->Write(down);
  }
  void Answer(const v1::StoreRequest& request) {
    if (request.operation() == v1::StoreRequest::OPERATION_SET) ++num_sets_;
    v1::AgentDown down;
    v1::StoreReply* reply = down.mutable_store()->add_replies();
    reply->set_request_id(request.request_id());
    if (request.job_id() == "job-1" && request.attempt() > 0) {
      reply->set_value(absl::StrCat("value of ", request.key()));
    }
    stream_->Write(down);
  }

  const std::string address_;
  grpc::Status refusal_;
  absl::Mutex mutex_;
  grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream_ = nullptr;
  v1::Hello hello_;
  v1::DesiredState desired_;
  v1::ActualState actual_;
  std::set<int> gpus_;
  size_t gpu_bytes_max_ = 0;
  v1::LogChunk log_;
  v1::SpanChunk spans_;
  v1::EvidenceChunk evidence_;
  int num_fetches_ = 0;
  int num_sets_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

bool IsGone(pid_t pid) {
  const auto stat = base::ReadFile(absl::StrCat("/proc/", pid, "/stat"), 1 << 16);
  return !stat.ok() || stat->at(stat->rfind(')') + 2) == 'Z';
}

// Returns the process keeper of an agent; -1: it has none.
pid_t KeeperOf(pid_t agent) {
  constexpr absl::string_view kName = "(megascale-keep) ";
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const auto stat = base::ReadFile(absl::StrCat("/proc/", pid, "/stat"), 1 << 16);
    const size_t name = stat.ok() ? stat->find(kName.data(), 0, kName.size()) : std::string::npos;
    if (name == std::string::npos) continue;
    // The letter of the state, and the parent.
    const std::vector<std::string> fields = absl::StrSplit(stat->substr(name + kName.size()), ' ');
    if (fields.size() > 1 && fields[1] == absl::StrCat(agent)) return pid;
  }
  return -1;
}

bool AwaitGone(pid_t pid) {
  const absl::Duration end = base::RealClock().Monotonic() + kDeadline;
  while (!IsGone(pid)) {
    if (base::RealClock().Monotonic() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

job::v1::JobSpec Spec() {
  job::v1::JobSpec spec;
  spec.set_name("job");
  spec.mutable_model()->set_hidden_size(8);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/data");
  spec.mutable_train()->set_steps(10);
  spec.mutable_parallel()->set_threads_per_rank(1024);  // more than there are cores
  spec.mutable_train()->set_seq_length(8);
  spec.mutable_train()->set_global_batch_size(2);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_data_parallel_size(2);
  const auto resolved = job::ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.value_or(spec);
}

class AgentServerTest : public testing::Test {
 protected:
  // One for all tests: gRPC's threads outlive its servers, and a keeper is forked before threads.
  static void SetUpTestSuite() { keeper_ = launch::ProcessKeeper::Start({})->release(); }
  static void TearDownTestSuite() { delete keeper_; }

  void SetUp() override {
    directory_ = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    driver_ = std::make_unique<TestDriver>(absl::StrCat("unix:", directory_, "/d.sock"));
  }
  void TearDown() override {
    for (const int64_t token : running_) keeper_->Kill(token, SIGKILL).IgnoreError();
    driver_.reset();
    if (HasFailure()) {
      GTEST_LOG_(INFO) << base::ReadFile(directory_ + "/agent.out", 1 << 20).value_or("");
    }
    std::filesystem::remove_all(directory_);
  }

  int64_t StartAgent(const std::string& drain_timeout = "5m", const std::string& folder = "n0") {
    launch::SpawnRequest request;
    request.token = ++last_token_;
    request.program = absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                                   "/controlplane/agent/service/testing/test_program");
    request.arguments = {"megascale", "agent", absl::StrCat("unix:", directory_, "/d.sock"),
                         absl::StrCat(directory_, "/", folder), drain_timeout};
    const base::UniqueFd output(
        ::open((directory_ + "/agent.out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    request.output = output.get();
    const auto pid = keeper_->Spawn(request);
    EXPECT_TRUE(pid.ok()) << pid.status();
    agent_pid_ = pid.value_or(-1);
    running_.push_back(request.token);
    return request.token;
  }

  // Expects looks at the running call, whose bytes move. The last one is that of the question
  // itself.
  static void ExpectLooks(const telemetry::v1::Evidence& evidence) {
    ASSERT_GE(evidence.in_flight_size(), 4);
    for (int i = 0; i + 2 < evidence.in_flight_size(); ++i) {
      const telemetry::v1::InFlightSample& look = evidence.in_flight(i);
      const telemetry::v1::InFlightSample& next = evidence.in_flight(i + 1);
      EXPECT_EQ(look.state().sequence(), 1u);
      EXPECT_GE(next.seen_nanos() - look.seen_nanos(), 100'000'000);
      EXPECT_GE(next.state().received_bytes(), look.state().received_bytes());
    }
  }

  // Expects the two calls that a worker of test_program shows: one has ended, one runs.
  void ExpectEvidence() {
    // So many steps take longer than ten looks.
    ASSERT_TRUE(driver_->AwaitJob(
        [](const v1::ActualJob& job) { return job.ranks(1).status().step() > 60; }));
    v1::FetchEvidence fetch;
    fetch.set_job_id("job-1");
    fetch.set_attempt(1);
    fetch.set_rank(1);
    fetch.set_kind(telemetry::v1::EVIDENCE_KIND_EXCHANGES);
    const telemetry::v1::Evidence evidence = driver_->FetchEvidence(fetch).evidence();
    ASSERT_EQ(evidence.completed_size(), 1);
    ASSERT_EQ(evidence.running_size(), 1);
    EXPECT_EQ(evidence.running(0).group(), "data/0");
    EXPECT_EQ(evidence.running(0).sequence(), 1u);
    EXPECT_GE(evidence.monotonic_nanos(), evidence.running(0).begin_nanos());
    ExpectLooks(evidence);
    fetch.set_attempt(2);
    EXPECT_EQ(driver_->FetchEvidence(fetch).code(), static_cast<int>(absl::StatusCode::kNotFound));
    fetch.set_kind(telemetry::v1::EVIDENCE_KIND_METRICS);
    EXPECT_EQ(driver_->FetchEvidence(fetch).code(), 0);
    ExpectTransferShare(fetch);
    ExpectSeries(fetch);
    fetch.add_work_of()->set_last_step(100);
    const telemetry::v1::Evidence work = driver_->FetchEvidence(fetch).evidence();
    EXPECT_EQ(work.samples_size(), 0);
    for (const telemetry::v1::RankWork& rank : work.work()) EXPECT_EQ(rank.ranges_size(), 1);
    fetch.set_kind(telemetry::v1::EVIDENCE_KIND_STACKS);
    EXPECT_EQ(driver_->FetchEvidence(fetch).code(), static_cast<int>(absl::StatusCode::kNotFound));
    fetch.set_attempt(1);
    const v1::EvidenceChunk stacks = driver_->FetchEvidence(fetch);
    EXPECT_EQ(stacks.code(), 0) << stacks.message();
    ASSERT_GE(stacks.evidence().stacks_size(), 1);
    EXPECT_GE(stacks.evidence().stacks(0).frames_size(), 3);
    EXPECT_TRUE(absl::StrContains(stacks.evidence().DebugString(), "base::ReceiveFrame(int"))
        << stacks.evidence().DebugString();
    fetch.set_kind(telemetry::v1::EVIDENCE_KIND_UNSPECIFIED);
    EXPECT_EQ(driver_->FetchEvidence(fetch).code(),
              static_cast<int>(absl::StatusCode::kUnimplemented));
  }

  // Expects the machine's metrics as columns, and no samples.
  void ExpectSeries(v1::FetchEvidence fetch) {
    fetch.set_as_series(true);
    const telemetry::v1::Evidence evidence = driver_->FetchEvidence(fetch).evidence();
    EXPECT_EQ(evidence.samples_size(), 0);
    ASSERT_GE(evidence.series().monotonic_nanos_size(), 1);
    EXPECT_LE(evidence.series().monotonic_nanos(0), evidence.monotonic_nanos());
    ASSERT_GE(evidence.series().columns_size(), 1);
    EXPECT_EQ(evidence.series().columns(0).values_size(), evidence.series().monotonic_nanos_size());
  }

  // A call of each rank runs all the time, and its bytes move.
  void ExpectTransferShare(const v1::FetchEvidence& fetch) {
    double share = 0;
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (share == 0 && absl::Now() < deadline) {
      const v1::EvidenceChunk chunk = driver_->FetchEvidence(fetch);
      for (const auto& sample : chunk.evidence().samples()) {
        for (const auto& rank : sample.ranks()) share = std::max(share, rank.transfer_share());
      }
    }
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
  }

  // Expects spans of rank 1 of attempt 1, whose steps have one instruction each, and no others.
  void ExpectSpans() {
    ASSERT_TRUE(driver_->AwaitJob(
        [](const v1::ActualJob& job) { return job.ranks(1).status().step() > 6; }));
    v1::FetchSpans fetch;
    fetch.set_job_id("job-1");
    fetch.set_attempt(1);
    fetch.set_rank(1);
    fetch.set_first_step(3);
    const v1::SpanChunk chunk = driver_->FetchSpans(fetch);
    EXPECT_EQ(chunk.code(), 0);
    EXPECT_EQ(chunk.num_lost(), 0);
    ASSERT_GE(chunk.spans_size(), 4);
    for (int i = 0; i < chunk.spans_size(); ++i) {
      EXPECT_EQ(chunk.spans(i).step(), 3 + i);
      EXPECT_LE(chunk.spans(i).end_nanos(), chunk.monotonic_nanos());
    }
    EXPECT_LE(chunk.monotonic_nanos(),
              absl::ToInt64Nanoseconds(base::RealClock().Monotonic()));  // the same machine's

    v1::FetchSpans other_job = fetch;
    other_job.set_job_id("nobody");
    v1::FetchSpans other_attempt = fetch;
    other_attempt.set_attempt(2);
    v1::FetchSpans other_rank = fetch;
    other_rank.set_rank(7);
    for (const v1::FetchSpans& wrong : {other_job, other_attempt, other_rank}) {
      const v1::SpanChunk refused = driver_->FetchSpans(wrong);
      EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kNotFound));
      EXPECT_EQ(refused.spans_size(), 0);
    }
    v1::FetchSpans clock;
    clock.set_clock_only(true);
    const v1::SpanChunk told = driver_->FetchSpans(clock);
    EXPECT_EQ(told.code(), 0);
    EXPECT_EQ(told.spans_size(), 0);
    EXPECT_GE(told.monotonic_nanos(), chunk.monotonic_nanos());
  }

  // The exit status of an agent, as of waitpid.
  int AwaitExit(int64_t token) {
    for (;;) {
      if (const auto exited = exited_.extract(token); !exited.empty()) return exited.mapped();
      pollfd entry = {keeper_->exits_fd(), POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kDeadline))) != 1) return -1;
      const auto exits = keeper_->TakeExits();
      if (!exits.ok()) return -1;
      for (const launch::ProcessExit& exited : *exits) exited_[exited.token] = exited.status;
    }
  }

  void Want(DesiredJob::Phase phase, int64_t attempt) {
    driver_->Want([&](v1::DesiredState* desired) {
      if (desired->jobs_size() == 0) desired->add_jobs();
      DesiredJob* job = desired->mutable_jobs(0);
      job->set_job_id("job-1");
      job->set_attempt(attempt);
      job->set_phase(phase);
      *job->mutable_spec() = Spec();
      job->mutable_stop_grace()->set_seconds(60);
      job->set_checkpoint_directory(directory_);
      job->clear_placements();
      for (const int rank : {0, 1}) {
        job->add_placements()->set_rank(rank);
        job->mutable_placements(rank)->set_node_id("n0");
      }
    });
  }

  // Starts agent and job; returns once both ranks train and their snapshots are stored.
  int64_t Run(const std::string& drain_timeout = "5m") {
    const int64_t agent = StartAgent(drain_timeout);
    EXPECT_TRUE(driver_->AwaitHello());
    Want(DesiredJob::PHASE_RUN, 1);
    EXPECT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
      return job.ranks_size() == 2 && job.ranks(0).status().step() > 3 &&
             job.ranks(1).status().step() > 3 && job.shards_size() == 2;
    }));
    return agent;
  }

  std::vector<pid_t> Pids() {
    const v1::ActualJob job = driver_->job();
    std::vector<pid_t> pids = {job.host().pid()};
    for (const ActualRank& rank : job.ranks()) pids.push_back(rank.status().pid());
    EXPECT_EQ(pids.size(), 3u);
    for (const pid_t pid : pids) EXPECT_FALSE(IsGone(pid)) << pid;
    return pids;
  }

  std::string Output() { return base::ReadFile(directory_ + "/agent.out", 1 << 20).value_or(""); }

  // Waits until agents have printed `count` lines with this text.
  bool AwaitLines(const std::string& text, int count) {
    const absl::Duration end = base::RealClock().Monotonic() + kDeadline;
    const auto found = [&] {
      const std::vector<std::string> parts = absl::StrSplit(Output(), text);
      return static_cast<int>(parts.size()) - 1;
    };
    while (found() < count) {
      if (base::RealClock().Monotonic() > end) return false;
      ::poll(nullptr, 0, 1);
    }
    return true;
  }

  static launch::ProcessKeeper* keeper_;
  static int64_t last_token_;
  std::map<int64_t, int> exited_;  // statuses that nobody has asked for yet
  std::string directory_;
  std::unique_ptr<TestDriver> driver_;
  std::vector<int64_t> running_;
  pid_t agent_pid_ = -1;  // of the agent that was started last
};

launch::ProcessKeeper* AgentServerTest::keeper_ = nullptr;
int64_t AgentServerTest::last_token_ = 0;

TEST_F(AgentServerTest, SaysHello) {
  StartAgent();
  ASSERT_TRUE(driver_->AwaitHello());
  const v1::Hello hello = driver_->hello();
  EXPECT_EQ(hello.protocol_version(), v1::PROTOCOL_VERSION_CURRENT);
  EXPECT_EQ(hello.node_id(), "n0");
  EXPECT_EQ(hello.num_slots(), 2);
  EXPECT_EQ(hello.incarnation().size(), 16u);
  EXPECT_THAT(hello.machine_id(), testing::EndsWith("/" + hello.hostname()));
  EXPECT_FALSE(hello.instruction_set().empty());
}

// It has 16 of them.
TEST_F(AgentServerTest, ItsReportsShowItsGpusByTurnsAndStaySmall) {
  StartAgent();
  ASSERT_TRUE(driver_->AwaitGpus(4));
  EXPECT_LE(driver_->gpu_bytes_max(), GpuTurns::kBurstBytes);
}

TEST_F(AgentServerTest, RunsAJobFromPreflightToItsEnd) {
  StartAgent();
  ASSERT_TRUE(driver_->AwaitHello());
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  ASSERT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
    return job.preflight().state() == v1::Preflight::STATE_PASSED && job.num_processes() == 0;
  }));
  Want(DesiredJob::PHASE_RUN, 1);
  ASSERT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
    return job.snapshots_size() == 2 && job.shards_size() == 2 && job.steps_size() >= 5;
  }));
  const v1::ActualJob running = driver_->job();
  for (int i = 0; i < running.steps_size(); ++i) EXPECT_EQ(running.steps(i).step(), i + 1);
  EXPECT_EQ(running.shards(0).step(), 3);
  driver_->Want([](v1::DesiredState* desired) {
    desired->mutable_jobs(0)->set_acked_step(5);
    v1::CheckpointId* id = desired->mutable_jobs(0)->add_finalize();
    id->set_attempt(1);
    id->set_step(3);
  });
  ASSERT_TRUE(driver_->AwaitJob([&](const v1::ActualJob& job) {
    return job.manifests_size() == 1 && job.manifests(0).directory() == directory_ &&
           job.steps_size() > 0 && job.steps(0).step() == 6;
  }));
  EXPECT_EQ(driver_->FetchLog(0).data(), "rank 0 is ready, GOMP_SPINCOUNT=0\n");
  EXPECT_EQ(driver_->FetchLog(7).code(), static_cast<int>(absl::StatusCode::kNotFound));
  ExpectSpans();
  ExpectEvidence();

  const std::vector<pid_t> pids = Pids();
  Want(DesiredJob::PHASE_STOP, 1);
  ASSERT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
    return job.num_processes() == 1 && job.ranks_size() == 2 &&
           job.ranks(0).state() == ActualRank::STATE_STOPPED && job.ranks(0).status().step() > 3;
  }));
  driver_->Want([](v1::DesiredState* desired) { desired->clear_jobs(); });
  ASSERT_TRUE(driver_->Await([](const v1::ActualState& state) { return state.jobs_size() == 0; }));
  for (const pid_t pid : pids) EXPECT_TRUE(AwaitGone(pid));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/n0")) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre("agent.key", "agent.lock", "logs"));
}

TEST_F(AgentServerTest, AKilledRankIsReportedAndTheNextAttemptStartsAfterHold) {
  Run();
  ::kill(Pids()[1], SIGKILL);
  ASSERT_TRUE(driver_->AwaitJob(
      [](const v1::ActualJob& job) { return job.ranks(0).state() == ActualRank::STATE_FAILED; }));
  EXPECT_THAT(driver_->job().ranks(0).failure().message(),
              MatchesRegex("killed by signal 9 \\(Killed\\)\n"
                           "last instructions completed: N of step [0-9]+ [0-9.]+ s ago, N of step "
                           ".*\nits last lines:\nrank 0 is ready.*"));
  Want(DesiredJob::PHASE_HOLD, 1);
  ASSERT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) { return job.num_processes() == 0; }));
  EXPECT_EQ(driver_->job().snapshots_size(), 2);
  Want(DesiredJob::PHASE_RUN, 2);
  ASSERT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
    return job.attempt() == 2 && job.num_processes() == 3 && job.shards_size() == 2;
  }));
}

TEST_F(AgentServerTest, AKilledHostIsRestartedInTheSameAttempt) {
  Run();
  const std::vector<pid_t> pids = Pids();
  ::kill(pids[0], SIGKILL);
  ASSERT_TRUE(driver_->AwaitJob([&](const v1::ActualJob& job) {
    return job.host().pid() > 0 && job.host().pid() != pids[0];
  }));
  EXPECT_EQ(driver_->job().attempt(), 1);
  EXPECT_EQ(driver_->job().host().num_restarts(), 1);
  EXPECT_FALSE(IsGone(pids[1]));
}

TEST_F(AgentServerTest, AProcessKeeperThatIsStoppedIsReportedWhileTheJobGoesOn) {
  Run();
  EXPECT_EQ(driver_->job().keeper_silent_seconds(), 0);
  const pid_t keeper = KeeperOf(agent_pid_);
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGSTOP);
  EXPECT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
    return job.keeper_silent_seconds() > 0 && job.warnings_size() == 1 &&
           absl::StrContains(job.warnings(0), "process keeper does not answer");
  }));
  const int64_t step = driver_->job().ranks(0).status().step();
  EXPECT_TRUE(driver_->AwaitJob(
      [&](const v1::ActualJob& job) { return job.ranks(0).status().step() > step; }));
  ::kill(keeper, SIGCONT);
  EXPECT_TRUE(driver_->AwaitJob([](const v1::ActualJob& job) {
    return job.keeper_silent_seconds() == 0 && job.warnings().empty();
  }));
}

TEST_F(AgentServerTest, ItsProcessesDieWithAKilledAgent) {
  const int64_t agent = Run();
  const std::vector<pid_t> pids = Pids();
  ASSERT_TRUE(keeper_->Kill(agent, SIGKILL).ok());
  for (const pid_t pid : pids) EXPECT_TRUE(AwaitGone(pid)) << pid;
  const std::string before = driver_->hello().incarnation();
  AwaitExit(agent);
  StartAgent();  // its lock and leftovers are in nobody's way
  ASSERT_TRUE(driver_->Await([&](const v1::ActualState& state) {
    return !state.incarnation().empty() && state.incarnation() != before;
  }));
}

TEST_F(AgentServerTest, EndsItsProcessesOnSigint) {
  const int64_t agent = Run();
  const std::vector<pid_t> pids = Pids();
  ASSERT_TRUE(keeper_->Kill(agent, SIGINT).ok());
  EXPECT_EQ(AwaitExit(agent), 0);
  for (const pid_t pid : pids) EXPECT_TRUE(IsGone(pid)) << pid;
}

TEST_F(AgentServerTest, SigtermAsksTheDriverToTakeItsJobsAwayAndEndsWhenTheyAreGone) {
  const int64_t agent = Run();
  const std::vector<pid_t> pids = Pids();
  ASSERT_TRUE(keeper_->Kill(agent, SIGTERM).ok());
  ASSERT_TRUE(driver_->Await([](const v1::ActualState& state) { return state.draining(); }));
  for (const pid_t pid : pids) EXPECT_FALSE(IsGone(pid)) << pid;
  driver_->Want([](v1::DesiredState* desired) {
    desired->set_draining(true);
    desired->clear_jobs();
  });
  EXPECT_EQ(AwaitExit(agent), 0);
  for (const pid_t pid : pids) EXPECT_TRUE(IsGone(pid)) << pid;
  EXPECT_THAT(Output(), HasSubstr("SIGTERM: its jobs leave, for at most 5m"));
}

TEST_F(AgentServerTest, ASecondSigtermEndsItAtOnce) {
  const int64_t agent = Run();
  ASSERT_TRUE(keeper_->Kill(agent, SIGTERM).ok());
  ASSERT_TRUE(driver_->Await([](const v1::ActualState& state) { return state.draining(); }));
  ASSERT_TRUE(keeper_->Kill(agent, SIGTERM).ok());
  EXPECT_EQ(AwaitExit(agent), 0);
}

TEST_F(AgentServerTest, ADrainEndsAtItsDeadline) {
  const int64_t agent = Run("1s");
  ASSERT_TRUE(keeper_->Kill(agent, SIGTERM).ok());
  EXPECT_EQ(AwaitExit(agent), 0);
  EXPECT_THAT(Output(), HasSubstr("its jobs did not leave within 1s"));
}

TEST_F(AgentServerTest, AnIdleAgentWithoutADriverEndsOnSigterm) {
  const int64_t agent = StartAgent();
  ASSERT_TRUE(driver_->AwaitHello());
  driver_->Close();
  ASSERT_TRUE(keeper_->Kill(agent, SIGTERM).ok());
  EXPECT_EQ(AwaitExit(agent), 0);
}

// When the stream was not completely gone before the process ended, gRPC aborted one run in
// fifteen.
TEST_F(AgentServerTest, EndsInOrderWhileItIsConnecting) {
  constexpr int kRounds = 10;
  constexpr int kAgents = 10;
  driver_->Close();
  for (int round = 1; round <= kRounds; ++round) {
    std::vector<int64_t> agents;
    for (int i = 0; i < kAgents; ++i) agents.push_back(StartAgent("5m", absl::StrCat("n", i)));
    ASSERT_TRUE(AwaitLines("agent n0: 2 slots", round * kAgents));
    for (const int64_t agent : agents) ASSERT_TRUE(keeper_->Kill(agent, SIGINT).ok());
    for (const int64_t agent : agents) ASSERT_EQ(AwaitExit(agent), 0);
  }
}

TEST_F(AgentServerTest, WorkGoesOnWhileTheDriverIsAway) {
  Run();
  const std::vector<pid_t> pids = Pids();
  const int64_t steps = driver_->job().steps_size();
  const std::string incarnation = driver_->hello().incarnation();
  driver_->Close();
  driver_->Open();
  // The new driver's store is empty; others may still wait for what these two ranks put there.
  EXPECT_TRUE(driver_->AwaitSets(2));
  ASSERT_TRUE(
      driver_->AwaitJob([&](const v1::ActualJob& job) { return job.steps_size() > steps; }));
  const v1::ActualJob job = driver_->job();
  for (int i = 0; i < job.steps_size(); ++i) EXPECT_EQ(job.steps(i).step(), i + 1);
  EXPECT_EQ(driver_->hello().incarnation(), incarnation);
  EXPECT_EQ(Pids(), pids);
}

TEST_F(AgentServerTest, ADriverOfAnotherVersionLeavesItItsWorkersUntilItIsDrained) {
  const int64_t agent = Run("1s");
  const std::vector<pid_t> pids = Pids();
  const std::string incarnation = driver_->hello().incarnation();
  driver_->RefuseWith({grpc::StatusCode::FAILED_PRECONDITION, "node n0: upgrade the agent"});
  driver_->Close();
  driver_->Open();
  ASSERT_TRUE(AwaitLines("the driver refuses this agent (node n0: upgrade the agent)", 1));
  for (const pid_t pid : pids) EXPECT_FALSE(IsGone(pid)) << pid;
  driver_->RefuseWith(grpc::Status::OK);  // the one before is back
  ASSERT_TRUE(driver_->AwaitHello());
  EXPECT_EQ(driver_->hello().incarnation(), incarnation);
  ASSERT_TRUE(driver_->AwaitJob([&](const v1::ActualJob& job) {
    return job.num_processes() == 3 && job.ranks(1).status().step() > 3;
  }));
  EXPECT_EQ(Pids(), pids);
  driver_->RefuseWith({grpc::StatusCode::FAILED_PRECONDITION, "node n0: upgrade the agent"});
  driver_->Close();
  driver_->Open();
  ASSERT_TRUE(keeper_->Kill(agent, SIGTERM).ok());
  EXPECT_EQ(AwaitExit(agent), 0);
  EXPECT_THAT(Output(), HasSubstr("its jobs did not leave within 1s"));
  for (const pid_t pid : pids) EXPECT_TRUE(AwaitGone(pid)) << pid;
}

TEST_F(AgentServerTest, AnAgentThatNoDriverHasTakenYetEndsIfItsVersionIsRefused) {
  driver_->RefuseWith({grpc::StatusCode::FAILED_PRECONDITION, "node n0: upgrade the agent"});
  EXPECT_EQ(WEXITSTATUS(AwaitExit(StartAgent())), 1);
  EXPECT_THAT(Output(), HasSubstr("node n0: upgrade the agent"));
}

TEST_F(AgentServerTest, ASecondAgentInTheSameRunDirectoryIsRefused) {
  StartAgent();
  ASSERT_TRUE(driver_->AwaitHello());
  EXPECT_EQ(WEXITSTATUS(AwaitExit(StartAgent())), 1);
  EXPECT_THAT(Output(), HasSubstr("another agent runs in"));
}

TEST_F(AgentServerTest, SaysThatItIsRefusedAndAsksAgainUntilItIsTakenAndEndsOnceItIsReplaced) {
  driver_->RefuseWith({grpc::StatusCode::ALREADY_EXISTS, "node n0: another agent has it"});
  const int64_t agent = StartAgent();
  ASSERT_TRUE(AwaitLines(
      "the driver refuses this agent (node n0: another agent has it); asks again in ", 1));
  driver_->RefuseWith(grpc::Status::OK);
  ASSERT_TRUE(driver_->AwaitHello());
  const std::string key = driver_->hello().key();
  EXPECT_EQ(key.size(), 64u);
  driver_->RefuseWith({grpc::StatusCode::ALREADY_EXISTS, "node n0: a third agent has it"});
  driver_->Close();
  driver_->Open();
  EXPECT_EQ(WEXITSTATUS(AwaitExit(agent)), 1);
  EXPECT_THAT(Output(),
              HasSubstr("a third agent has it; the driver has given this agent up, so it ends"))
      << "an earlier refusal does not end an agent that was taken";
  driver_->RefuseWith(grpc::Status::OK);
  StartAgent();
  ASSERT_TRUE(driver_->AwaitHello());
  EXPECT_EQ(driver_->hello().key(), key);
}

TEST_F(AgentServerTest, EndsWhenItsNodeIdIsBoundToAnotherCertificate) {
  driver_->RefuseWith({grpc::StatusCode::PERMISSION_DENIED, "node n0: is bound"});
  EXPECT_EQ(WEXITSTATUS(AwaitExit(StartAgent())), 1);
  EXPECT_THAT(Output(), HasSubstr("node n0: is bound"));
}

TEST_F(AgentServerTest, EndsWhenTheDriverHasANewerAgent) {
  driver_->RefuseWith({grpc::StatusCode::ABORTED, "a newer agent n0 connected"});
  EXPECT_EQ(WEXITSTATUS(AwaitExit(StartAgent())), 1);
  EXPECT_THAT(Output(), HasSubstr("ABORTED: a newer agent n0 connected"));
}

}  // namespace
}  // namespace megascale::agent
