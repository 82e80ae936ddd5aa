// The stream of one agent, controlled by the test.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "controlplane/driver/core/testing/test_events.h"
#include "proto/agent.grpc.pb.h"

namespace megascale::driver {

// The time by which a call of a test has ended.
inline std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + std::chrono::seconds(30);
}

class FakeAgentStream {
 public:
  FakeAgentStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& incarnation,
                  const std::string& node_id = "n0", int slots = 1)
      : stub_(megascale::agent::v1::AgentService::NewStub(channel)), incarnation_(incarnation) {
    context_.set_deadline(Deadline());
    stream_ = stub_->Connect(&context_);
    megascale::agent::v1::AgentUp up;
    *up.mutable_hello() = HelloOf(node_id, incarnation, slots);
    EXPECT_TRUE(stream_->Write(up));
  }

  // Reports and returns the next desired state for which `wanted` is true.
  template <typename Predicate>
  megascale::agent::v1::DesiredState Await(const Predicate& wanted) {
    megascale::agent::v1::AgentDown down;
    while (stream_->Read(&down)) {
      if (down.has_desired()) version_ = down.desired().version();
      if (down.has_desired() && wanted(down.desired())) return down.desired();
    }
    ADD_FAILURE() << "the stream ended: " << stream_->Finish().error_message();
    return {};
  }
  megascale::agent::v1::DesiredState AwaitPhase(megascale::agent::v1::DesiredJob::Phase phase) {
    return Await([phase](const megascale::agent::v1::DesiredState& desired) {
      return desired.jobs_size() == 1 && desired.jobs(0).phase() == phase;
    });
  }
  megascale::agent::v1::AgentDown Read() {
    megascale::agent::v1::AgentDown down;
    EXPECT_TRUE(stream_->Read(&down));
    return down;
  }
  bool TryRead(megascale::agent::v1::AgentDown* down) { return stream_->Read(down); }
  void Write(const megascale::agent::v1::AgentUp& up) { EXPECT_TRUE(TryWrite(up)); }
  bool TryWrite(const megascale::agent::v1::AgentUp& up) { return stream_->Write(up); }
  void Report(const megascale::agent::v1::ActualJob& job) {
    megascale::agent::v1::AgentUp up;
    up.mutable_actual()->set_incarnation(incarnation_);
    up.mutable_actual()->set_applied_version(version_);
    *up.mutable_actual()->add_jobs() = job;
    Write(up);
  }
  // An empty report; false once the stream has ended.
  bool TryReport() {
    megascale::agent::v1::AgentUp up;
    up.mutable_actual()->set_incarnation(incarnation_);
    return stream_->Write(up);
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    megascale::agent::v1::AgentDown down;
    while (stream_->Read(&down)) {
    }
    return stream_->Finish();
  }

 private:
  std::unique_ptr<megascale::agent::v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<megascale::agent::v1::AgentUp, megascale::agent::v1::AgentDown>>
      stream_;
  const std::string incarnation_;
  int64_t version_ = 0;
};

}  // namespace megascale::driver
