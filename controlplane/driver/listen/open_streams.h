// The watches, logs and spans that are being streamed to clients. Each holds a thread and one
// message (at most about 1 MiB: a job's names of files are bounded, and what agents keep of spans
// is), so their number is bounded; and a client
// that stops reading is cut off, because a write to it would wait for ever. Threads: any; has one
// of its own.
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

    // Errors: ResourceExhausted - as many as there may be are open already.
    absl::Status status() const;

    // `write` is a write to the client. False: it is gone, or was cut off.
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
