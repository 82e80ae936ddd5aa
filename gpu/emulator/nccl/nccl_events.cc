#include "gpu/emulator/nccl/nccl_events.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>

namespace megascale::emulator {
namespace {

using cuda::ProfilerState;

const cuda::ProfilerTableV5* FindPlugin() {
  const char* const file = ::getenv("NCCL_PROFILER_PLUGIN");
  if (file == nullptr || ::strcasecmp(file, "STATIC_PLUGIN") != 0) return nullptr;
  void* const program = ::dlopen(nullptr, RTLD_NOW | RTLD_LOCAL);
  return static_cast<const cuda::ProfilerTableV5*>(::dlsym(program, "ncclProfiler_v5"));
}

}  // namespace

NcclEvents::NcclEvents(const char* name, int rank, int size) : plugin_(FindPlugin()), rank_(rank) {
  int events = 0;
  if (plugin_ == nullptr) return;
  const ncclResult_t result =
      plugin_->init(&context_, /*id=*/1, &events, name, /*num_nodes=*/size, size, rank, nullptr);
  if (result != ncclSuccess || events == 0) plugin_ = nullptr;
}

NcclEvents::~NcclEvents() {
  if (plugin_ != nullptr) plugin_->finalize(context_);
}

void* NcclEvents::Launched(bool is_message) {
  if (plugin_ == nullptr) return nullptr;
  cuda::ProfilerEvent event = {};
  event.type = is_message ? cuda::profiler_event::kMessage : cuda::profiler_event::kCollective;
  event.rank = rank_;
  void* handle = nullptr;
  plugin_->start_event(context_, &handle, &event);
  plugin_->stop_event(handle);  // the call was launched; it has not ended
  return handle;
}

NcclEvents::Transport NcclEvents::Start(void* call, const TransferSize& size) {
  Transport transport = {.is_send = size.is_send, .bytes = size.bytes};
  if (plugin_ == nullptr || call == nullptr || size.bytes == 0) return transport;
  cuda::ProfilerEvent event = {};
  event.type = cuda::profiler_event::kTransport;
  event.parent = call;
  event.rank = rank_;
  event.transport.pid = ::getpid();
  event.transport.peer = size.peer;
  event.transport.num_steps = static_cast<int>((size.bytes + kStepBytes - 1) / kStepBytes);
  event.transport.step_bytes = static_cast<int>(kStepBytes);
  event.transport.is_send = size.is_send ? 1 : 0;
  plugin_->start_event(context_, &transport.event, &event);
  if (transport.event != nullptr) StartStep(&transport);
  return transport;
}

void NcclEvents::StartStep(Transport* transport) {
  cuda::ProfilerEvent event = {};
  event.type = cuda::profiler_event::kStep;
  event.parent = transport->event;
  event.rank = rank_;
  event.step.step = static_cast<int>(transport->step_begin / kStepBytes);
  plugin_->start_event(context_, &transport->step, &event);
  if (transport->is_send) {
    Record(transport->step, ProfilerState::kSendWaitsForGpu, 0);
    Record(transport->step, ProfilerState::kSendWaitsForPeer, 0);
  } else {
    Record(transport->step, ProfilerState::kReceivePosted, 0);
  }
}

void NcclEvents::Record(void* step, ProfilerState state, size_t bytes) const {
  cuda::ProfilerStateArgs args = {.bytes = bytes};
  plugin_->record_state(step, static_cast<int>(state), &args);
}

void NcclEvents::Moved(size_t bytes, Transport* transport) {
  while (transport->event != nullptr) {
    const size_t length = std::min(kStepBytes, transport->bytes - transport->step_begin);
    if (bytes < transport->step_begin + length) return;
    Record(transport->step,
           transport->is_send ? ProfilerState::kSendPosted : ProfilerState::kReceived, length);
    if (!transport->is_send) Record(transport->step, ProfilerState::kReceiveWaitsForGpu, 0);
    plugin_->stop_event(transport->step);
    transport->step_begin += length;
    if (transport->step_begin < transport->bytes) {
      StartStep(transport);
      continue;
    }
    plugin_->stop_event(transport->event);
    transport->event = nullptr;
  }
}

}  // namespace megascale::emulator
