#include "controlplane/client/job_client.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/socket/testing/test_user.h"

namespace megascale::client {
namespace {

// A real gRPC server whose answers are fixed.
class FixedService final : public control::v1::JobService::Service {
 public:
  grpc::Status SubmitJob(grpc::ServerContext*, const control::v1::SubmitJobRequest* request,
                         control::v1::SubmitJobResponse* response) override {
    ++submits;
    if (submits <= num_unavailable) return {grpc::StatusCode::UNAVAILABLE, "starting"};
    if (request->job_id() == "taken") return {grpc::StatusCode::ALREADY_EXISTS, "job taken exists"};
    response->mutable_job()->set_job_id(request->job_id());
    return grpc::Status::OK;
  }
  // Has the jobs 0 to num_jobs - 1; a token is the number of jobs that came before.
  grpc::Status ListJobs(grpc::ServerContext*, const control::v1::ListJobsRequest* request,
                        control::v1::ListJobsResponse* response) override {
    ++num_lists;
    int done = 0;
    (void)absl::SimpleAtoi(request->page_token(), &done);
    for (int i = 0; i < request->page_size() && done < num_jobs; ++i, ++done) {
      const bool newest_first = request->newest_first() && !ignores_order;
      const int job = newest_first ? num_jobs - 1 - done : done;
      response->add_jobs()->set_job_id(absl::StrCat(job));
      const int64_t time = clock_was_set_back ? num_jobs - job : job;
      response->mutable_jobs()->rbegin()->mutable_submitted_at()->set_seconds(time);
    }
    if (done < num_jobs) response->set_next_page_token(absl::StrCat(done));
    if (endless) response->set_next_page_token("1");
    return grpc::Status::OK;
  }
  grpc::Status GetCluster(grpc::ServerContext*, const control::v1::GetClusterRequest*,
                          control::v1::GetClusterResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status GetJob(grpc::ServerContext* context, const control::v1::GetJobRequest* request,
                      control::v1::GetJobResponse* response) override {
    time_for_get = absl::FromChrono(context->deadline()) - absl::Now();
    if (request->job_id() == "x") return {grpc::StatusCode::NOT_FOUND, "no job x"};
    response->mutable_job()->set_job_id(request->job_id());
    return grpc::Status::OK;
  }
  // Three lines, then the end; "broken" breaks off before each but the first.
  grpc::Status StreamLogs(grpc::ServerContext*, const control::v1::StreamLogsRequest* request,
                          grpc::ServerWriter<control::v1::StreamLogsResponse>* writer) override {
    const std::string lines = "one\ntwo\nsix\n";
    int64_t offset = request->resume_at().empty() ? 0 : request->resume_at(0).offset();
    for (; offset < static_cast<int64_t>(lines.size()); offset += 4) {
      control::v1::StreamLogsResponse piece;
      piece.set_attempt(1);
      piece.set_node_id("n0");
      piece.set_data(lines.substr(static_cast<size_t>(offset), 4));
      piece.set_end_offset(offset + 4);
      writer->Write(piece);
      if (request->job_id() == "broken") return {grpc::StatusCode::UNAVAILABLE, "ends"};
    }
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const control::v1::WatchJobRequest* request,
                        grpc::ServerWriter<control::v1::WatchJobResponse>* writer) override {
    control::v1::WatchJobResponse message;
    for (int step = 0; step < 3; ++step) {
      message.mutable_job()->set_last_step(step);
      writer->Write(message);
    }
    while (request->job_id() == "endless" && !context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  }

  absl::Duration time_for_get;  // what the newest Get left the service
  std::atomic<int> submits = 0;
  int num_unavailable = 0;
  int num_jobs = 0;
  bool endless = false;
  bool ignores_order = false;  // as a driver that is older than newest_first
  bool clock_was_set_back = false;
  std::atomic<int> num_lists = 0;
};

class JobClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/ms-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    ClientOptions options;
    options.address = *ParseAddress("unix:" + directory_ + "/driver.sock");
    client_ = *JobClient::Create(options);
  }
  void TearDown() override {
    if (server_) server_->Shutdown();
    std::filesystem::remove_all(directory_);
  }
  void Serve() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + directory_ + "/driver.sock",
                             grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::string directory_;
  FixedService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<JobClient> client_;
};

TEST_F(JobClientTest, AnAbsentDriverIsUnavailableAndNamed) {
  const auto job = client_->Get("x");
  EXPECT_EQ(job.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(job.status().message()),
            "no driver can be reached at unix:" + directory_ + "/driver.sock");
}

TEST_F(JobClientTest, CallsShareAConnectionAndMakeANewOneAfterARestartOfTheDriver) {
  Serve();
  ASSERT_TRUE(client_->List().ok());
  ASSERT_EQ(::unlink((directory_ + "/driver.sock").c_str()), 0);
  EXPECT_TRUE(client_->List().ok()) << "nobody can connect any more; who is connected may stay so";
  server_->Shutdown();
  server_->Wait();
  EXPECT_EQ(client_->List().status().code(), absl::StatusCode::kUnavailable);
  Serve();
  EXPECT_TRUE(client_->List().ok());
  server_->Shutdown();
  server_->Wait();
  Serve();
  EXPECT_TRUE(client_->List().ok()) << "a call finds out by itself that its connection has ended";
}

TEST_F(JobClientTest, AListIsReadToItsEndInPages) {
  service_.num_jobs = 1234;
  Serve();
  const auto all = client_->List();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->jobs_size(), 1234);
  for (int i = 0; i < 1234; ++i) EXPECT_EQ(all->jobs(i).job_id(), absl::StrCat(i));
  EXPECT_GT(service_.num_lists, 1);
}

TEST_F(JobClientTest, ALimitedListHasTheNewestJobsInOrderAndAsksForNoMore) {
  service_.num_jobs = 1234;
  Serve();
  for (const int limit : {1, 3, 700, 1234, 5000}) {
    service_.num_lists = 0;
    const auto some = client_->List(limit);
    ASSERT_TRUE(some.ok()) << some.status();
    const int expected = std::min(limit, 1234);
    ASSERT_EQ(some->jobs_size(), expected);
    EXPECT_EQ(some->jobs(0).job_id(), absl::StrCat(1234 - expected));
    EXPECT_EQ(some->jobs(expected - 1).job_id(), "1233");
    EXPECT_LE(service_.num_lists, 1 + limit / 500);
  }
}

TEST_F(JobClientTest, ALimitedListOfADriverThatKnowsNoOrderHasTheNewestJobs) {
  service_.ignores_order = true;
  service_.num_jobs = 1234;
  Serve();
  for (const int limit : {1, 3, 700, 1234, 5000}) {
    const auto some = client_->List(limit);
    ASSERT_TRUE(some.ok()) << some.status();
    const int expected = std::min(limit, 1234);
    ASSERT_EQ(some->jobs_size(), expected);
    EXPECT_EQ(some->jobs(0).job_id(), absl::StrCat(1234 - expected));
    EXPECT_EQ(some->jobs(expected - 1).job_id(), "1233");
  }
}

TEST_F(JobClientTest, AClockThatWasSetBackChangesNoList) {
  service_.clock_was_set_back = true;
  service_.num_jobs = 20;
  Serve();
  const auto some = client_->List(3);
  ASSERT_TRUE(some.ok()) << some.status();
  ASSERT_EQ(some->jobs_size(), 3);
  EXPECT_EQ(some->jobs(0).job_id(), "17");
  EXPECT_EQ(some->jobs(2).job_id(), "19");
}

TEST_F(JobClientTest, ACallThatADriverDoesNotKnowSaysThatItIsTooOld) {
  Serve();  // the service has no EvictNode
  control::v1::EvictNodeRequest request;
  request.set_node_id("n0");
  const auto evicted = client_->Evict(request);
  EXPECT_EQ(evicted.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StrContains(evicted.status().message(), "is too old for this"))
      << evicted.status();
}

TEST_F(JobClientTest, AListThatDoesNotEndIsAnError) {
  service_.endless = true;
  Serve();
  EXPECT_EQ(client_->List().status().code(), absl::StatusCode::kInternal);
}

TEST_F(JobClientTest, ADriverOfAnotherUserIsRefusedBeforeTheFirstByte) {
  ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);
  std::filesystem::create_directory(directory_ + "/ours");
  std::filesystem::permissions(directory_ + "/ours", std::filesystem::perms::owner_all);
  for (const bool only_the_process : {false, true}) {
    const std::string path = directory_ + (only_the_process ? "/ours/d.sock" : "/theirs/d.sock");
    base::OtherUsersListener listener(path, only_the_process);
    ClientOptions options;
    options.address = *ParseAddress(path);
    const auto client = JobClient::Create(options);
    ASSERT_TRUE(client.ok()) << client.status();
    control::v1::SubmitJobRequest request;
    request.set_job_id("one");
    for (const absl::Status& status :
         {(*client)->Get("x").status(),
          (*client)->Submit(request, {.time = absl::Seconds(20)}).status(),
          (*client)->Watch("x", {[](const auto&) {}, {}})}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
      EXPECT_EQ(std::string(status.message()),
                (only_the_process ? path + ": the process at the other end runs as "
                                  : directory_ + "/theirs: belongs to ") +
                    base::DescribeUser(base::kOtherUser) + ", expected " +
                    base::DescribeUser(::geteuid()) +
                    ", this process's user; run this as the user who runs the driver, or name "
                    "another driver with --address or MEGASCALE_ADDRESS");
    }
    EXPECT_EQ(listener.Stop(), 0);
  }
}

