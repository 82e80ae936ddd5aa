#include "gpu/graphs/stream_work.h"

#include <cstring>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::gpu {

namespace {

constexpr size_t kReservedBytes = size_t{64} << 10;  // for what is added between two issues

}  // namespace

StreamWork::StreamWork(Options options) : options_(std::move(options)) {
  MEGASCALE_CHECK(options_.cuda != nullptr && options_.on_error);
  added_.reserve(kReservedBytes);
}

StreamWork::~StreamWork() {
  for (const auto& [work, graph] : graphs_) (void)options_.cuda->cudaGraphExecDestroy(graph);
}

char* StreamWork::Grow(size_t bytes) {
  const size_t place = added_.size();
  added_.resize(place + bytes);
  return added_.data() + place;
}

void StreamWork::AddBytes(Call call, absl::string_view arguments, absl::string_view more) {
  if (has_failed_) return;
  const Header header = {call, RoundUp(arguments.size()) + RoundUp(more.size())};
  static_assert(sizeof(Header) % kAlignment == 0);
  char* const place = Grow(sizeof(header) + header.bytes);
  MEGASCALE_CHECK(reinterpret_cast<uintptr_t>(place) % kAlignment == 0);
  std::memcpy(place, &header, sizeof(header));
  std::memcpy(place + sizeof(header), arguments.data(), arguments.size());
  if (!more.empty()) {
    std::memcpy(place + sizeof(header) + RoundUp(arguments.size()), more.data(), more.size());
  }
  if (++num_added_ == (options_.uses_graphs ? kLaunchesMax : 1)) Issue();
}

void StreamWork::Issue() {
  if (num_added_ == 0) return;
  const absl::Status status = Launch();
  added_.clear();
  num_added_ = 0;
  if (status.ok()) return;
  has_failed_ = true;
  options_.on_error(status);
}

absl::Status StreamWork::Launch() {
  if (!options_.uses_graphs || has_no_graphs_ || num_added_ < kLaunchesMin) {
    return Play();
  }
  auto graph = graphs_.find(absl::string_view(added_));
  if (graph == graphs_.end()) {
    const size_t digest = absl::Hash<absl::string_view>()(added_);
    const bool is_new = !digests_.contains(digest);
    if (is_new || graphs_.size() == kGraphsMax) {
      if (digests_.size() == kDigestsMax) digests_.clear();
      digests_.insert(digest);
      return Play();
    }
    const absl::StatusOr<cudaGraphExec_t> captured = Capture();
    if (!captured.ok()) return PlayAfter(captured.status());
    graph = graphs_.emplace(added_, *captured).first;
  }
  const absl::Status launched =
      MEGASCALE_CUDA_CALL(*options_.cuda, cudaGraphLaunch(graph->second, options_.stream));
  return launched.ok() ? launched : PlayAfter(launched);
}

// Nothing of the work has been launched. Graphs take device memory, which may be short; an error of
// the work itself, or of the device, comes again.
absl::Status StreamWork::PlayAfter(const absl::Status& graph_failure) {
  has_no_graphs_ = true;
  base::LogWarning(absl::StrCat("goes on without CUDA graphs: ", graph_failure.message()));
  return Play();
}

absl::Status StreamWork::Play() const {
  absl::string_view left = added_;
  while (!left.empty()) {
    Header header;
    std::memcpy(&header, left.data(), sizeof(header));
    RETURN_IF_ERROR(header.call(left.data() + sizeof(header), options_.stream));
    left.remove_prefix(sizeof(header) + header.bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<cudaGraphExec_t> StreamWork::Capture() const {
  const cuda::CudaApi& cuda = *options_.cuda;
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(
      cuda, cudaStreamBeginCapture(options_.stream, cudaStreamCaptureModeThreadLocal)));
  const absl::Status played = Play();
  cudaGraph_t graph = nullptr;
  // Also after an error: the stream would stay in the capture.
  const absl::Status ended =
      MEGASCALE_CUDA_CALL(cuda, cudaStreamEndCapture(options_.stream, &graph));
  cudaGraphExec_t executable = nullptr;
  absl::Status status = played.ok() ? ended : played;
  if (status.ok()) {
    status = MEGASCALE_CUDA_CALL(cuda, cudaGraphInstantiate(&executable, graph, 0));
  }
  if (graph != nullptr) (void)cuda.cudaGraphDestroy(graph);
  if (status.ok()) return executable;
  return base::Annotate(status, "capture of a CUDA graph");
}

void StreamWork::Finish() {
  // Errors are of no interest to who frees; the stream reports them.
  (void)options_.cuda->cudaSetDevice(options_.device);
  Issue();
  (void)options_.cuda->cudaStreamSynchronize(options_.stream);
}

}  // namespace megascale::gpu
