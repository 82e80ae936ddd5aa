#include "controlplane/driver/listen/server_limits.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/control.grpc.pb.h"

namespace megascale::driver {
namespace {

// Submits a job whose request has `num_bytes` bytes, over a connection of its own, to a service
// that implements nothing.
grpc::StatusCode Submit(const std::string& address, int client, size_t num_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("test.client", client);
  const auto stub = control::v1::JobService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  control::v1::SubmitJobRequest request;
  request.set_from_checkpoint(std::string(num_bytes, 'x'));
  control::v1::SubmitJobResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return stub->SubmitJob(&context, request, &response).error_code();
}

class JobService : public control::v1::JobService::Service {
  grpc::Status SubmitJob(grpc::ServerContext* context, const control::v1::SubmitJobRequest* request,
                         control::v1::SubmitJobResponse* response) override {
    return {grpc::StatusCode::NOT_FOUND, ""};
  }
};

TEST(ServerLimitsTest, ManyLargeMessagesAtOnceEndAndOthersAreServedAfterThem) {
  char directory[] = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string address = std::string("unix:") + directory + "/s.sock";
  JobService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  SetLimits(&builder, size_t{16} << 20);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  std::vector<std::thread> clients;
  for (int i = 0; i < 24; ++i) {
    clients.emplace_back([&address, i] {
      // NOT_FOUND: served. Otherwise the budget was used up.
      const grpc::StatusCode code = Submit(address, i, size_t{8} << 20);
      EXPECT_TRUE(code == grpc::StatusCode::NOT_FOUND ||
                  code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                  code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED)
          << code;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(Submit(address, 100, 0), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Submit(address, 101, size_t{65} << 20), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "larger than one message may be";
  server->Shutdown(std::chrono::system_clock::now());
  std::filesystem::remove_all(directory);
}

// Answers no call before it is told to.
class WaitingService : public control::v1::JobService::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext* context, const control::v1::ListJobsRequest* request,
                        control::v1::ListJobsResponse* response) override {
    ++num_calls_;
    released_.WaitForNotificationWithTimeout(absl::Seconds(60));
    return grpc::Status::OK;
  }
  void Release() { released_.Notify(); }
  int num_calls() const { return num_calls_; }

 private:
  absl::Notification released_;
  std::atomic<int> num_calls_ = 0;
};

TEST(ServerLimitsTest, CallsBeyondTheThreadsAreRefusedAtOnce) {
  char directory[] = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string address = std::string("unix:") + directory + "/s.sock";
  WaitingService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  SetLimits(&builder, kMemoryBytesMax, /*threads=*/40);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  const auto stub = control::v1::JobService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  std::atomic<int> num_refused = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 100; ++i) {
    clients.emplace_back([&] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      control::v1::ListJobsResponse response;
      const auto code = stub->ListJobs(&context, {}, &response).error_code();
      num_refused += code == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    });
  }
  for (int i = 0; i < 300 && num_refused + service.num_calls() < 100; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_GE(service.num_calls(), 20);
  EXPECT_LE(service.num_calls(), 40);
  EXPECT_EQ(num_refused + service.num_calls(), 100);
  service.Release();
  for (std::thread& client : clients) client.join();
  server->Shutdown(std::chrono::system_clock::now());
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace megascale::driver
