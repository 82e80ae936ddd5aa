// The work that operators give to a CUDA stream. It is held back until something else needs the
// stream (an exchange, a copy, an event), and then launched as one CUDA graph. That takes less time
// on host and device than a launch for each kernel.
//
//   StreamWork work({.cuda = cuda, .stream = stream, .device = 0, .uses_graphs = true,
//                    .on_error = report});
//   work.Add(&FillZero, FillZeroArguments{cuda, gradients, bytes});  // many of these
//   work.Issue();                                                    // before an exchange
//
// A graph's key is its content: the functions that were added since the last Issue, and every byte
// of their arguments. Everything that decides an address or a number (the chunk, the slot, the
// bucket, the buffer) is in these bytes. So work that differs anywhere has another graph, and a
// graph never runs with arguments of an earlier step. Values that change from step to step at the
// same address, such as the learning rate, are in device memory.
//
// The first time, work is launched without a graph, because libraries then load and allocate what
// they need, which a capture forbids. The second time, it is captured and launched. The capture is
// in thread-local mode, so that it does not restrict other threads. From the third time on, nothing
// is allocated. If a graph cannot be made, for example for lack of memory, the stream's work is
// launched without graphs from then on.
//
// Threads: the stream's thread; Finish and the destructor on any thread, while no other thread uses
// the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu/cuda/cuda_api.h"
#include "runtime/layout/cuda_memory.h"

namespace megascale::gpu {

class StreamWork {
 public:
  // A sequence of fewer than kLaunchesMin calls gains nothing from a graph. A sequence of more than
  // kLaunchesMax becomes several graphs, so that the device can begin before the host has added the
  // whole sequence.
  static constexpr int kLaunchesMin = 4;
  static constexpr int kLaunchesMax = layout::kCudaGraphLaunchesMax;
  // Graphs take device memory. After this many graphs, other work is launched without a graph.
  static constexpr size_t kGraphsMax = layout::kCudaGraphsMax;

  struct Options {
    const cuda::CudaApi* cuda = nullptr;  // outlives the object, as the stream does
    cudaStream_t stream = nullptr;
    int device = 0;            // the stream's
    bool uses_graphs = false;  // false: each call is launched when it is added
    // Receives the first error; after it all later work is dropped.
    std::function<void(const absl::Status& status)> on_error = nullptr;
  };
  explicit StreamWork(Options options);
  // Destroys the graphs; drops work that was not issued.
  ~StreamWork();
  StreamWork(const StreamWork&) = delete;
  StreamWork& operator=(const StreamWork&) = delete;

  // Puts work on `stream`: kernels, copies, fills or calls of a library. `arguments` alone decide
  // the work, so two calls with equal arguments put the same work on the stream. Nothing that they
  // need may be freed before Finish, or before this object is destroyed.
  using Call = absl::Status (*)(const void* arguments, cudaStream_t stream);

  // Adds a call. Copies `arguments`; equal arguments have equal bytes.
  template <typename Arguments>
  void Add(Call call, const Arguments& arguments) {
    AddWith(call, arguments, {});
  }
  // The same with more bytes, which `call` finds at MoreOf(arguments). Requires: equal arguments
  // have equal bytes there, too.
  template <typename Arguments>
  void AddWith(Call call, const Arguments& arguments, absl::string_view more) {
    static_assert(std::has_unique_object_representations_v<Arguments>);
    AddBytes(call, {reinterpret_cast<const char*>(&arguments), sizeof(arguments)}, more);
  }
  template <typename Arguments>
  static const void* MoreOf(const Arguments& arguments) {
    return reinterpret_cast<const char*>(&arguments) + RoundUp(sizeof(arguments));
  }

  // Launches what was added. Call it before anything else is put on the stream, or waits for the
  // stream.
  void Issue();

  // Issues the work and waits for the stream. Call it before something that the work uses is freed.
  void Finish();

 private:
  static constexpr size_t kAlignment = 16;
  static constexpr size_t kDigestsMax = 4096;
  static constexpr size_t RoundUp(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Precedes the arguments of a call in `added_`.
  struct Header {
    Call call;
    size_t bytes;  // of the arguments, rounded up
  };

  void AddBytes(Call call, absl::string_view arguments, absl::string_view more);
  // Appends `bytes` zeros to `added_`, and returns their address.
  char* Grow(size_t bytes);
  absl::Status Launch();
  absl::Status PlayAfter(const absl::Status& graph_failure);
  // Makes the calls one after the other.
  absl::Status Play() const;
  absl::StatusOr<cudaGraphExec_t> Capture() const;

  const Options options_;
  std::string added_;  // headers and arguments, each at a multiple of kAlignment
  int num_added_ = 0;
  bool has_failed_ = false;
  bool has_no_graphs_ = false;           // a graph could not be made; no other is tried
  absl::flat_hash_set<size_t> digests_;  // of work that was launched without a graph
  absl::flat_hash_map<std::string, cudaGraphExec_t> graphs_;  // by their content
};

}  // namespace megascale::gpu
