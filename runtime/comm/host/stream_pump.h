// Moves bytes between rings and sockets on one thread, so that calls work on rings only, whatever
// the distance.
//
// A socket carries frames of up to 128 KiB: 4 bytes of kind, 4 bytes of length, then bytes of the
// ring (kData) or an AbortNotice (kAbort), which needs no room in the ring. Flow control is that of
// the socket: the pump does not read from it while the inbox is full. A turn looks only at the
// streams that were notified or whose sockets are ready (epoll, edge-triggered), however many there
// are.
//
// A large payload does not pass through a ring: a call lends its memory to a stream (SendDirectly,
// ReceiveDirectly), and the pump moves the bytes between that memory and the socket. What the
// socket carries stays the same.
//
// Threads: Add, before Start, on the thread that calls Start and Stop; the other methods on any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/fd.h"
#include "runtime/comm/host/region.h"
#include "runtime/comm/host/ring.h"

namespace megascale::comm {

// One end of an authenticated connection to one member of a group.
class Stream {
 public:
  Stream(base::UniqueFd socket, size_t ring_bytes, Doorbell* doorbell)
      : socket_(std::move(socket)), inbox_(ring_bytes), outbox_(ring_bytes), doorbell_(doorbell) {}

  const Ring& inbox() const { return inbox_.view(); }
  const Ring& outbox() const { return outbox_.view(); }
  // kOpen, kAborted (then notice() is valid) or kClosed. All bytes that came before are in the
  // inbox.
  PeerState state() const { return state_.load(std::memory_order_acquire); }
  const AbortNotice& notice() const { return notice_in_; }

  // Sends these bytes after all that are in the outbox. Requires: num_unsent() == 0, and until it
  // is 0 again or Revoke has returned, the caller neither changes the memory nor writes to the
  // outbox. Then notify the pump; the doorbell tells of the end. Threads: the communicator's owner,
  // as for the other methods about a call's memory.
  void SendDirectly(const std::byte* data, size_t num_bytes);
  size_t num_unsent() const { return num_unsent_.load(std::memory_order_acquire); }
  // Puts the next bytes of the stream into `data`: those that are in the inbox at once, later ones
  // as they come. Requires: num_awaited() == 0, and until it is 0 again or Revoke has returned, the
  // caller neither uses the memory nor reads the inbox. Then notify the pump; the doorbell tells of
  // the end.
  void ReceiveDirectly(std::byte* data, size_t num_bytes);
  // As ReceiveDirectly for the bytes that follow the next `num_before` bytes, which come into the
  // inbox and may be read there. Returns false, and does nothing, if there is something in the
  // inbox already, or if `num_bytes` is no multiple of kRingAlignment.
  bool ReceiveDirectlyAfter(size_t num_before, std::byte* data, size_t num_bytes);
  size_t num_awaited() const { return num_awaited_.load(std::memory_order_acquire); }
  // Ends both before they are done, for a call that has failed: the pump no longer touches the
  // call's memory. The peer gets no more of the call's bytes than a frame that had begun.
  void Revoke();

  // Returns how many bytes the kernel holds that the other end's kernel has not confirmed. A system
  // call.
  int64_t UnsentBytes() const;
  // Returns for how long the machine of the other end has confirmed nothing of what the kernel here
  // sends again and again; zero: it confirms, or nothing waits for that. A rank there that reads
  // nothing changes nothing: its kernel answers. TCP only. A system call. Threads: the
  // communicator's owner.
  absl::Duration UnconfirmedFor();

 private:
  friend class StreamPump;
  struct FrameHeader {
    uint32_t kind = 0;
    uint32_t num_bytes = 0;
  };
  // A frame that is partly sent or received.
  struct Frame {
    // Where the payload of an outgoing frame lies.
    enum class Source { kOutbox, kCall, kRest };

    FrameHeader header;
    Source source = Source::kOutbox;
    size_t header_done = 0;
    size_t payload_done = 0;

