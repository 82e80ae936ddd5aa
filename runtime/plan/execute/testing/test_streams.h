// Shared by tests of the executor: real streams, and a counter of finished steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/execute/executor.h"
#include "runtime/stream/host_stream.h"
#include "runtime/stream/stream.h"

namespace megascale::plan {

inline constexpr auto kDeadline = std::chrono::seconds(30);

class Streams {
 public:
  Streams() {
    for (int i = 0; i < kNumStreamKinds; ++i) {
      const auto kind = static_cast<StreamKind>(i);
      owned_.push_back(stream::HostStream::Create(std::string(Name(kind))).value());
      by_kind_[kind] = owned_.back().get();
    }
  }
  const std::map<StreamKind, stream::Stream*>& by_kind() const { return by_kind_; }

 private:
  std::vector<std::unique_ptr<stream::Stream>> owned_;
  std::map<StreamKind, stream::Stream*> by_kind_;
};

inline std::map<OpKind, Handler> ForAll(const Handler& handler) {
  std::map<OpKind, Handler> handlers;
  for (const Operation& operation : AllOperations()) handlers[operation.kind] = handler;
  return handlers;
}

// Collects the ends of steps; one object serves any number of them.
class Finish {
 public:
  // For ExecutorOptions::step_ended; this object must outlive the executor.
  std::function<void(const StepContext&, absl::Status)> StepEnded() {
    return [this](const StepContext&, absl::Status status) {
      std::lock_guard<std::mutex> lock(mutex_);
      ++num_calls_;
      if (!status.ok()) last_error_ = std::move(status);
      called_.notify_all();
    };
  }
  // Waits until `count` steps have ended since the start.
  void Await(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (called_.wait_for(lock, kDeadline, [&] { return num_calls_ >= count; })) return;
    std::fprintf(stderr, "%d steps ended, expected %d\n", num_calls_, count);
    std::abort();  // The test's streams would block for ever.
  }
  int num_calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_calls_;
  }
  absl::Status last_error() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable called_;
  int num_calls_ = 0;
  absl::Status last_error_;
};

}  // namespace megascale::plan