// Each call has its own connection, so a broken one does not matter.
TEST_F(JobClientTest, ADriverThatCameBackIsUsedAtOnce) {
  Serve();
  EXPECT_EQ(client_->Get("x").status().code(), absl::StatusCode::kNotFound);
  server_->Shutdown();
  EXPECT_EQ(client_->Get("x").status().code(), absl::StatusCode::kUnavailable);
  Serve();
  EXPECT_EQ(client_->Get("x").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(JobClientTest, SubmitTriesAgainWithTheSameId) {
  service_.num_unavailable = 3;
  Serve();
  control::v1::SubmitJobRequest request;
  request.set_job_id("one");
  const auto job = client_->Submit(request, {.time = absl::Seconds(20)});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), "one");
  EXPECT_EQ(service_.submits, 4);
}

// The failure of the first attempt must not delay the next ones beyond their own interval.
TEST_F(JobClientTest, SubmitFindsADriverThatStartsAfterTheFirstAttempt) {
  EXPECT_EQ(client_->Get("x").status().code(), absl::StatusCode::kUnavailable);
  Serve();
  control::v1::SubmitJobRequest request;
  request.set_job_id("one");
  const auto job = client_->Submit(request, {.time = absl::Seconds(4)});
  EXPECT_TRUE(job.ok()) << job.status();
}

