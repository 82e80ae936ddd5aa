// The driver behind its real socket, with a real log on disk; the test plays the agent.
#include "controlplane/driver/service/driver_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/service/agent_streams.h"
#include "controlplane/driver/service/driver_loop.h"
#include "controlplane/driver/service/page_source.h"
#include "controlplane/driver/service/testing/fake_agent_stream.h"
#include "controlplane/driver/service/testing/server_test_base.h"
#include "controlplane/driver/service/watched_jobs.h"
#include "proto/agent.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/socket/testing/test_user.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class DriverServerTest : public ServerTestBase {
 protected:
  void SetUp() override {
    ServerTestBase::SetUp();
    Restart();
  }

  grpc::Status Submit(const std::string& job_id, const megascale::job::v1::JobSpec& spec) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    control::SubmitJobRequest request;
    request.set_job_id(job_id);
    *request.mutable_spec() = spec;
    control::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(&context, request, &response);
    job_ = response.job();
    return status;
  }
  grpc::Status Get(const std::string& job_id) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    control::GetJobRequest request;
    request.set_job_id(job_id);
    control::GetJobResponse response;
    const grpc::Status status = jobs_->GetJob(&context, request, &response);
    job_ = response.job();
    return status;
  }
  grpc::Status Cancel(const std::string& job_id) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    control::CancelJobRequest request;
    request.set_job_id(job_id);
    control::CancelJobResponse response;
    const grpc::Status status = jobs_->CancelJob(&context, request, &response);
    job_ = response.job();
    return status;
  }

  control::Job job_;
};

TEST_F(DriverServerTest, SubmitIsIdempotentAndSurvivesARestart) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  EXPECT_EQ(job_.state(), control::JOB_STATE_PENDING);
  EXPECT_EQ(job_.spec().model().vocab_size(), 256);
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  auto other = SmallSpec();
  other.mutable_train()->set_steps(4);
  EXPECT_EQ(Submit("j", other).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  Restart();
  ASSERT_TRUE(Get("j").ok());
  EXPECT_EQ(job_.message(), "position 1 in the queue; needs 1 slot; no node is connected");
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/state/jobs/j/job.json"));
}

TEST_F(DriverServerTest, ListIsInOrderOfSubmission) {
  for (const char* job_id : {"z", "a", "m"}) ASSERT_TRUE(Submit(job_id, SmallSpec()).ok());
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  control::ListJobsResponse response;
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &response).ok());
  ASSERT_THAT(response.jobs(), SizeIs(3));
  EXPECT_EQ(response.jobs(0).job_id(), "z");
  EXPECT_EQ(response.jobs(2).job_id(), "m");
}

TEST_F(DriverServerTest, CancelIsIdempotent) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_EQ(job_.state(), control::JOB_STATE_CANCELLED);
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_EQ(job_.state(), control::JOB_STATE_CANCELLED);
}

