// The driver's side of a recorded conversation, behind the agents' real service.
// Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "proto/agent.grpc.pb.h"

namespace megascale::versions {

class PlayedDriver : public agent::v1::AgentService::Service {
 public:
  explicit PlayedDriver(const std::string& address);
  ~PlayedDriver() override;

  // Waits for the greeting of the next agent; false: none came.
  bool AwaitHello();
  // Sends a message to the agent that greeted last.
  void Send(const agent::v1::AgentDown& down);
  // Waits for the next report after those that were waited for, and returns it.
  agent::v1::ActualState AwaitReport();

 private:
  using Up = agent::v1::AgentUp;
  using Down = agent::v1::AgentDown;
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<Down, Up>* stream) override;

  absl::Mutex mutex_;
  grpc::ServerReaderWriter<Down, Up>* stream_ = nullptr;
  bool has_report_ = false;  // not waited for yet
  agent::v1::ActualState report_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace megascale::versions
