#include "tests/versions/played_driver.h"

#include <gtest/gtest.h>

#include <chrono>

#include "absl/time/time.h"
#include "runtime/base/check.h"

namespace megascale::versions {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

PlayedDriver::PlayedDriver(const std::string& address) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  MEGASCALE_CHECK(server_ != nullptr);
}

PlayedDriver::~PlayedDriver() { server_->Shutdown(std::chrono::system_clock::now()); }

bool PlayedDriver::AwaitHello() {
  absl::MutexLock lock(&mutex_);
  const auto is_there = [&] { return stream_ != nullptr; };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_there), kPatience);
}

void PlayedDriver::Send(const agent::v1::AgentDown& down) {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(stream_, nullptr);
  EXPECT_TRUE(stream_->Write(down));
}

agent::v1::ActualState PlayedDriver::AwaitReport() {
  absl::MutexLock lock(&mutex_);
  const auto is_there = [&] { return has_report_; };
  EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_there), kPatience)) << "no report";
  has_report_ = false;
  return report_;
}

grpc::Status PlayedDriver::Connect(grpc::ServerContext* /*context*/,
                                   grpc::ServerReaderWriter<Down, Up>* stream) {
  Up up;
  if (!stream->Read(&up)) return grpc::Status::OK;
  EXPECT_TRUE(up.has_hello());
  {
    absl::MutexLock lock(&mutex_);
    stream_ = stream;
  }
  while (stream->Read(&up)) {
    absl::MutexLock lock(&mutex_);
    if (!up.has_actual()) continue;
    report_ = up.actual();
    has_report_ = true;
  }
  absl::MutexLock lock(&mutex_);
  if (stream_ == stream) stream_ = nullptr;
  return grpc::Status::OK;
}

}  // namespace megascale::versions
