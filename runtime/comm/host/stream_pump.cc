#include "runtime/comm/host/stream_pump.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

constexpr uint32_t kData = 1;
constexpr uint32_t kAbort = 2;
constexpr uint32_t kFrameBytesMax = 128 << 10;
// Most system calls for one stream before the next one gets its turn.
constexpr int kTurnsMax = 8;

absl::Span<std::byte> AsBytes(AbortNotice& notice) {
  return {reinterpret_cast<std::byte*>(&notice), sizeof(notice)};
}

bool IsValid(uint32_t kind, uint32_t num_bytes) {
  if (kind == kAbort) return num_bytes == sizeof(AbortNotice);
  return kind == kData && num_bytes > 0 && num_bytes <= kFrameBytesMax;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

int64_t Stream::UnsentBytes() const {
  int unsent = 0;
  return ::ioctl(socket_.get(), SIOCOUTQ, &unsent) == 0 ? unsent : 0;
}

absl::Duration Stream::UnconfirmedFor() {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  const bool is_known =
      ::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && size >= sizeof(info);
  const absl::Duration now = base::RealClock().Monotonic();
  if (!is_known || info.tcpi_unacked == 0 || info.tcpi_backoff == 0) {
    unconfirmed_since_ = absl::InfiniteDuration();
    return absl::ZeroDuration();
  }
  // The last answer may have come long before there was something to confirm.
  const absl::Duration answered = now - absl::Milliseconds(info.tcpi_last_ack_recv);
  if (unconfirmed_since_ == absl::InfiniteDuration() || answered > unconfirmed_since_) {
    unconfirmed_since_ = now;
  }
  return now - unconfirmed_since_;
}

void Stream::SendDirectly(const std::byte* data, size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGASCALE_CHECK(num_unsent() == 0);
  unsent_ = data;
  num_passing_ = num_bytes;
  num_unsent_.store(num_bytes, std::memory_order_release);
}

void Stream::ReceiveDirectly(std::byte* data, size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGASCALE_CHECK(num_awaited() == 0);
  while (num_bytes > 0) {
    absl::Span<const std::byte> here = inbox().ReadableSpan();
    here = here.first(std::min(here.size(), num_bytes));
    if (here.empty()) break;
    std::memcpy(data, here.data(), here.size());
    (void)inbox().CommitRead(here.size());  // the caller notifies the pump anyway
    data += here.size();
    num_bytes -= here.size();
  }
  if (num_bytes > 0) inbox().PassBy(num_bytes);
  awaited_ = data;
  num_awaited_.store(num_bytes, std::memory_order_release);
}

bool Stream::ReceiveDirectlyAfter(size_t num_before, std::byte* data, size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGASCALE_CHECK(num_awaited() == 0);
  if (!inbox().ReadableSpan().empty() || num_bytes % kRingAlignment != 0) return false;
  num_before_ = num_before;
  awaited_ = data;
  num_awaited_.store(num_bytes, std::memory_order_release);
  return true;
}

void Stream::Revoke() {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_before_ = 0;
  num_awaited_.store(0, std::memory_order_release);
  if (num_unsent() == 0) return;
  if (writing_.source == Frame::Source::kCall) {
    rest_.assign(unsent_, unsent_ + writing_.PayloadLeft());
    writing_.source = Frame::Source::kRest;
  }
  num_unsent_.store(0, std::memory_order_release);
}

StreamPump::~StreamPump() { Stop(absl::ZeroDuration()); }

Stream* StreamPump::Add(base::UniqueFd socket, size_t ring_bytes, Doorbell* doorbell) {
  streams_.push_back(std::make_unique<Stream>(std::move(socket), ring_bytes, doorbell));
  return streams_.back().get();
}

absl::Status StreamPump::Start() {
  epoll_ = base::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = base::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid()) {
    return base::ErrnoStatus(errno, "make an epoll and an eventfd for the stream thread");
  }
  const auto watch = [this](int fd, uint32_t events, void* data) {
    epoll_event event = {};
    event.events = events;
    event.data.ptr = data;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0
               ? absl::OkStatus()
               : base::ErrnoStatus(errno, "watch a stream");
  };
  RETURN_IF_ERROR(watch(wake_.get(), EPOLLIN, nullptr));
  for (const auto& stream : streams_) {
    RETURN_IF_ERROR(
        watch(stream->socket_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, stream.get()));
  }
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void StreamPump::Notify(Stream* stream) {
  if (!stream->noted_.exchange(true)) {
    stream->next_noted_ = noted_.load(std::memory_order_relaxed);
    while (!noted_.compare_exchange_weak(stream->next_noted_, stream)) {
    }
  }
  Wake();
}

void StreamPump::Wake() {
  if (notified_.exchange(true)) return;
  const uint64_t one = 1;
  // Fails only if the counter is full; the thread then wakes anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void StreamPump::SendAbort(Stream* stream, const AbortNotice& notice) {
  stream->notice_out_ = notice;
  stream->abort_wanted_.store(true, std::memory_order_release);
  Notify(stream);
}

void StreamPump::Stop(absl::Duration flush_timeout) {
  if (!thread_.joinable()) return;
  stop_at_ = base::RealClock().Monotonic() + flush_timeout;
  stopping_.store(true);
  Wake();
  thread_.join();
  for (auto& stream : streams_) stream->socket_.reset();
}

void StreamPump::Loop() {
  while (true) {
    const bool stopping = stopping_.load();
    TakeNoted();
    std::vector<Stream*> moving;
    moving.swap(ready_);
    for (Stream* stream : moving) {
      stream->is_ready_ = false;
      const bool has_read = Read(*stream);
      const bool has_written = Write(*stream);
      if (has_read || has_written) MakeReady(stream);
    }
    absl::Duration timeout = absl::InfiniteDuration();
    if (stopping) {
      timeout = stop_at_ - base::RealClock().Monotonic();
      if (!HasOutput() || timeout <= absl::ZeroDuration()) return;
    }
    TakeEvents(ready_.empty() ? timeout : absl::ZeroDuration());
  }
}

void StreamPump::MakeReady(Stream* stream) {
  if (std::exchange(stream->is_ready_, true)) return;
  ready_.push_back(stream);
}

void StreamPump::TakeNoted() {
  Stream* stream = noted_.exchange(nullptr);
  while (stream != nullptr) {
    Stream* const next = stream->next_noted_;
    stream->noted_.exchange(false);  // before its rings are looked at
    MakeReady(stream);
    stream = next;
  }
}

void StreamPump::TakeEvents(absl::Duration timeout) {
  constexpr int kEventsMax = 128;
  epoll_event events[kEventsMax];
  const int64_t limit = timeout == absl::InfiniteDuration() ? -1
                        : timeout == absl::ZeroDuration()   ? 0
                                                          : absl::ToInt64Milliseconds(timeout) + 1;
  const int count = ::epoll_wait(epoll_.get(), events, kEventsMax,
                                 static_cast<int>(std::min<int64_t>(limit, INT32_MAX)));
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == nullptr) {
      uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof(ignored));
      notified_.exchange(false);  // before the notified streams are taken
      continue;
    }
    auto* stream = static_cast<Stream*>(events[i].data.ptr);
    if ((events[i].events & ~uint32_t{EPOLLOUT}) != 0) stream->read_blocked_ = false;
    if ((events[i].events & ~uint32_t{EPOLLIN | EPOLLRDHUP}) != 0) stream->write_blocked_ = false;
    MakeReady(stream);
  }
}

