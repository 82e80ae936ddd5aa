#include "runtime/comm/host/exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/comm/fold.h"

namespace megascale::comm {
namespace {

// Most bytes that move before the other side is notified: small enough to overlap both sides' work.
constexpr size_t kPieceBytes = 128 << 10;
// Most bytes that are read in place before this side checks whether the call has failed.
constexpr size_t kCopyBytes = 64 << 20;

// Payloads below this are copied through the rings, so that their sender need not wait for the
// socket: they arrive sooner.
constexpr size_t kDirectBytesMin = 64 << 10;

// Whether a payload goes between a stream and the call's memory. What a ring can hold need not.
bool GoesDirectly(size_t payload_bytes, const Stream* stream) {
  return stream != nullptr && payload_bytes >= kDirectBytesMin &&
         payload_bytes >= stream->outbox().capacity();
}

size_t PaddedBytes(size_t num_bytes) {
  return (num_bytes + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
}

}  // namespace

std::string Describe(const MessageHeader& header) {
  if (header.magic != MessageHeader::kMagic) return "bytes that are no message";
  std::string text = absl::StrCat(Name(header.operation), " ", header.sequence, " (instruction ",
                                  header.instruction_id, ", ", header.call_bytes, " bytes of ",
                                  tensor::Name(header.dtype));
  if (header.payload_bytes != header.call_bytes) {
    absl::StrAppend(&text, ", ", header.payload_bytes, " in this message");
  }
  if (header.root >= 0) absl::StrAppend(&text, ", root ", header.root);
  if (header.phase > 0) absl::StrAppend(&text, ", phase ", header.phase);
  return text + ")";
}

void Exchange::Send(int peer, const void* data, size_t num_bytes) {
  Outgoing outgoing{peer, call_, static_cast<const std::byte*>(data)};
  outgoing.header.payload_bytes = num_bytes;
  outgoing_.push_back(outgoing);
  ++num_open_;
}

void Exchange::Receive(int peer, void* data, size_t num_bytes) {
  incoming_.push_back({peer, num_bytes, static_cast<std::byte*>(data)});
  ++num_open_;
}

void Exchange::SendToAll(int self, const void* data, size_t num_bytes) {
  Send(self, data, num_bytes);
  outgoing_.back().to_all = true;
}

void Exchange::ReceiveFromWindow(int peer, void* data, size_t num_bytes) {
  Receive(peer, data, num_bytes);
  incoming_.back().from_window = true;
}

size_t Exchange::Outgoing::TotalBytes() const {
  return sizeof(MessageHeader) + (InPlace() ? 0 : PaddedBytes(header.payload_bytes));
}

void Exchange::ReceiveSum(const Sum& sum) {
  MEGASCALE_CHECK(incoming_.empty());
  sum_ = sum;
  for (int peer = 0; peer < sum.group_size; ++peer) {
    if (peer != sum.self) Receive(peer, nullptr, sum.num_bytes);
  }
}

absl::StatusOr<bool> Exchange::Progress(std::vector<Peer>& peers) {
  bool moved = false;
  for (Outgoing& outgoing : outgoing_) moved |= Push(outgoing, peers);
  for (Incoming& incoming : incoming_) {
    if (incoming.is_done) continue;
    Peer& peer = peers[incoming.peer];
    if (!incoming.has_header) {
      if (sum_.output == nullptr) AwaitDirectly(incoming, peer);
      absl::StatusOr<bool> arrived = PullHeader(incoming, peer);
      if (!arrived.ok()) return arrived.status();
      moved |= *arrived;
    }
    if (sum_.output == nullptr) moved |= Pull(incoming, peer);
  }
  if (sum_.output != nullptr) moved |= Fold(peers);
  return moved;
}

bool Exchange::Push(Outgoing& outgoing, const std::vector<Peer>& peers) {
  if (outgoing.is_done) return false;
  const Ring& way = Way(outgoing, peers);
  const size_t start = outgoing.num_done;
  if (start > 0 || PushHeader(outgoing, peers)) {
    if (outgoing.is_direct) PushDirectly(outgoing, peers[outgoing.peer]);
    PushPayload(outgoing, way);
  }
  const bool has_moved = outgoing.num_done > start;
  if (has_moved && !outgoing.to_all) peers[outgoing.peer].Notify();
  for (size_t i = 0; has_moved && outgoing.to_all && i < peers.size(); ++i) {
    if (static_cast<int>(i) != outgoing.peer) peers[i].Notify();
  }
  outgoing.is_done =
      outgoing.num_done == outgoing.TotalBytes() && (!outgoing.InPlace() || way.AllRead());
  if (outgoing.is_done) --num_open_;
  return has_moved || outgoing.is_done;
}

bool Exchange::PushHeader(Outgoing& outgoing, const std::vector<Peer>& peers) {
  const Ring& way = Way(outgoing, peers);
  const absl::Span<std::byte> room = way.WritableSpan();
  // Messages start at multiples of the header's size, so the end of the ring never cuts a header.
  if (room.size() < sizeof(MessageHeader)) return false;
  bool in_place = outgoing.header.payload_bytes > way.capacity();
  for (int i = 0; i < static_cast<int>(peers.size()); ++i) {
    const bool gets_it = outgoing.to_all ? i != outgoing.peer : i == outgoing.peer;
    if (gets_it) in_place = in_place && peers[i].ReadsInPlace();
  }
  if (in_place) outgoing.header.address = reinterpret_cast<uint64_t>(outgoing.data);
  std::memcpy(room.data(), &outgoing.header, sizeof(MessageHeader));
  way.CommitWritten(sizeof(MessageHeader));
  outgoing.num_done = sizeof(MessageHeader);
  Stream* const stream = outgoing.to_all ? nullptr : peers[outgoing.peer].stream;
  if (!GoesDirectly(outgoing.header.payload_bytes, stream)) return true;
  stream->SendDirectly(outgoing.data, outgoing.header.payload_bytes);
  outgoing.is_direct = true;
  return true;
}

void Exchange::PushDirectly(Outgoing& outgoing, const Peer& peer) {
  const size_t sent = outgoing.header.payload_bytes - peer.stream->num_unsent();
  outgoing.num_done = std::max(outgoing.num_done, sizeof(MessageHeader) + sent);
}

void Exchange::PushPayload(Outgoing& outgoing, const Ring& way) {
  const size_t payload = outgoing.header.payload_bytes;
  const size_t total = outgoing.TotalBytes();
  const size_t start = outgoing.num_done;
  if (outgoing.is_direct && start < sizeof(MessageHeader) + payload) return;
  while (outgoing.num_done < total && outgoing.num_done - start < kPieceBytes) {
    const absl::Span<std::byte> room = way.WritableSpan();
    const size_t position = outgoing.num_done - sizeof(MessageHeader);
    const size_t count = std::min({room.size(), total - outgoing.num_done, kPieceBytes});
    if (count == 0) break;
    if (position < payload) {
      std::memcpy(room.data(), outgoing.data + position, std::min(count, payload - position));
    }
    way.CommitWritten(count);
    outgoing.num_done += count;
  }
}

absl::StatusOr<bool> Exchange::PullHeader(Incoming& incoming, const Peer& peer) {
  const absl::Span<const std::byte> bytes = Source(incoming, peer).ReadableSpan();
  if (bytes.size() < sizeof(MessageHeader)) {
    const absl::Status status = CheckOtherWay(incoming, peer);
    if (!status.ok()) return status;
    return false;
  }
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  MessageHeader expected = call_;
  expected.payload_bytes = incoming.payload_bytes;
  expected.address = header.address;
  // The sender of a message calls the operation a send; this end expects that.
  if (expected.operation == Operation::kRecv) expected.operation = Operation::kSend;
  if (header != expected) {
    return absl::InternalError(absl::StrCat("expected ", Describe(expected), " from rank ",
                                            peer.world_rank, ", which sent ", Describe(header)));
  }
  incoming.has_header = true;
  incoming.address = header.address;
  if (incoming.address == 0) {
    Take(incoming, peer, sizeof(header));
    Finish(incoming, peer);
  }
  return true;
}

// A peer that makes another call may have sent its message the other way, where it would go
// unnoticed.
absl::Status Exchange::CheckOtherWay(const Incoming& incoming, const Peer& peer) const {
  const Ring& way = incoming.from_window ? peer.inbox : peer.window;
  if (!way || call_.operation == Operation::kSend || call_.operation == Operation::kRecv) {
    return absl::OkStatus();
  }
  const absl::Span<const std::byte> bytes = way.ReadableSpan();
  if (bytes.size() < sizeof(MessageHeader)) return absl::OkStatus();
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.operation == Operation::kSend || header.sequence != call_.sequence ||
      header.operation == call_.operation) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("expected ", Describe(call_), " from rank ",
                                          peer.world_rank, ", which sent ", Describe(header)));
}

