// A relay between agents and their driver that writes down what both say. It speaks the agents'
// real service to both; fields that it does not know pass through it.
// Threads: Add and Take from any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>

#include "proto/agent.grpc.pb.h"
#include "tests/versions/conversation.pb.h"

namespace megascale::versions {

class Relay : public agent::v1::AgentService::Service {
 public:
  // Listens at `address` for agents, and connects to the driver at `driver` for each.
  Relay(const std::string& address, const std::string& driver);
  ~Relay() override;

  // Notes what else happened.
  void Add(v1::Entry entry);
  // Returns all entries so far.
  v1::Conversation Take();

 private:
  using Up = agent::v1::AgentUp;
  using Down = agent::v1::AgentDown;
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<Down, Up>* agent) override;

  std::unique_ptr<agent::v1::AgentService::Stub> driver_;
  std::mutex mutex_;
  v1::Conversation conversation_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace megascale::versions
