#include "tests/versions/relay.h"

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/base/check.h"

namespace megascale::versions {
namespace {

// A recording is kept in the repository, and says nothing of the machine on which it was made.
void HideMachine(agent::v1::Hello* hello) {
  hello->set_hostname("machine");
  hello->set_machine_id("boot/machine");
  hello->set_instruction_set("avx2");
  hello->mutable_resources()->set_cores(2);
  hello->mutable_resources()->set_cores_source("cores of this machine");
  hello->mutable_resources()->set_memory_bytes(int64_t{8} << 30);
  hello->mutable_resources()->set_memory_source("MemTotal of this machine");
}

}  // namespace

Relay::Relay(const std::string& address, const std::string& driver)
    : driver_(agent::v1::AgentService::NewStub(
          grpc::CreateChannel(driver, grpc::InsecureChannelCredentials()))) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  MEGASCALE_CHECK(server_ != nullptr);
}

Relay::~Relay() { server_->Shutdown(std::chrono::system_clock::now()); }

void Relay::Add(v1::Entry entry) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entry.up().has_hello() && conversation_.protocol_version() == 0) {
    conversation_.set_protocol_version(entry.up().hello().protocol_version());
  }
  *conversation_.add_entries() = std::move(entry);
}

v1::Conversation Relay::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return conversation_;
}

grpc::Status Relay::Connect(grpc::ServerContext* agent_context,
                            grpc::ServerReaderWriter<Down, Up>* agent) {
  Up up;
  if (!agent->Read(&up)) return grpc::Status::OK;
  HideMachine(up.mutable_hello());
  const std::string node_id = up.hello().node_id();
  grpc::ClientContext context;
  const auto driver = driver_->Connect(&context);
  std::thread ups([&] {
    do {
      v1::Entry entry;
      entry.set_node_id(node_id);
      *entry.mutable_up() = up;
      Add(std::move(entry));
      if (!driver->Write(up)) break;
    } while (agent->Read(&up));
    driver->WritesDone();
  });
  Down down;
  while (driver->Read(&down)) {
    v1::Entry entry;
    entry.set_node_id(node_id);
    *entry.mutable_down() = down;
    Add(std::move(entry));
    agent->Write(down);
  }
  agent_context->TryCancel();  // the driver may have ended the stream
  ups.join();
  v1::Entry closed;
  closed.set_node_id(node_id);
  closed.set_closed(true);
  Add(std::move(closed));
  return driver->Finish();
}

}  // namespace megascale::versions
