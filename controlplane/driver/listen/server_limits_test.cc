#include "controlplane/driver/listen/server_limits.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

}  // namespace
}  // namespace megascale::driver