TEST_F(JobClientTest, CallsThatReadWaitForADriverThatStartsLater) {
  ClientOptions options;
  options.address = *ParseAddress("unix:" + directory_ + "/driver.sock");
  options.retry.time = absl::Seconds(20);
  int num_waits = 0;
  options.retry.on_retry = [&] {
    if (++num_waits == 2) Serve();
  };
  const auto client = *JobClient::Create(options);
  EXPECT_TRUE(client->List().ok());
  EXPECT_GE(num_waits, 2);
  const int num_waits_before = num_waits;
  EXPECT_TRUE(client->Cluster().ok());
  EXPECT_TRUE(client->Get("one").ok());
  EXPECT_EQ(client->Get("x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(num_waits, num_waits_before) << "the driver answers";
}

// gRPC itself would wait for five seconds before it connects again. After each failure a probe
// connects, too, to explain it.
TEST_F(JobClientTest, OverTcpEachRetryConnectsAnew) {
  const base::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 64), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::atomic<int> num_connections = 0;
  std::thread hangs_up([&] {
    for (;;) {
      const base::UniqueFd connection(::accept(listener.get(), nullptr, nullptr));
      if (connection.get() < 0) return;
      ++num_connections;
    }
  });
  ClientOptions options;
  options.address = *ParseAddress(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  options.insecure = true;
  options.retry.time = absl::Seconds(4);
  int num_waits = 0;
  options.retry.on_retry = [&] { ++num_waits; };
  EXPECT_EQ((*JobClient::Create(options))->List().status().code(), absl::StatusCode::kUnavailable);
  ::shutdown(listener.get(), SHUT_RDWR);
  hangs_up.join();
  EXPECT_GE(num_waits, 4);
  EXPECT_GE(num_connections, 2 * num_waits);
}

// A driver that is stopped takes the call and never answers.
TEST_F(JobClientTest, ACallHasNoMoreTimeThanItsCallerWantsToWait) {
  Serve();
  ClientOptions options;
  options.address = *ParseAddress("unix:" + directory_ + "/driver.sock");
  options.retry.time = absl::Milliseconds(300);
  EXPECT_TRUE((*JobClient::Create(options))->Get("one").ok());
  EXPECT_LE(service_.time_for_get, absl::Seconds(2));
}

TEST_F(JobClientTest, AWaitForTheDriverEndsWhenAsked) {
  ClientOptions options;
  options.address = *ParseAddress("unix:" + directory_ + "/driver.sock");
  options.retry.time = absl::InfiniteDuration();
  int num_asked = 0;
  options.retry.should_stop = [&] { return ++num_asked > 2; };
  const auto client = *JobClient::Create(options);
  EXPECT_EQ(client->List().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(JobClientTest, TheDriversRefusalsAreNotRepeated) {
  Serve();
  control::v1::SubmitJobRequest request;
  request.set_job_id("taken");
  const auto job = client_->Submit(request, {.time = absl::Seconds(20)});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(service_.submits, 1);
  const auto missing = client_->Get("x");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(missing.status().message()), "no job x");
}

TEST_F(JobClientTest, WatchDeliversInOrderAndEnds) {
  Serve();
  std::string steps;
  const absl::Status status = client_->Watch(
      "x", {[&](const auto& message) { steps += std::to_string(message.job().last_step()); }, {}});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(steps, "012");
}

TEST_F(JobClientTest, LogsGoOnWhereTheDriverBrokeOff) {
  Serve();
  control::v1::StreamLogsRequest request;
  for (const std::string job_id : {"whole", "broken"}) {
    request.set_job_id(job_id);
    std::string lines;
    const absl::Status status =
        client_->Logs(request, {[&](const auto& piece) { lines += piece.data(); }, {}});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(lines, "one\ntwo\nsix\n");
  }
}

TEST_F(JobClientTest, LogsGiveUpWhenTheDriverStaysAway) {
  Serve();
  control::v1::StreamLogsRequest request;
  request.set_job_id("broken");
  int num_absent = 0;
  LogsOptions options;
  options.absence_max = absl::Milliseconds(300);
  options.on_absent = [&] {
    ++num_absent;
    server_->Shutdown();
  };
  const absl::Status status = client_->Logs(request, {[](const auto&) {}, {}}, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("has not answered for 300ms"), std::string::npos)
      << status;
  EXPECT_EQ(num_absent, 1);
}

TEST_F(JobClientTest, WatchStopsWhenAsked) {
  Serve();
  std::atomic<int> messages = 0;
  const absl::Status status =
      client_->Watch("endless", {[&](const auto&) { ++messages; }, [&] { return messages == 3; }});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(JobClientCreateTest, PlaintextBeyondThisMachineIsRefused) {
  ClientOptions options;
  options.address = *ParseAddress("node:7077");
  options.insecure = true;
  EXPECT_EQ(
      std::string(JobClient::Create(options).status().message()),
      "node:7077 is a TCP address: it needs --tls-ca, --tls-cert and --tls-key; --insecure is "
      "for loopback addresses (127.0.0.1, [::1], localhost)");
  options.address = *ParseAddress("localhost:7077");
  EXPECT_TRUE(JobClient::Create(options).ok());
  options.insecure = false;
  EXPECT_EQ(std::string(JobClient::Create(options).status().message()),
            "localhost:7077 is a TCP address: it needs --tls-ca, --tls-cert and --tls-key, or "
            "--insecure");
  options.tls.ca = "/nonexistent.pem";
  EXPECT_EQ(std::string(JobClient::Create(options).status().message()),
            "mutual TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  options.tls.certificate = options.tls.key = options.tls.ca;
  EXPECT_EQ(JobClient::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::client