TEST_F(DriverServerTest, MistakesOfUsersHaveTheirCodes) {
  EXPECT_EQ(Get("nobody").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Cancel("nobody").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Submit("../x", SmallSpec()).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  auto spec = SmallSpec();
  spec.mutable_train()->set_steps(-1);
  const grpc::Status status = Submit("j", spec);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("train.steps"));
  spec = SmallSpec();
  spec.mutable_fault()->mutable_heartbeat_timeout()->set_nanos(2);
  const grpc::Status hostile = Submit("j", spec);
  EXPECT_EQ(hostile.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(hostile.error_message(),
            "fault.heartbeat_timeout: 2ns is out of range; expected 500ms to 168h");
}

TEST_F(DriverServerTest, SocketIsForItsOwnerAndNotTakenFromALiveDriver) {
  struct stat info;
  const std::string path = directory_ + "/run/driver.sock";
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  DriverOptions second = options_;
  second.state_directory = directory_ + "/other";
  EXPECT_EQ(DriverServer::Start(second).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(second.state_directory));
  second.state_directory = options_.state_directory;
  second.listen_address = "unix:" + directory_ + "/run/second.sock";
  EXPECT_EQ(DriverServer::Start(second).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Get("nobody").error_code() == grpc::StatusCode::NOT_FOUND);
}

// This holds even if the folder is opened to others later.
TEST_F(DriverServerTest, AnotherUserIsHungUpOnUnheard) {
  const std::string path = directory_ + "/run/driver.sock";
  for (const std::string& folder : {directory_, directory_ + "/run"}) {
    ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  }
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  const auto first_answer = [&path] {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const timeval limit = {20, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return 99;
    char byte;
    return static_cast<int>(::recv(fd, &byte, 1, 0)) + 1;  // 1: the end, 2: a byte
  };
  EXPECT_EQ(base::RunAsOtherUser(first_answer), 1);
  EXPECT_EQ(first_answer(), 2);  // gRPC speaks first to its own user
}

TEST_F(DriverServerTest, AFolderOfAnotherUserIsRefused) {
  ASSERT_EQ(::geteuid(), 0u) << "this test needs a second user: run it as root";
  const std::string folder = directory_ + "/theirs";
  std::filesystem::create_directory(folder);
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  ASSERT_EQ(::chown(folder.c_str(), base::kOtherUser, base::kOtherUser), 0);
  DriverOptions options = options_;
  options.state_directory = directory_ + "/other";
  for (const std::string& inside : {folder, folder + "/megascale"}) {
    options.listen_address = "unix:" + inside + "/driver.sock";
    const absl::Status status = DriverServer::Start(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to nobody (uid 65534)"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("give another address with --listen"));
  }
}

TEST_F(DriverServerTest, SocketOfADeadDriverIsReplaced) {
  server_.reset();
  const std::string path = directory_ + "/run/driver.sock";
  ::unlink(path.c_str());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::close(socket);
  Restart();
  EXPECT_EQ(Get("nobody").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(DriverServerTest, PlacesToListenThatAreNotSafeAreRefused) {
  DriverOptions options;
  options.state_directory = directory_ + "/other";
  options.listen_address = "127.0.0.1:0";
  EXPECT_EQ(DriverServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.insecure = true;
  options.listen_address = "0.0.0.0:0";
  EXPECT_EQ(DriverServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::create_directory(directory_ + "/open");
  ::chmod((directory_ + "/open").c_str(), 0755);
  options.listen_address = "unix:" + directory_ + "/open/driver.sock";
  EXPECT_EQ(DriverServer::Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.listen_address = "127.0.0.1:0";
  options.node_timeout = absl::Nanoseconds(2);
  EXPECT_EQ(std::string(DriverServer::Start(options).status().message()),
            "--node-timeout: 2ns is out of range; expected 2s to 1h");
  options.node_timeout = absl::Seconds(5);
  options.exchange_rate = -1;
  EXPECT_EQ(std::string(DriverServer::Start(options).status().message()),
            "--exchange-rate: -1 is out of range; expected 0 to 1000000 MB/s");
  options.exchange_rate = 0;
  options.look_interval = absl::Milliseconds(999);
  EXPECT_EQ(std::string(DriverServer::Start(options).status().message()),
            "--look-every: 999ms is out of range; expected 1s to 10m");
  options.look_interval = absl::Seconds(10);
  options.tls.ca = "/nowhere.pem";
  EXPECT_EQ(DriverServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.tls.ca.clear();
  EXPECT_FALSE(std::filesystem::exists(options.state_directory)) << "made before it refused";
  ::testing::internal::CaptureStdout();  // where a test's log goes
  auto server = DriverServer::Start(options);
  const std::string log = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_GT((*server)->port(), 0);
  EXPECT_THAT(log, HasSubstr("listens on 127.0.0.1:" + std::to_string((*server)->port()) + "\n"));
}

// Plays the job to its end and checks the status that people see meanwhile.
TEST_F(DriverServerTest, JobRunsThroughAnAgentToItsEnd) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  FakeAgentStream stream(channel_, "a");
  stream.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
  agent::ActualJob actual;
  actual.set_job_id("j");
  actual.set_attempt(1);
  actual.mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  actual.mutable_preflight()->set_flops_ceiling(1e11);
  stream.Report(actual);
  stream.AwaitPhase(agent::DesiredJob::PHASE_RUN);

  grpc::ClientContext watch_context;
  watch_context.set_deadline(Deadline());
  control::WatchJobRequest watch;
  watch.set_job_id("j");
  const auto watcher = jobs_->WatchJob(&watch_context, watch);
  control::WatchJobResponse seen;
  ASSERT_TRUE(watcher->Read(&seen));
  EXPECT_EQ(seen.steps_size(), 0);

  agent::ActualRank* rank = actual.add_ranks();
  rank->set_state(agent::ActualRank::STATE_RUNNING);
  rank->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
  for (int64_t step = 1; step <= 3; ++step) {
    auto* record = actual.add_steps();
    record->set_step(step);
    record->set_attempt(1);
    record->set_loss(5.0 / static_cast<double>(step));
    record->set_tokens(32);
    record->set_seconds(0.5);
  }
  stream.Report(actual);
  stream.Await(
      [](const agent::DesiredState& desired) { return desired.jobs(0).acked_step() == 3; });
  ASSERT_TRUE(Get("j").ok());
  EXPECT_EQ(job_.state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(job_.last_step(), 3);
  EXPECT_DOUBLE_EQ(job_.tokens_per_second(), 64);
  EXPECT_GT(job_.model_flops_per_second(), 0);
  EXPECT_DOUBLE_EQ(job_.flops_ceiling(), 1e11);

  rank->set_state(agent::ActualRank::STATE_FINISHED);
  auto* shard = actual.add_shards();
  shard->set_attempt(1);
  shard->set_step(3);
  stream.Report(actual);
  stream.Await(
      [](const agent::DesiredState& desired) { return desired.jobs(0).finalize_size() == 1; });
  auto* manifest = actual.add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(3);
  const std::string checkpoint = directory_ + "/state/jobs/j/checkpoints/step-00000003-attempt-1";
  manifest->set_directory(checkpoint);
  stream.Report(actual);
  stream.Await([](const agent::DesiredState& desired) {
    return desired.jobs(0).committed_size() == 1 && desired.jobs(0).delete_checkpoints();
  });
  actual.clear_manifests();
  actual.mutable_retained()->set_attempt(1);
  actual.mutable_retained()->set_step(3);
  stream.Report(actual);
  stream.Await([](const agent::DesiredState& desired) { return desired.jobs_size() == 0; });

  int num_steps = 0;
  do {
    num_steps += seen.steps_size();
  } while (watcher->Read(&seen));
  EXPECT_TRUE(watcher->Finish().ok());
  EXPECT_EQ(num_steps, 3);
  EXPECT_EQ(seen.job().state(), control::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(seen.job().last_checkpoint().directory(), checkpoint);
  std::ifstream metrics(directory_ + "/state/jobs/j/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  EXPECT_THAT(line, HasSubstr("\"step\":1,\"loss\":5.0,"));
  server_.reset();  // which has then written it
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/state/jobs/j/job.json"));
}

TEST_F(DriverServerTest, AWatcherGetsAsManyRanksAsItAsksFor) {
  job::v1::JobSpec two_ranks = SmallSpec();
  *two_ranks.mutable_parallel() = SpecOf(2, 1, 30).parallel();
  ASSERT_TRUE(Submit("j", two_ranks).ok());
  FakeAgentStream stream(channel_, "a", "n0", 2);
  stream.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
  for (const auto& [ranks_max, num_ranks] : std::map<int, int>{{0, 2}, {1, 1}, {5, 2}}) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    control::WatchJobRequest watch;
    watch.set_job_id("j");
    watch.set_ranks_max(ranks_max);
    const auto watcher = jobs_->WatchJob(&context, watch);
    control::WatchJobResponse seen;
    ASSERT_TRUE(watcher->Read(&seen));
    EXPECT_EQ(seen.job().ranks_size(), num_ranks);
    EXPECT_EQ(seen.job().num_ranks(), 2);
    context.TryCancel();
  }
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  control::WatchJobRequest watch;
  watch.set_job_id("j");
  watch.set_ranks_max(-1);
  EXPECT_EQ(jobs_->WatchJob(&context, watch)->Finish().error_message(),
            "ranks_max: -1; expected a number from 0; 0 stands for all");
}

// The job waits for a second slot, and each report of the agent is a round of the driver.
TEST_F(DriverServerTest, AWatcherOfAJobThatChangesInItsAgesOnlyGetsNothing) {
  job::v1::JobSpec two_ranks = SmallSpec();
  *two_ranks.mutable_parallel() = SpecOf(2, 1, 30).parallel();
  ASSERT_TRUE(Submit("j", two_ranks).ok());
  FakeAgentStream stream(channel_, "a", "n0", 1);
  const auto offers = [&] {
    return Get("j").ok() && absl::StrContains(job_.message(), "offers 1");
  };
  for (int i = 0; i < 300 && !offers(); ++i) absl::SleepFor(absl::Milliseconds(100));
  ASSERT_TRUE(offers()) << job_.message();
  const double age = job_.submitted_age_seconds();

  grpc::ClientContext context;
  context.set_deadline(Deadline());
  control::WatchJobRequest watch;
  watch.set_job_id("j");
  const auto watcher = jobs_->WatchJob(&context, watch);
  control::WatchJobResponse seen;
  ASSERT_TRUE(watcher->Read(&seen));
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(stream.TryReport());
    absl::SleepFor(absl::Milliseconds(70));
  }
  ASSERT_TRUE(Get("j").ok());
  EXPECT_GT(job_.submitted_age_seconds(), age);
  ASSERT_TRUE(Cancel("j").ok());
  int num_messages = 0;
  while (watcher->Read(&seen)) ++num_messages;
  EXPECT_EQ(seen.job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_LE(num_messages, 2) << "the driver may send ten messages a second";
}

TEST_F(DriverServerTest, StoreAndLogsGoThroughTheAgentsStream) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  FakeAgentStream stream(channel_, "a");
  stream.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
  agent::AgentUp up;
  auto* request = up.mutable_store()->add_requests();
  request->set_request_id("r1");
  request->set_operation(agent::StoreRequest::OPERATION_ADD);
  request->set_job_id("j");
  request->set_attempt(1);
  request->set_key("count");
  request->set_amount(5);
  stream.Write(up);
  agent::AgentDown down = stream.Read();
  ASSERT_EQ(down.store().replies_size(), 1);
  EXPECT_EQ(down.store().replies(0).sum(), 5);
  request->set_attempt(2);
  stream.Write(up);
  down = stream.Read();
  ASSERT_EQ(down.store().replies_size(), 1);
  EXPECT_EQ(down.store().replies(0).code(), static_cast<int>(absl::StatusCode::kAborted));

  grpc::ClientContext context;
  context.set_deadline(Deadline());
  control::StreamLogsRequest logs;
  logs.set_job_id("j");
  const auto reader = jobs_->StreamLogs(&context, logs);
  for (const std::string text : {"one\ntwo\nthr", "ee", ""}) {
    down = stream.Read();
    ASSERT_TRUE(down.has_fetch_log());
    agent::AgentUp chunk;
    chunk.mutable_log()->set_request_id(down.fetch_log().request_id());
    chunk.mutable_log()->set_data(text);
    chunk.mutable_log()->set_next_offset(down.fetch_log().offset() +
                                         static_cast<int64_t>(text.size()));
    stream.Write(chunk);
  }
  control::StreamLogsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.data(), "one\ntwo\n");
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.data(), "three");
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

// The keys of an attempt tell where its ranks listen.
TEST_F(DriverServerTest, AnAgentWithoutRanksOfAnAttemptHasNoPartInItsStore) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  FakeAgentStream stream(channel_, "a");
  stream.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
  FakeAgentStream other(channel_, "b", "n1");
  other.Read();  // its desired state
  agent::AgentUp up;
  auto* request = up.mutable_store()->add_requests();
  request->set_request_id("r1");
  request->set_operation(agent::StoreRequest::OPERATION_SET);
  request->set_job_id("j");
  request->set_attempt(1);
  request->set_key("rank0");
  other.Write(up);
  const agent::AgentDown down = other.Read();
  ASSERT_EQ(down.store().replies_size(), 1);
  EXPECT_EQ(down.store().replies(0).code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_THAT(down.store().replies(0).message(), HasSubstr("has no rank on node n1"));
}

TEST_F(DriverServerTest, SpansComeThroughTheAgentsStreamWithItsClock) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  const auto stream_spans = [&](const std::string& job_id, grpc::ClientContext* context) {
    context->set_deadline(Deadline());
    control::StreamSpansRequest request;
    request.set_job_id(job_id);
    request.set_first_step(4);
    return jobs_->StreamSpans(context, request);
  };
  control::StreamSpansResponse response;
  {
    grpc::ClientContext context;
    const auto reader = stream_spans("nobody", &context);
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
  {
    grpc::ClientContext context;
    const auto reader = stream_spans("j", &context);
    EXPECT_FALSE(reader->Read(&response));
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("none of its ranks has begun"));
  }
  FakeAgentStream stream(channel_, "one");
  stream.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
  grpc::ClientContext context;
  const auto reader = stream_spans("j", &context);
  for (;;) {
    const agent::AgentDown down = stream.Read();
    if (down.has_desired()) continue;
    ASSERT_TRUE(down.has_fetch_spans());
    agent::AgentUp up;
    up.mutable_spans()->set_request_id(down.fetch_spans().request_id());
    up.mutable_spans()->set_monotonic_nanos(1000);
    if (!down.fetch_spans().clock_only()) {
      EXPECT_EQ(down.fetch_spans().job_id(), "j");
      EXPECT_EQ(down.fetch_spans().attempt(), 1);
      EXPECT_EQ(down.fetch_spans().rank(), 0);
      EXPECT_EQ(down.fetch_spans().first_step(), 4);
      up.mutable_spans()->add_spans()->set_step(5);
      up.mutable_spans()->set_num_lost(2);
      stream.Write(up);
      break;
    }
    stream.Write(up);
  }
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.rank(), 0);
  EXPECT_EQ(response.attempt(), 1);
  EXPECT_EQ(response.node_id(), "n0");
  EXPECT_THAT(response.spans(), SizeIs(1));
  EXPECT_EQ(response.num_lost(), 2);
  EXPECT_EQ(response.read_nanos(), 1000);
  EXPECT_LT(response.clock_ahead_nanos(), 0);  // this machine runs longer than a microsecond
  EXPECT_GT(response.clock_error_nanos(), 0);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(DriverServerTest, AnAgentIsReplacedByItsNextIncarnationOnceItsStreamHasEnded) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  FakeAgentStream older(channel_, "a");
  older.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
  EXPECT_EQ(FakeAgentStream(channel_, "b").Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(older.TryReport());
  older.Cancel();
  older.Finish();
  const auto deadline = Deadline();
  bool taken = false;
  while (!taken && std::chrono::system_clock::now() < deadline) {
    FakeAgentStream newer(channel_, "b");
    agent::AgentDown down;
    taken = newer.TryRead(&down);
    if (!taken) {
      EXPECT_EQ(newer.Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
      continue;
    }
    ASSERT_EQ(down.desired().jobs_size(), 1);
    EXPECT_EQ(down.desired().jobs(0).phase(), agent::DesiredJob::PHASE_HOLD);
  }
  EXPECT_TRUE(taken);
}

TEST_F(DriverServerTest, ServerEndsWhileAnAgentReports) {
  for (int round = 0; round < 5; ++round) {
    FakeAgentStream fake(channel_, absl::StrCat("one", round));
    fake.Read();
    std::thread reporter([&fake] {
      while (fake.TryReport()) {
      }
    });
    std::promise<void> ended;
    std::thread restart([&] {
      server_.reset();
      ended.set_value();
    });
    const bool in_time =
        ended.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    if (!in_time) fake.Cancel();
    reporter.join();
    restart.join();
    ASSERT_TRUE(in_time) << "the server waits for a stream that nothing ends";
    Restart();
  }
}

TEST_F(DriverServerTest, AgentOfAnotherProtocolIsRefused) {
  const auto stub = agent::AgentService::NewStub(channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto stream = stub->Connect(&context);
  agent::AgentUp up;
  *up.mutable_hello() = HelloOf("n0", "a", 1);
  up.mutable_hello()->set_protocol_version(agent::PROTOCOL_VERSION_CURRENT + 1);
  ::testing::internal::CaptureStdout();  // where a test's log goes
  ASSERT_TRUE(stream->Write(up));
  agent::AgentDown down;
  EXPECT_FALSE(stream->Read(&down));
  const grpc::Status refused = stream->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("upgrade the driver"));
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr(refused.error_message()));
}

// Nobody has checked what an agent calls itself, and the driver keeps who was refused.
TEST_F(DriverServerTest, ARefusedAgentIsKnownByTheBeginningOfItsName) {
  const auto stub = agent::AgentService::NewStub(channel_);
  ::testing::internal::CaptureStdout();  // where a test's log goes
  for (const char end : {'a', 'b'}) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const auto stream = stub->Connect(&context);
    agent::AgentUp up;
    *up.mutable_hello() = HelloOf(std::string(1 << 20, 'n') + end, "a", 1);
    up.mutable_hello()->set_protocol_version(agent::PROTOCOL_VERSION_CURRENT + 1);
    ASSERT_TRUE(stream->Write(up));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  const std::string log = ::testing::internal::GetCapturedStdout();
  const size_t first = log.find("refused an agent: ");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("refused an agent: ", first + 1), std::string::npos) << log;
}

// An agent of the next version that still speaks this one.
TEST_F(DriverServerTest, AgentOfANewerVersionThatSpeaksThisOneIsTaken) {
  const auto stub = agent::AgentService::NewStub(channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto stream = stub->Connect(&context);
  agent::AgentUp up;
  *up.mutable_hello() = HelloOf("n0", "a", 1);
  up.mutable_hello()->set_protocol_version(agent::PROTOCOL_VERSION_CURRENT + 1);
  up.mutable_hello()->set_oldest_protocol_version(agent::PROTOCOL_VERSION_CURRENT);
  ASSERT_TRUE(stream->Write(up));
  agent::AgentDown down;
  ASSERT_TRUE(stream->Read(&down));
  EXPECT_TRUE(down.has_desired());
  context.TryCancel();
}

TEST_F(DriverServerTest, DesiredStatesOfARestartedDriverAreNewer) {
  ASSERT_TRUE(Submit("j", SmallSpec()).ok());
  int64_t version = 0;
  for (int start = 0; start < 2; ++start) {
    FakeAgentStream stream(channel_, "a");
    const auto desired = stream.AwaitPhase(agent::DesiredJob::PHASE_PREFLIGHT);
    EXPECT_GT(desired.version(), version);
    version = desired.version();
    Restart();
  }
}

// --- the loop and its readers --------------------------------------------------------------------

// A log in memory whose writes a test holds up.
class HeldLog : public EventLog {
 public:
  struct Gate {
    void Set(bool closed) {
      const std::lock_guard<std::mutex> lock(mutex);
      is_closed = closed;
      changed.notify_all();
    }
    // Waits until the loop stands at the closed gate.
    void AwaitWaiting() {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return is_waiting; });
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool is_closed = false;
    bool is_waiting = false;
  };
  explicit HeldLog(Gate* gate) : gate_(*gate) {}
  absl::StatusOr<LogContents> ReadAll() override { return LogContents(); }
  absl::Status Append(int64_t, const std::vector<Event>&) override {
    std::unique_lock<std::mutex> lock(gate_.mutex);
    gate_.is_waiting = gate_.is_closed;
    gate_.changed.notify_all();
    gate_.changed.wait(lock, [this] { return !gate_.is_closed; });
    gate_.is_waiting = false;
    return absl::OkStatus();
  }
  absl::Status WriteSnapshot(const DriverState&) override { return absl::OkStatus(); }

 private:
  Gate& gate_;
};

TEST_F(DriverServerTest, ReadersAndWatchersAreAnsweredWhileTheLoopWaitsForTheDisk) {
  HeldLog::Gate gate;
  DriverShell::Options options;
  options.state_directory = directory_ + "/held";
  options.log = std::make_unique<HeldLog>(&gate);
  options.files = &RealJobFiles();
  options.clock = &base::RealClock();
  const auto loop = *DriverLoop::Create(std::move(options));
  EXPECT_TRUE(loop->GetCluster().ok()) << "before it runs, too";
  loop->Start();
  ASSERT_TRUE(loop->Submit(Submitted("a", SpecOf(1, 1, 30)).job_submitted()).ok());
  gate.Set(true);
  auto submit = std::async(std::launch::async, [&] {
    return loop->Submit(Submitted("b", SpecOf(1, 1, 30)).job_submitted());
  });
  gate.AwaitWaiting();
  const int64_t round = (*loop->View())->round();
  EXPECT_EQ(loop->GetJob("a")->job_id(), "a");
  EXPECT_EQ(loop->GetJob("b").status().code(), absl::StatusCode::kNotFound) << "not durable";
  EXPECT_THAT(*loop->ListJobs(), SizeIs(1));
  EXPECT_TRUE(loop->GetCluster().ok());
  AgentStreams agents;
  const auto page = MakePageSource(loop.get(), &agents);  // of the page, and of Prometheus
  EXPECT_THAT(*page->Jobs(), SizeIs(1));
  EXPECT_TRUE(page->Cluster().ok());
  WatchedJobs watched(loop.get());
  std::vector<std::unique_ptr<WatchedJobs::Watch>> watches;
  for (int i = 0; i < 500; ++i) {
    watches.push_back(std::make_unique<WatchedJobs::Watch>(&watched, "a", 0));
    EXPECT_EQ((*watches.back()->Show())->job.job_id(), "a");
  }
  EXPECT_EQ(watched.num_made(), 1) << "for all of them";
  for (int ranks_max = 1024; ranks_max < 2048; ++ranks_max) {
    watches.push_back(std::make_unique<WatchedJobs::Watch>(&watched, "a", ranks_max));
    EXPECT_EQ((*watches.back()->Show())->job.job_id(), "a");
  }
  EXPECT_EQ(watched.num_made(), 2) << "watchers of another number of ranks are shown another job";
  EXPECT_EQ((*loop->View())->round(), round) << "readers entered the loop";
  gate.Set(false);
  EXPECT_TRUE(submit.get().ok());
  EXPECT_TRUE(loop->GetJob("b").ok()) << "who submitted it sees it";
  loop->Stop();
  EXPECT_EQ(loop->GetJob("a").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace megascale::driver
