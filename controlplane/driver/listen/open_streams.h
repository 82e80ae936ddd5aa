// The streams of watches, logs and spans to clients. Each stream occupies a thread and holds one
// message of at most about 1 MiB (the length of a job's file names and the number of kept spans are
// bounded), so the number of streams is bounded. A client that stops reading is cut off, because a
// write to it would block for ever. Threads: any; it has a thread of its own.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class ServerContext;
}

namespace megascale::driver {

class OpenStreams {
 public:
  static constexpr int kStreamsMax = 512;
  // A write that takes longer ends the stream.
  static constexpr absl::Duration kWriteTimeout = absl::Seconds(30);

  OpenStreams();
  ~OpenStreams();

  // One stream, for as long as its handler runs.
  class Stream {
   public:
    Stream(OpenStreams* streams, grpc::ServerContext* context);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Errors: ResourceExhausted - kStreamsMax streams are already open.
    absl::Status status() const;

    // Runs `write`, a write to the client. Returns false when the client is gone or was cut off.
    template <typename Write>
    bool Guard(Write write) {
      SetWriting(true);
      const bool written = write();
      SetWriting(false);
      return written;
    }

   private:
    friend class OpenStreams;
    void SetWriting(bool writing);

    OpenStreams& streams_;
    grpc::ServerContext& context_;
    bool admitted_ = false;
    absl::Duration writing_since_ = absl::InfiniteDuration();  // monotonic
  };

 private:
  void Watch();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Stream*> streams_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace megascale::driver
