#include "controlplane/driver/listen/bounded_requests.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "controlplane/driver/listen/server_limits.h"
#include "proto/control.grpc.pb.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

constexpr size_t kMiB = size_t{1} << 20;

// WatchJob sends one message, then waits; SubmitJob answers at once.
class OneWatchService : public control::JobService::Service {
 public:
  explicit OneWatchService(absl::Notification* ends) : ends_(*ends) {}

  grpc::Status WatchJob(grpc::ServerContext* context, const control::WatchJobRequest* request,
                        grpc::ServerWriter<control::WatchJobResponse>* writer) override {
    control::WatchJobResponse response;
    response.mutable_job()->set_job_id(request->job_id());
    writer->Write(response);
    ends_.WaitForNotificationWithTimeout(absl::Seconds(60));
    return grpc::Status::OK;
  }
  grpc::Status SubmitJob(grpc::ServerContext* context, const control::SubmitJobRequest* request,
                         control::SubmitJobResponse* response) override {
    return {grpc::StatusCode::NOT_FOUND, "served"};
  }

 private:
  absl::Notification& ends_;
};

class BoundedRequestsTest : public testing::Test {
 protected:
  // The end of gRPC's library, between tests, may wait for 10 s.
  static void SetUpTestSuite() { grpc_init(); }

  BoundedRequestsTest() {
    char directory[] = "/tmp/ms-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    service_ = BoundRequests(
        std::make_unique<OneWatchService>(&ends_),
        *control::SubmitJobRequest::descriptor()->file()->service(0),
        {.bytes_max = 2 * kMiB, .large_methods = {"SubmitJob"}, .bytes_of_all_max = 3 * kMiB});
    const std::string address = "unix:" + directory_ + "/s.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    SetLimits(&builder);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = control::JobService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  ~BoundedRequestsTest() override {
    if (!ends_.HasBeenNotified()) ends_.Notify();
    server_->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(directory_);
  }

  grpc::Status Submit(size_t num_bytes) {
    control::SubmitJobRequest request;
    request.set_from_checkpoint(std::string(num_bytes, 'x'));
    control::SubmitJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return stub_->SubmitJob(&context, request, &response);
  }

  std::string directory_;
  absl::Notification ends_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<control::JobService::Stub> stub_;
};

TEST_F(BoundedRequestsTest, ARequestCountsForAsLongAsItsCallLasts) {
  grpc::ClientContext context;
  control::WatchJobRequest request;
  request.set_job_id(std::string(2 * kMiB - 64, 'x'));
  const auto reader = stub_->WatchJob(&context, request);
  control::WatchJobResponse first;
  ASSERT_TRUE(reader->Read(&first));
  EXPECT_EQ(first.job().job_id(), request.job_id());

  const grpc::Status refused = Submit(2 * kMiB);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(),
            "other calls work on large requests, which leave no room for this one; try again");
  EXPECT_EQ(Submit(kMiB / 2).error_message(), "served") << "there is room for it";
  EXPECT_EQ(Submit(0).error_message(), "served");

  ends_.Notify();
  EXPECT_FALSE(reader->Read(&first));
  EXPECT_TRUE(reader->Finish().ok());
  // The client hears of the end before the call gives its room back.
  grpc::Status served;
  for (int i = 0; i < 1000 && served.error_message() != "served"; ++i) served = Submit(2 * kMiB);
  EXPECT_EQ(served.error_message(), "served");
}

TEST_F(BoundedRequestsTest, ARequestThatNoRuleAllowsIsRefusedWithItsSize) {
  grpc::ClientContext context;
  control::WatchJobRequest request;
  request.set_job_id(std::string(2 * kMiB, 'x'));
  const auto reader = stub_->WatchJob(&context, request);
  control::WatchJobResponse first;
  EXPECT_FALSE(reader->Read(&first));
  const grpc::Status refused = reader->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "the request has 2097157 bytes; expected at most 2097152");
  EXPECT_EQ(Submit(4 * kMiB).error_message(), "served") << "a large method, and nobody else calls";
}

// Bytes that are no message.
TEST_F(BoundedRequestsTest, ARequestThatCannotBeParsedEndsItsCallOnly) {
  grpc::ClientContext context;
  control::WatchJobRequest request;
  request.set_job_id("\xff\xfe");  // no UTF-8
  const auto reader = stub_->WatchJob(&context, request);
  control::WatchJobResponse first;
  EXPECT_FALSE(reader->Read(&first));
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_EQ(Submit(0).error_message(), "served");
}

}  // namespace
}  // namespace megascale::driver