bool Exchange::Pull(Incoming& incoming, Peer& peer) {
  if (!incoming.has_header || incoming.is_done) return false;
  const bool has_moved = incoming.address != 0 ? PullInPlace(incoming, peer)
                         : GoesDirectly(incoming.payload_bytes, peer.stream)
                             ? PullDirectly(incoming, peer)
                             : PullFromRing(incoming, peer);
  const bool has_finished = Finish(incoming, peer);
  return has_moved || has_finished;
}

// Lets the payload come into the call's memory even before this side has looked at the header. If
// that turns out to be of another call, both calls fail.
void Exchange::AwaitDirectly(Incoming& incoming, const Peer& peer) {
  if (incoming.is_direct || !GoesDirectly(incoming.payload_bytes, peer.stream)) return;
  incoming.is_direct = peer.stream->ReceiveDirectlyAfter(sizeof(MessageHeader), incoming.data,
                                                         incoming.payload_bytes);
}

bool Exchange::PullDirectly(Incoming& incoming, const Peer& peer) {
  const size_t start = incoming.num_done;
  if (!incoming.is_direct) {
    peer.stream->ReceiveDirectly(incoming.data, incoming.payload_bytes);
    incoming.is_direct = true;
    peer.Notify();
  }
  incoming.num_done = incoming.payload_bytes - peer.stream->num_awaited();
  return incoming.num_done > start;
}

