// The emulated machine behind EmulatedCuda(): queues of streams, events, graphs, and the thread
// that does the devices' work. Private to this folder; other folders use emulated_cuda.h.
//
// Errors are returned as CUDA returns them. Calls whose behaviour CUDA leaves undefined, and calls
// that our programs never need, are refused with a line on stderr.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gpu/emulator/block_executor.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/emulator/emulated_memory.h"

namespace megascale::emulator {

// The most shared memory of a block, as on Hopper.
inline constexpr int kSharedBytesMax = 227 << 10;

// One record of an event in a stream.
struct Mark {
  bool is_reached = false;
  int64_t nanoseconds = 0;
};

struct Event;

// Work as it is issued, or kept in a graph. Exactly one of the first three members is set.
struct Node {
  Work work = nullptr;
  std::function<void(Done)> start = nullptr;
  Event* record = nullptr;    // in a graph: each launch records the event
  bool is_host_copy = false;  // `work` copies between host and device
};

struct Graph {
  std::vector<Node> nodes = {};  // in the order of their capture, in which a launch runs them
};

struct Stream;

struct Capture {
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = {};
  bool is_valid = true;
  std::vector<Node> nodes = {};
  // Streams that joined by waiting for an event; true: another stream has waited for the joined
  // stream's last work.
  std::map<Stream*, bool> joined = {};
};

struct Event {
  int device = 0;
  bool has_timing = true;
  std::shared_ptr<Mark> last = nullptr;  // null: never recorded
  // Set by a record in a stream that is captured.
  Capture* capture = nullptr;
  Stream* captured_on = nullptr;
};

struct Stream {
  enum class Kind : uint8_t { kWork, kStart, kRecord, kWait };
  struct Entry {
    Kind kind = Kind::kWork;
    Node node = {};
    std::shared_ptr<Mark> mark = nullptr;
  };

  int device = 0;
  std::deque<Entry> queue = {};
  bool is_busy = false;  // the first entry runs
  uint64_t num_issued = 0;
  uint64_t num_done = 0;
  Capture* capture = nullptr;

  bool IsAtHostCopy() const { return queue.front().node.is_host_copy; }
  bool CanRun() const {
    if (queue.empty() || is_busy) return false;
    return queue.front().kind != Kind::kWait || queue.front().mark->is_reached;
  }
};

class Machine {
 public:
  explicit Machine(const EmulatedOptions& options);
  ~Machine();

  const EmulatedOptions& options() const { return options_; }
  EmulatedMemory& memory() { return memory_; }
  int64_t num_work() const;
  // Numbers of the host's calls since the machine was made.
  struct Calls {
    std::atomic<int64_t> allocations = 0;     // of device or pinned memory
    std::atomic<int64_t> launches = 0;        // of kernels, also while they are captured
    std::atomic<int64_t> instantiations = 0;  // of graphs
    std::atomic<int64_t> graph_nodes = 0;     // in graphs that were instantiated
    std::atomic<int64_t> graph_launches = 0;
  };
  Calls& calls() { return calls_; }
  // Returns the error with which a device has failed, or cudaSuccess.
  cudaError_t ErrorOf(int device) const;

  // Memory. `device`: the current device of the calling thread. Free and FreeHost wait for the
  // device's work.
  cudaError_t Allocate(int device, void** address, size_t bytes);
  cudaError_t Free(int device, void* address);
  cudaError_t FreeHost(int device, void* address);
  cudaError_t Copy(void* to, const void* from, size_t bytes, Stream* stream);
  cudaError_t Fill(void* to, int value, size_t bytes, Stream* stream);

  Stream* MakeStream(int device);
  cudaError_t DestroyStream(Stream* stream);
  cudaError_t Synchronize(Stream* stream);
  cudaError_t Query(Stream* stream);
  cudaError_t SynchronizeDevice(int device);
  // Queues a node, or adds it to the graph that is being captured.
  cudaError_t Issue(Stream* stream, Node node);
  // A kernel's launch. `device`: as for Allocate.
  cudaError_t Launch(int device, const cudaLaunchConfig_t& config, const Kernel* kernel,
                     const void* params);
  cudaError_t AllowSharedMemory(int device, const Kernel* kernel, int bytes);
  cudaError_t FindHandle(const char* name, const Kernel** kernel);
  bool IsKernel(const void* handle) const;

  Event* MakeEvent(int device, bool has_timing);
  cudaError_t DestroyEvent(Event* event);
  cudaError_t Record(Event* event, Stream* stream, bool is_external);
  cudaError_t Wait(Stream* stream, Event* event, bool is_external);
  cudaError_t Synchronize(Event* event);
  cudaError_t Query(Event* event);
  cudaError_t Elapsed(float* milliseconds, Event* start, Event* end);

  cudaError_t BeginCapture(Stream* stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(Stream* stream, Graph** graph);
  cudaError_t CaptureStatus(Stream* stream, cudaStreamCaptureStatus* status);
  cudaError_t Instantiate(Graph* graph, Graph** executable);
  cudaError_t LaunchGraph(Graph* executable, Stream* stream);
  cudaError_t DestroyGraph(Graph* graph);
  // Sets the mode of the calling thread and returns the previous mode.
  static cudaStreamCaptureMode ExchangeCaptureMode(cudaStreamCaptureMode mode);

  // Refuses a call that may not be made while a stream is captured; the refusal ends the capture.
  cudaError_t CheckMayBlock();

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool Knows(const Stream* stream) const {
    return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
  }
  bool Knows(const Event* event) const { return events_.count(const_cast<Event*>(event)) > 0; }
  bool Knows(const Graph* graph) const { return graphs_.count(const_cast<Graph*>(graph)) > 0; }
  cudaError_t CheckMayBlockLocked();
  cudaError_t PushLocked(Lock& lock, Stream* stream, Stream::Entry entry);
  cudaError_t IssueLocked(Lock& lock, Stream* stream, Node node);
  cudaError_t IssueChecked(Stream* stream, const char* what, Node node);
  void WaitUntilIdle(Lock& lock, int device);
  // Waits for the work for which a thread with the current device `device` must wait when it frees
  // memory.
  void AwaitFree(int device);

  // The machine's thread.
  void Run();
  Stream* Pick();
  Stream* PickIf(absl::FunctionRef<bool(const Stream&)> may_run);
  void RunFirst(Lock& lock, Stream* stream);
  void RunWork(Lock& lock, Stream* stream, const Node& node);
  void EndFirst(Stream* stream);
  void Fail(int device, const absl::Status& status);
  int64_t Now();

  const EmulatedOptions options_;
  Calls calls_;
  EmulatedMemory memory_;
  mutable std::mutex mutex_;         // guards all below
  std::condition_variable changed_;  // anything below
  std::vector<Stream*> streams_;
  std::set<Event*> events_;
  std::set<Graph*> graphs_;
  std::set<Capture*> captures_;
  std::set<const Kernel*> kernels_;                            // for which a handle was given out
  std::set<std::pair<int, const Kernel*>> loaded_;             // that a device has launched
  std::map<std::pair<int, const Kernel*>, int> shared_bytes_;  // that a launch may ask for
  std::vector<cudaError_t> errors_;                            // of devices that have failed
  std::mt19937_64 random_;
  int64_t num_work_ = 0;
  int64_t last_time_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

// Writes to stderr why a call was refused, or why a device failed.
void LogRefusal(absl::string_view what);

}  // namespace megascale::emulator