bool StreamPump::HasOutput() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return HasOutput(*stream); });
}

bool StreamPump::Read(Stream& stream) {
  bool moved = false;
  for (int turn = 0; turn < kTurnsMax && stream.readable_ && !stream.read_blocked_; ++turn) {
    if (!ReadSome(stream)) break;
    moved = true;
  }
  return moved;
}

bool StreamPump::ReadSome(Stream& stream) {
  const std::lock_guard<std::mutex> lock(stream.mutex_);
  Stream::Frame& frame = stream.reading_;
  absl::Span<std::byte> room;
  const size_t num_awaited = stream.num_awaited();
  const bool is_data = frame.HasHeader() && frame.header.kind == kData;
  const bool is_before = is_data && stream.num_before_ > 0;
  const bool is_direct = is_data && !is_before && num_awaited > 0;
  if (!frame.HasHeader()) {
    room = frame.HeaderRest();
  } else {
    room = is_direct                    ? absl::MakeSpan(stream.awaited_, num_awaited)
           : frame.header.kind == kData ? stream.inbox().WritableSpan()
                                        : AsBytes(stream.notice_in_).subspan(frame.payload_done);
    if (is_before) room = room.first(std::min(room.size(), stream.num_before_));
    room = room.first(std::min(room.size(), frame.PayloadLeft()));
    if (room.empty()) return false;
  }
  // With the end of a frame comes the header of the next one.
  Stream::Frame next;
  const bool ends_frame = frame.HasHeader() && room.size() == frame.PayloadLeft();
  iovec pieces[2] = {{room.data(), room.size()},
                     {next.HeaderRest().data(), ends_frame ? next.HeaderRest().size() : 0}};
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = ends_frame && frame.header.kind == kData ? 2 : 1;
  ssize_t got = 0;
  do {
    got = ::recvmsg(stream.socket_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && WouldBlock(errno)) {
    stream.read_blocked_ = true;
    return false;
  }
  if (got <= 0) {
    CloseReading(stream);
    return true;
  }
  if (!frame.HasHeader()) {
    frame.header_done += got;
    CheckHeader(stream);
    return true;
  }
  const size_t of_payload = std::min<size_t>(got, room.size());
  frame.payload_done += of_payload;
  if (frame.header.kind == kData) NoteRead(stream, of_payload, is_direct);
  if (frame.PayloadLeft() > 0) return true;
  FinishReading(stream);
  next.header_done = got - of_payload;
  stream.reading_ = next;
  CheckHeader(stream);
  return true;
}

// Tells the communicator of bytes for it. Of those in its own memory it wants to know the end.
void StreamPump::NoteRead(Stream& stream, size_t num_bytes, bool is_direct) {
  if (is_direct) {
    stream.awaited_ += num_bytes;
    const size_t left = stream.num_awaited() - num_bytes;
    stream.num_awaited_.store(left, std::memory_order_release);
    if (left > 0) return;
  } else {
    stream.num_before_ -= std::min(stream.num_before_, num_bytes);
    stream.inbox().CommitWritten(num_bytes);
  }
  stream.doorbell_->Bump();
}

void StreamPump::CheckHeader(Stream& stream) {
  const Stream::Frame& frame = stream.reading_;
  if (!frame.HasHeader() || IsValid(frame.header.kind, frame.header.num_bytes)) return;
  base::LogError("a peer's stream carries garbage; it is treated as closed");
  CloseReading(stream);
}

void StreamPump::CloseReading(Stream& stream) {
  stream.readable_ = false;
  PeerState open = PeerState::kOpen;
  stream.state_.compare_exchange_strong(open, PeerState::kClosed);
  stream.doorbell_->Bump();
}

void StreamPump::FinishReading(Stream& stream) {
  if (stream.reading_.header.kind == kAbort && stream.state() == PeerState::kOpen) {
    stream.state_.store(PeerState::kAborted, std::memory_order_release);
    stream.doorbell_->Bump();
  }
  stream.reading_ = {};
}

bool StreamPump::Write(Stream& stream) {
  bool moved = false;
  for (int turn = 0; turn < kTurnsMax && stream.writable_ && !stream.write_blocked_; ++turn) {
    const std::lock_guard<std::mutex> lock(stream.mutex_);
    if (stream.writing_.header.kind == 0 && !BeginFrame(stream)) break;
    moved |= WriteSome(stream);
  }
  return moved;
}

bool StreamPump::BeginFrame(Stream& stream) {
  if (stream.abort_sent_) return false;
  if (stream.abort_wanted_.load(std::memory_order_acquire)) {
    stream.abort_sent_ = true;  // the rest of the outbox is useless now
    stream.writing_.header = {kAbort, sizeof(AbortNotice)};
    return true;
  }
  size_t available = stream.outbox().ReadableSpan().size();
  if (available == 0) {
    available = stream.num_unsent();
    stream.writing_.source = Stream::Frame::Source::kCall;
  }
  if (available == 0) {
    stream.writing_ = {};
    return false;
  }
  stream.writing_.header = {kData,
                            static_cast<uint32_t>(std::min<size_t>(available, kFrameBytesMax))};
  return true;
}

absl::Span<const std::byte> StreamPump::PayloadOf(Stream& stream) {
  const Stream::Frame& frame = stream.writing_;
  if (frame.header.kind == kAbort) return AsBytes(stream.notice_out_).subspan(frame.payload_done);
  switch (frame.source) {
    case Stream::Frame::Source::kOutbox:
      // It was contiguous when the frame began; more bytes may follow it in the ring.
      return stream.outbox().ReadableSpan().first(frame.PayloadLeft());
    case Stream::Frame::Source::kCall:
      return {stream.unsent_, frame.PayloadLeft()};
    case Stream::Frame::Source::kRest:
      return absl::MakeConstSpan(stream.rest_).last(frame.PayloadLeft());
  }
  return {};
}

bool StreamPump::WriteSome(Stream& stream) {
  Stream::Frame& frame = stream.writing_;
  const absl::Span<std::byte> header = frame.HeaderRest();
  const absl::Span<const std::byte> payload = PayloadOf(stream);
  iovec pieces[2] = {{header.data(), header.size()},
                     {const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(stream.socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (WouldBlock(errno)) {
      stream.write_blocked_ = true;
    } else {
      stream.writable_ = false;
    }
    return false;
  }
  const size_t of_header = std::min<size_t>(sent, header.size());
  const size_t of_payload = sent - of_header;
  frame.header_done += of_header;
  frame.payload_done += of_payload;
  if (frame.header.kind == kData) NoteWritten(stream, of_payload);
  if (frame.HasHeader() && frame.PayloadLeft() == 0) frame = {};
  return true;
}

void StreamPump::NoteWritten(Stream& stream, size_t num_bytes) {
  switch (stream.writing_.source) {
    case Stream::Frame::Source::kOutbox:
      if (stream.outbox().CommitRead(num_bytes)) stream.doorbell_->Bump();
      return;
    case Stream::Frame::Source::kCall: {
      stream.unsent_ += num_bytes;
      const size_t left = stream.num_unsent() - num_bytes;
      if (left == 0) stream.outbox().PassBy(stream.num_passing_);
      stream.num_unsent_.store(left, std::memory_order_release);
      if (left == 0) stream.doorbell_->Bump();
      return;
    }
    case Stream::Frame::Source::kRest:
      return;
  }
}

bool StreamPump::HasOutput(const Stream& stream) {
  if (!stream.writable_) return false;
  if (stream.writing_.header.kind != 0) return true;
  if (stream.abort_sent_) return false;
  return stream.abort_wanted_.load(std::memory_order_acquire) ||
         !stream.outbox().ReadableSpan().empty() || stream.num_unsent() > 0;
}

}  // namespace megascale::comm