bool Exchange::PullFromRing(Incoming& incoming, const Peer& peer) {
  const size_t start = incoming.num_done;
  while (incoming.num_done < incoming.payload_bytes && incoming.num_done - start < kPieceBytes) {
    const absl::Span<const std::byte> bytes = Source(incoming, peer).ReadableSpan();
    const size_t count =
        std::min({bytes.size(), incoming.payload_bytes - incoming.num_done, kPieceBytes});
    if (count == 0) break;
    std::memcpy(incoming.data + incoming.num_done, bytes.data(), count);
    Take(incoming, peer, count);
    incoming.num_done += count;
  }
  return incoming.num_done > start;
}

bool Exchange::PullInPlace(Incoming& incoming, Peer& peer) {
  const size_t count = std::min(incoming.payload_bytes - incoming.num_done, kCopyBytes);
  if (!peer.process.Read(incoming.address + incoming.num_done, count,
                         incoming.data + incoming.num_done)) {
    return false;
  }
  incoming.num_done += count;
  return true;
}

// Adds one piece of the sum, once every member's piece is there: straight from the rings, or from
// the cache after it was read in place.
bool Exchange::Fold(std::vector<Peer>& peers) {
  if (incoming_.empty()) return false;
  for (const Incoming& incoming : incoming_) {
    if (!incoming.has_header) return false;
  }
  const size_t done = incoming_.front().num_done;
  const size_t count = FoldableBytes(peers);
  sources_.clear();
  sources_.reserve(static_cast<size_t>(sum_.group_size));
  for (const Incoming& incoming : incoming_) {
    Peer& peer = peers[incoming.peer];
    if (incoming.peer > sum_.self && sources_.size() == static_cast<size_t>(sum_.self)) {
      sources_.push_back(sum_.own + done);
    }
    const bool in_place = incoming.address != 0 && count > 0;
    sources_.push_back(in_place ? peer.process.Fetch(incoming.address + done, count)
                                : peer.inbox.ReadableSpan().data());
    if (in_place && sources_.back() == nullptr) return false;
  }
  if (sources_.size() < static_cast<size_t>(sum_.group_size)) sources_.push_back(sum_.own + done);
  if (count > 0) {
    FoldSum(call_.dtype, sources_, count / tensor::SizeOf(call_.dtype), sum_.output + done);
  }
  bool has_moved = count > 0;
  for (Incoming& incoming : incoming_) {
    const Peer& peer = peers[incoming.peer];
    if (incoming.address == 0) Take(incoming, peer, count);
    incoming.num_done += count;
    has_moved |= Finish(incoming, peer);
  }
  return has_moved;
}

