#include "controlplane/client/job_client.h"

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"

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
  grpc::Status GetJob(grpc::ServerContext*, const control::v1::GetJobRequest* request,
                      control::v1::GetJobResponse* response) override {
    return {grpc::StatusCode::NOT_FOUND, "no job " + request->job_id()};
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

  std::atomic<int> submits = 0;
  int num_unavailable = 0;
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

TEST_F(JobClientTest, SubmitTriesAgainWithTheSameId) {
  service_.num_unavailable = 3;
  Serve();
  control::v1::SubmitJobRequest request;
  request.set_job_id("one");
  const auto job = client_->Submit(request, absl::Seconds(20));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), "one");
  EXPECT_EQ(service_.submits, 4);
}

TEST_F(JobClientTest, TheDriversRefusalsAreNotRepeated) {
  Serve();
  control::v1::SubmitJobRequest request;
  request.set_job_id("taken");
  const auto job = client_->Submit(request, absl::Seconds(20));
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
