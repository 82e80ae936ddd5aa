// Events and graphs of the emulated machine.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpu/emulator/machine.h"

namespace megascale::emulator {
namespace {

thread_local cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;

}  // namespace

// Events

Event* Machine::MakeEvent(int device, bool has_timing) {
  auto* const event = new Event{.device = device, .has_timing = has_timing};
  const Lock lock(mutex_);
  events_.insert(event);
  return event;
}

cudaError_t Machine::DestroyEvent(Event* event) {
  const Lock lock(mutex_);
  if (events_.erase(event) == 0) return cudaErrorInvalidResourceHandle;
  delete event;
  return cudaSuccess;
}

cudaError_t Machine::Record(Event* event, Stream* stream, bool is_external) {
  Lock lock(mutex_);
  if (!Knows(event) || !Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (event->device != stream->device) {
    LogRefusal("cudaEventRecord: event and stream are of different devices");
    return cudaErrorInvalidResourceHandle;
  }
  if (stream->capture == nullptr || is_external) {
    return IssueLocked(lock, stream, {.record = event});
  }
  if (!stream->capture->is_valid) return cudaErrorStreamCaptureInvalidated;
  event->capture = stream->capture;
  event->captured_on = stream;
  return cudaSuccess;
}

cudaError_t Machine::Wait(Stream* stream, Event* event, bool is_external) {
  Lock lock(mutex_);
  if (!Knows(event) || !Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) {
    if (!event->capture->is_valid) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->capture->joined[stream] = false;
    }
    if (stream->capture != event->capture) return cudaErrorStreamCaptureMerge;
    if (event->captured_on != stream->capture->origin && event->captured_on != stream) {
      stream->capture->joined[event->captured_on] = true;
    }
    return cudaSuccess;
  }
  if (stream->capture != nullptr) {
    LogRefusal(is_external ? "waits for external events in graphs are not emulated"
                           : "cudaStreamWaitEvent: a captured stream waits for work outside");
    stream->capture->is_valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  if (event->last == nullptr) return cudaSuccess;
  return PushLocked(lock, stream, {.kind = Stream::Kind::kWait, .mark = event->last});
}

cudaError_t Machine::Synchronize(Event* event) {
  Lock lock(mutex_);
  if (!Knows(event)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) return cudaErrorCapturedEvent;
  if (const cudaError_t error = CheckMayBlockLocked(); error != cudaSuccess) return error;
  const int device = event->device;
  const std::shared_ptr<Mark> mark = event->last;
  if (mark != nullptr) changed_.wait(lock, [&] { return mark->is_reached; });
  return errors_[static_cast<size_t>(device)];
}

cudaError_t Machine::Query(Event* event) {
  const Lock lock(mutex_);
  if (!Knows(event)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) return cudaErrorCapturedEvent;
  if (const cudaError_t error = CheckMayBlockLocked(); error != cudaSuccess) return error;
  if (event->last != nullptr && !event->last->is_reached) return cudaErrorNotReady;
  return errors_[static_cast<size_t>(event->device)];
}

cudaError_t Machine::Elapsed(float* milliseconds, Event* start, Event* end) {
  const Lock lock(mutex_);
  for (const Event* event : {start, end}) {
    if (!Knows(event) || !event->has_timing || event->last == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!event->last->is_reached) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(
      static_cast<double>(end->last->nanoseconds - start->last->nanoseconds) / 1e6);
  return cudaSuccess;
}

// Graphs

cudaStreamCaptureMode Machine::ExchangeCaptureMode(cudaStreamCaptureMode mode) {
  return std::exchange(thread_capture_mode, mode);
}

cudaError_t Machine::CheckMayBlock() {
  const Lock lock(mutex_);
  return CheckMayBlockLocked();
}

cudaError_t Machine::CheckMayBlockLocked() {
  if (thread_capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool is_allowed = true;
  for (Capture* capture : captures_) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool is_global = capture->mode == cudaStreamCaptureModeGlobal &&
                           thread_capture_mode == cudaStreamCaptureModeGlobal;
    if (!is_global && !(is_own && capture->mode != cudaStreamCaptureModeRelaxed)) continue;
    capture->is_valid = false;
    is_allowed = false;
  }
  if (is_allowed) return cudaSuccess;
  LogRefusal("a call that may wait or allocate, while a stream is captured");
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Machine::BeginCapture(Stream* stream, cudaStreamCaptureMode mode) {
  const Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  stream->capture =
      new Capture{.origin = stream, .mode = mode, .thread = std::this_thread::get_id()};
  captures_.insert(stream->capture);
  return cudaSuccess;
}

cudaError_t Machine::EndCapture(Stream* stream, Graph** graph) {
  *graph = nullptr;
  const Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  Capture* const capture = stream->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->thread != std::this_thread::get_id() &&
      capture->mode != cudaStreamCaptureModeRelaxed) {
    return cudaErrorStreamCaptureWrongThread;
  }
  bool is_joined = true;
  for (const auto& [other, was_waited_for] : capture->joined) {
    other->capture = nullptr;
    is_joined = is_joined && was_waited_for;
  }
  stream->capture = nullptr;
  for (Event* event : events_) {
    if (event->capture == capture) event->capture = nullptr;
  }
  captures_.erase(capture);
  const std::unique_ptr<Capture> ended(capture);
  if (!ended->is_valid) return cudaErrorStreamCaptureInvalidated;
  if (!is_joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph{.nodes = std::move(ended->nodes)};
  graphs_.insert(*graph);
  return cudaSuccess;
}

cudaError_t Machine::CaptureStatus(Stream* stream, cudaStreamCaptureStatus* status) {
  const Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  *status = stream->capture == nullptr  ? cudaStreamCaptureStatusNone
            : stream->capture->is_valid ? cudaStreamCaptureStatusActive
                                        : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t Machine::Instantiate(Graph* graph, Graph** executable) {
  const Lock lock(mutex_);
  if (!Knows(graph)) return cudaErrorInvalidValue;
  *executable = new Graph(*graph);
  calls_.graph_nodes += static_cast<int64_t>(graph->nodes.size());
  graphs_.insert(*executable);
  return cudaSuccess;
}

cudaError_t Machine::LaunchGraph(Graph* executable, Stream* stream) {
  Lock lock(mutex_);
  if (!Knows(executable)) return cudaErrorInvalidValue;
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) {
    LogRefusal("graphs in graphs are not emulated");
    return cudaErrorNotSupported;
  }
  for (const Node& node : executable->nodes) {
    if (const cudaError_t error = IssueLocked(lock, stream, node); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t Machine::DestroyGraph(Graph* graph) {
  const Lock lock(mutex_);
  if (graphs_.erase(graph) == 0) return cudaErrorInvalidValue;
  delete graph;
  return cudaSuccess;
}

}  // namespace megascale::emulator