// Returns how many bytes of the sum have every member's part.
size_t Exchange::FoldableBytes(const std::vector<Peer>& peers) const {
  size_t count = std::min(sum_.num_bytes - incoming_.front().num_done, kPieceBytes);
  for (const Incoming& incoming : incoming_) {
    if (incoming.address != 0) continue;
    count = std::min(count, peers[incoming.peer].inbox.ReadableSpan().size());
  }
  return count - count % tensor::SizeOf(call_.dtype);
}

// Removes the rest of a message after its payload: the padding, or the header of a payload that was
// read in place. Returns true if that ends the message.
bool Exchange::Finish(Incoming& incoming, const Peer& peer) {
  if (incoming.is_done || incoming.num_done < incoming.payload_bytes) return false;
  const size_t rest = incoming.address != 0
                          ? sizeof(MessageHeader)
                          : PaddedBytes(incoming.payload_bytes) - incoming.payload_bytes;
  if (Source(incoming, peer).ReadableSpan().size() < rest) return false;
  // Bytes that were read in place are valid if the peer was still in the call afterwards: a peer
  // that gives up says so before it touches its buffers again.
  const bool in_place = incoming.address != 0;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (in_place && (peer.state() != PeerState::kOpen || peer.process.HasEnded())) return false;
  Take(incoming, peer, rest);
  incoming.is_done = true;
  --num_open_;
  return true;
}

void Exchange::Take(const Incoming& incoming, const Peer& peer, size_t num_bytes) {
  if (num_bytes == 0) return;  // nothing new for the peer
  const bool is_awaited = incoming.address != 0;
  if (Source(incoming, peer).CommitRead(num_bytes) || is_awaited) peer.Notify();
}

// Returns the members that keep the window of `owner` full.
std::vector<int> Exchange::FindBlockers(const std::vector<Peer>& peers, int owner) {
  std::vector<int> blockers;
  for (int reader = 0; reader + 1 < static_cast<int>(peers.size()); ++reader) {
    if (!peers[owner].window.Blocks(reader)) continue;
    blockers.push_back(reader < owner ? reader : reader + 1);
  }
  return blockers;
}

// Returns the members that have not taken the message yet, or that keep it from being sent.
std::vector<int> Exchange::FindTakers(const std::vector<Peer>& peers, const Outgoing& outgoing) {
  const Ring& way = Way(outgoing, peers);
  if (!outgoing.to_all) return {outgoing.peer};
  if (!outgoing.InPlace()) return FindBlockers(peers, outgoing.peer);
  std::vector<int> takers;
  for (int reader = 0; reader + 1 < static_cast<int>(peers.size()); ++reader) {
    if (way.Unread(reader) > 0) takers.push_back(reader < outgoing.peer ? reader : reader + 1);
  }
  return takers;
}

Exchange::Missing Exchange::FindMissing(const std::vector<Peer>& peers) const {
  Missing missing;
  const auto add = [&](int peer, bool is_partial) {
    std::vector<int>& list = is_partial ? missing.partial : missing.absent;
    if (std::find(list.begin(), list.end(), peer) == list.end()) list.push_back(peer);
  };
  for (const Incoming& incoming : incoming_) {
    if (incoming.is_done) continue;
    std::vector<int> culprits;
    if (incoming.from_window) culprits = FindBlockers(peers, incoming.peer);
    if (culprits.empty()) culprits.push_back(incoming.peer);
    for (const int peer : culprits) add(peer, incoming.has_header || call_.phase > 0);
  }
  if (!missing.absent.empty() || !missing.partial.empty()) return missing;
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.is_done) continue;
    for (const int peer : FindTakers(peers, outgoing)) add(peer, call_.phase > 0);
  }
  return missing;
}