    bool HasHeader() const { return header_done == sizeof(header); }
    size_t PayloadLeft() const { return header.num_bytes - payload_done; }
    absl::Span<std::byte> HeaderRest() {
      return {reinterpret_cast<std::byte*>(&header) + header_done, sizeof(header) - header_done};
    }
  };

  base::UniqueFd socket_;
  PrivateRing inbox_;
  PrivateRing outbox_;
  Doorbell* const doorbell_;  // the communicator's
  std::atomic<PeerState> state_{PeerState::kOpen};
  AbortNotice notice_in_;
  AbortNotice notice_out_;
  std::atomic<bool> abort_wanted_{false};  // notice_out_ is valid
  std::atomic<bool> noted_{false};         // in StreamPump::noted_, or about to be
  Stream* next_noted_ = nullptr;
  absl::Duration unconfirmed_since_ = absl::InfiniteDuration();  // infinite: it confirms

  // Held while the pump moves bytes of this stream, so that Revoke waits for it.
  std::mutex mutex_;
  const std::byte* unsent_ = nullptr;  // of the call's memory
  size_t num_passing_ = 0;             // all that SendDirectly was given
  std::byte* awaited_ = nullptr;
  size_t num_before_ = 0;  // bytes for the inbox, before those for awaited_
  std::atomic<size_t> num_unsent_{0};
  std::atomic<size_t> num_awaited_{0};
  std::vector<std::byte> rest_;  // of a frame from revoked memory

  // The pump's thread only, but for Revoke.
  Frame reading_;
  Frame writing_;
  bool abort_sent_ = false;
  bool is_ready_ = false;       // in StreamPump::ready_
  bool read_blocked_ = false;   // the socket has no bytes
  bool write_blocked_ = false;  // the socket's buffer is full
  bool readable_ = true;        // the other end has not closed
  bool writable_ = true;
};

class StreamPump {
 public:
  StreamPump() = default;
  ~StreamPump();

  // Adds a stream, which lives as long as the pump. `doorbell` is bumped after every change that
  // its communicator may be waiting for.
  Stream* Add(base::UniqueFd socket, size_t ring_bytes, Doorbell* doorbell);

  absl::Status Start();

  // Call after putting bytes into the stream's outbox or taking some from its inbox.
  void Notify(Stream* stream);

  // Tells the other end why this one gives up. Once per stream.
  void SendAbort(Stream* stream, const AbortNotice& notice);

  // Sends the bytes left in the outboxes, for at most `flush_timeout`, then closes all sockets and
  // joins the thread.
  void Stop(absl::Duration flush_timeout);

 private:
  void Loop();
  // Takes the notified streams and, after at most `timeout`, those whose sockets are ready.
  void TakeNoted();
  void TakeEvents(absl::Duration timeout);
  void MakeReady(Stream* stream);
  void Wake();
  bool HasOutput() const;
  // These return true if anything moved. An error closes that direction.
  static bool Read(Stream& stream);
  static bool ReadSome(Stream& stream);
  static void NoteRead(Stream& stream, size_t num_bytes, bool is_direct);
  static void CheckHeader(Stream& stream);
  static void CloseReading(Stream& stream);
  static void FinishReading(Stream& stream);
  static bool Write(Stream& stream);
  static bool WriteSome(Stream& stream);
  static void NoteWritten(Stream& stream, size_t num_bytes);
  static absl::Span<const std::byte> PayloadOf(Stream& stream);
  static bool BeginFrame(Stream& stream);
  static bool HasOutput(const Stream& stream);

  std::vector<std::unique_ptr<Stream>> streams_;
  base::UniqueFd epoll_;
  base::UniqueFd wake_;                  // an eventfd
  std::atomic<bool> notified_{false};    // lets notifiers skip the system call
  std::atomic<Stream*> noted_{nullptr};  // a stack of notified streams
  std::atomic<bool> stopping_{false};
  absl::Duration stop_at_;      // monotonic; valid once stopping_
  std::vector<Stream*> ready_;  // the pump's thread only: may have something to move
  std::thread thread_;
};

}  // namespace megascale::comm
