#include "controlplane/driver/listen/steady_poller.h"

#include <grpcpp/completion_queue.h>

#include <thread>

namespace megascale::driver {

// A thread that waits for events of a queue reads from all sockets meanwhile. This queue gets none.
struct SteadyPoller::Impl {
  grpc::CompletionQueue queue;
  std::thread thread;
};

SteadyPoller::SteadyPoller() : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([queue = &impl_->queue] {
    void* tag = nullptr;
    bool ok = false;
    while (queue->Next(&tag, &ok)) {
    }
  });
}

SteadyPoller::~SteadyPoller() {
  impl_->queue.Shutdown();
  impl_->thread.join();
}

}  // namespace megascale::driver
