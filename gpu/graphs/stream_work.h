// The work that operators give to a CUDA stream. It is held back until something else needs the
// stream (an exchange, a copy, an event), and then launched as one CUDA graph: that costs host and
// device less than a launch for each kernel.
//
//   StreamWork work({.cuda = cuda, .stream = stream, .device = 0, .uses_graphs = true,
//                    .on_error = report});
//   work.Add(&FillZero, FillZeroArguments{cuda, gradients, bytes});  // many of these
//   work.Issue();                                                    // before an exchange
//
// A graph is found by what is in it: the functions that were added since the last Issue, and every
// byte of their arguments. Whatever decides an address or a number (the chunk, the slot, the
// bucket, the buffer) is in these bytes, so work that differs anywhere has another graph, and a
// graph never runs with arguments of an earlier step. What changes from step to step while its
// address stays, such as the learning rate, is in device memory.
//
// The first time, work is launched without a graph: libraries then load and allocate what they
// need, which a capture forbids. The second time it is captured, in thread-local mode, so that
// other threads may do as they like, and launched. From the third time on nothing is allocated. If
// a graph cannot be made, for lack of memory, say, the stream's work is launched without graphs
// from then on.
//
// Threads: the stream's; Finish and the destructor on any, while no other thread uses the object.
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
  // A sequence of fewer launches gains nothing from a graph. One of more becomes several graphs, so
  // that the device does not wait until the host has come to the end of it.
  static constexpr int kLaunchesMin = 4;
  static constexpr int kLaunchesMax = layout::kCudaGraphLaunchesMax;
  // Graphs take device memory. Work beyond so many is launched without them.
  static constexpr size_t kGraphsMax = layout::kCudaGraphsMax;

  struct Options {
    const cuda::CudaApi* cuda = nullptr;  // outlives the object, as the stream does
    cudaStream_t stream = nullptr;
    int device = 0;            // the stream's
    bool uses_graphs = false;  // false: each call is launched when it is added
    // Receives the first error; all later work is dropped then.
    std::function<void(const absl::Status& status)> on_error = nullptr;
  };
  explicit StreamWork(Options options);
  // Destroys the graphs; drops what was not issued.
  ~StreamWork();
  StreamWork(const StreamWork&) = delete;
  StreamWork& operator=(const StreamWork&) = delete;

  // Puts work on `stream`: kernels, copies, fills or calls of a library, which `arguments` alone
  // decide. Two calls with equal arguments put the same work there, and nothing that they need is
  // freed before the object, or before Finish.
  using Call = absl::Status (*)(const void* arguments, cudaStream_t stream);

  // Adds a call. `Arguments` are copied; equal ones have equal bytes.
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

  // Launches what was added. Called before anything else is put on the stream, or waits for it.
  void Issue();

  // Issues, and waits for the stream: before something is freed that the work uses.
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
  // Makes room for `bytes` zeros behind the work, and returns their place.
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
  bool has_no_graphs_ = false;           // one could not be made: no other is tried
  absl::flat_hash_set<size_t> digests_;  // of work that was launched without a graph
  absl::flat_hash_map<std::string, cudaGraphExec_t> graphs_;  // by what is in them
};

}  // namespace megascale::gpu
