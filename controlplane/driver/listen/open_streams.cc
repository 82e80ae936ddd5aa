#include "controlplane/driver/listen/open_streams.h"

#include <grpcpp/server_context.h>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"

namespace megascale::driver {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);

absl::Duration Now() { return base::RealClock().Monotonic(); }

}  // namespace

OpenStreams::OpenStreams() : thread_([this] { Watch(); }) {}

OpenStreams::~OpenStreams() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void OpenStreams::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (
      !wake_.wait_for(lock, absl::ToChronoMilliseconds(kLookInterval), [&] { return stopping_; })) {
    for (Stream* stream : streams_) {
      if (Now() - stream->writing_since_ > kWriteTimeout) stream->context_.TryCancel();
    }
  }
}

OpenStreams::Stream::Stream(OpenStreams* streams, grpc::ServerContext* context)
    : streams_(*streams), context_(*context) {
  const std::lock_guard<std::mutex> lock(streams_.mutex_);
  admitted_ = streams_.streams_.size() < static_cast<size_t>(kStreamsMax);
  if (admitted_) streams_.streams_.push_back(this);
}

OpenStreams::Stream::~Stream() {
  const std::lock_guard<std::mutex> lock(streams_.mutex_);
  streams_.streams_.remove(this);
}

absl::Status OpenStreams::Stream::status() const {
  if (admitted_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the driver streams to ", kStreamsMax,
      " clients, which is the maximum; end some `megascale watch` or `megascale logs`, or "
      "ask with `megascale status`"));
}

void OpenStreams::Stream::SetWriting(bool writing) {
  const std::lock_guard<std::mutex> lock(streams_.mutex_);
  writing_since_ = writing ? Now() : absl::InfiniteDuration();
}

}  // namespace megascale::driver