bool Exchange::Needs(int peer, const std::vector<Peer>& peers) const {
  for (const Incoming& incoming : incoming_) {
    if (incoming.peer == peer && !incoming.is_done) return true;
  }
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.is_done || (!outgoing.to_all && outgoing.peer != peer)) continue;
    // All members read such a payload in place; `peer` may have finished.
    if (!outgoing.InPlace()) return true;
    const std::vector<int> takers = FindTakers(peers, outgoing);
    if (std::find(takers.begin(), takers.end(), peer) != takers.end()) return true;
  }
  return false;
}

// Adds a message to what is shown of the peer that reads as `reader`. Bytes of earlier messages
// that still lie before it in the ring count as its own.
void Exchange::ShowOutgoing(const Outgoing& outgoing, const Ring& way, size_t reader,
                            PeerProgress* shown) {
  const size_t payload = outgoing.header.payload_bytes;
  const size_t unread = outgoing.is_done ? 0 : way.Unread(reader);
  size_t transmitted = 0;
  size_t delivered = 0;
  if (outgoing.InPlace()) {
    transmitted = outgoing.num_done > 0 ? payload : 0;
    delivered = unread == 0 ? transmitted : 0;
  } else if (outgoing.num_done > sizeof(MessageHeader)) {
    transmitted = std::min(payload, outgoing.num_done - sizeof(MessageHeader));
    delivered = transmitted - std::min(transmitted, unread);
  }
  shown->send_bytes += static_cast<int64_t>(payload);
  shown->transmitted_bytes += static_cast<int64_t>(transmitted);
  shown->delivered_bytes += static_cast<int64_t>(delivered);
}

void Exchange::ShowProgress(const std::vector<Peer>& peers, int self, bool asks_kernel,
                            std::vector<PeerProgress>* progress) const {
  progress->assign(peers.size(), {});
  for (size_t i = 0; i < peers.size(); ++i) (*progress)[i].world_rank = peers[i].world_rank;
  for (const Outgoing& outgoing : outgoing_) {
    const Ring& way = Way(outgoing, peers);
    if (!outgoing.to_all) {
      PeerProgress& shown = (*progress)[static_cast<size_t>(outgoing.peer)];
      ShowOutgoing(outgoing, way, 0, &shown);
      const Stream* const stream = peers[outgoing.peer].stream;
      if (stream == nullptr) continue;
      // What has left this process's ring is with the kernel, and the rest has not been sent.
      if (outgoing.is_direct && !outgoing.is_done) {
        shown.delivered_bytes =
            static_cast<int64_t>(outgoing.header.payload_bytes - stream->num_unsent());
      }
      shown.transmitted_bytes = shown.delivered_bytes;
      if (!asks_kernel) continue;
      shown.delivered_bytes -= std::min(shown.delivered_bytes, stream->UnsentBytes());
      continue;
    }
    for (int i = 0; i < static_cast<int>(peers.size()); ++i) {
      if (i == self) continue;
      const auto reader = static_cast<size_t>(i < self ? i : i - 1);
      ShowOutgoing(outgoing, way, reader, &(*progress)[static_cast<size_t>(i)]);
    }
  }
  for (const Incoming& incoming : incoming_) {
    PeerProgress& shown = (*progress)[static_cast<size_t>(incoming.peer)];
    size_t received = incoming.num_done;
    if (incoming.has_header && !incoming.is_done) {
      const size_t here = incoming.address != 0
                              ? incoming.payload_bytes
                              : Source(incoming, peers[incoming.peer]).ReadableSpan().size();
      received = std::min(incoming.payload_bytes, received + here);
      if (incoming.is_direct) {
        received = incoming.payload_bytes - peers[incoming.peer].stream->num_awaited();
      }
    }
    shown.receive_bytes += static_cast<int64_t>(incoming.payload_bytes);
    shown.received_bytes += static_cast<int64_t>(received);
  }
}

}  // namespace megascale::comm
