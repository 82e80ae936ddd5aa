#include "runtime/comm/exchange.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/comm/fold.h"

namespace megascale::comm {
namespace {

// The most that moves before the other side is told: small enough to overlap its work with this
// side's.
constexpr size_t kPieceBytes = 128 << 10;

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

bool Exchange::Outgoing::Done() const {
  return num_done == sizeof(MessageHeader) + PaddedBytes(header.payload_bytes);
}

void Exchange::ReceiveSum(const Sum& sum) {
  MEGASCALE_CHECK(incoming_.empty());
  sum_ = sum;
  for (int peer = 0; peer < sum.group_size; ++peer) {
    if (peer != sum.self) Receive(peer, nullptr, sum.num_bytes);
  }
}

absl::StatusOr<bool> Exchange::Progress(const std::vector<Peer>& peers) {
  bool moved = false;
  for (Outgoing& outgoing : outgoing_) moved |= Push(outgoing, peers);
  for (Incoming& incoming : incoming_) {
    if (incoming.is_done) continue;
    const Peer& peer = peers[incoming.peer];
    if (!incoming.has_header) {
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
  const Peer& peer = peers[outgoing.peer];
  const Ring& way = outgoing.to_all ? peer.window : peer.outbox;
  const size_t payload = outgoing.header.payload_bytes;
  const size_t total = sizeof(MessageHeader) + PaddedBytes(payload);
  if (outgoing.num_done == total) return false;
  const size_t start = outgoing.num_done;
  while (outgoing.num_done < total && outgoing.num_done - start < kPieceBytes) {
    const absl::Span<std::byte> room = way.WritableSpan();
    size_t count = 0;
    if (outgoing.num_done == 0) {
      // Messages start at multiples of the header's size, so it is never cut by the ring's end.
      if (room.size() < sizeof(MessageHeader)) break;
      count = sizeof(MessageHeader);
      std::memcpy(room.data(), &outgoing.header, count);
    } else {
      const size_t position = outgoing.num_done - sizeof(MessageHeader);
      count = std::min({room.size(), total - outgoing.num_done, kPieceBytes});
      if (count == 0) break;
      if (position < payload) {
        std::memcpy(room.data(), outgoing.data + position, std::min(count, payload - position));
      }
    }
    way.CommitWritten(count);
    outgoing.num_done += count;
  }
  if (outgoing.num_done == start) return false;
  if (!outgoing.to_all) peer.Notify();
  for (size_t i = 0; outgoing.to_all && i < peers.size(); ++i) {
    if (static_cast<int>(i) != outgoing.peer) peers[i].Notify();
  }
  if (outgoing.num_done == total) --num_open_;
  return true;
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
  // The sender of a message calls it a send; this end expects just that.
  if (expected.operation == Operation::kRecv) expected.operation = Operation::kSend;
  if (header != expected) {
    return absl::InternalError(absl::StrCat("expected ", Describe(expected), " from rank ",
                                            peer.world_rank, ", which sent ", Describe(header)));
  }
  Take(incoming, peer, sizeof(header));
  incoming.has_header = true;
  Finish(incoming, peer);
  return true;
}

// A peer that makes another call may have sent it the other way, where nobody would look for it.
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

bool Exchange::Pull(Incoming& incoming, const Peer& peer) {
  if (!incoming.has_header || incoming.is_done) return false;
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
  const bool finished = Finish(incoming, peer);
  return finished || incoming.num_done > start;
}

// A piece of the sum needs the same piece from everybody; it is added straight from the rings.
bool Exchange::Fold(const std::vector<Peer>& peers) {
  bool moved = false;
  if (incoming_.empty()) return false;
  const size_t done = incoming_.front().num_done;
  size_t count = std::min(sum_.num_bytes - done, kPieceBytes);
  std::vector<const std::byte*> sources;
  for (const Incoming& incoming : incoming_) {
    if (!incoming.has_header) return false;
    if (incoming.peer > sum_.self && sources.size() == static_cast<size_t>(sum_.self)) {
      sources.push_back(sum_.own + done);
    }
    const absl::Span<const std::byte> bytes = peers[incoming.peer].inbox.ReadableSpan();
    count = std::min(count, bytes.size());
    sources.push_back(bytes.data());
  }
  if (sources.size() < static_cast<size_t>(sum_.group_size)) sources.push_back(sum_.own + done);
  count -= count % tensor::SizeOf(call_.dtype);
  if (count > 0) {
    FoldSum(call_.dtype, sources, count / tensor::SizeOf(call_.dtype), sum_.output + done);
    moved = true;
  }
  for (Incoming& incoming : incoming_) {
    const Peer& peer = peers[incoming.peer];
    Take(incoming, peer, count);
    incoming.num_done += count;
    moved |= Finish(incoming, peer);
  }
  return moved;
}

// Takes the padding once the payload is through; true when that ends the message.
bool Exchange::Finish(Incoming& incoming, const Peer& peer) {
  if (incoming.is_done || incoming.num_done < incoming.payload_bytes) return false;
  const size_t padding = PaddedBytes(incoming.payload_bytes) - incoming.payload_bytes;
  if (Source(incoming, peer).ReadableSpan().size() < padding) return false;
  Take(incoming, peer, padding);
  incoming.is_done = true;
  --num_open_;
  return true;
}

void Exchange::Take(const Incoming& incoming, const Peer& peer, size_t num_bytes) {
  if (Source(incoming, peer).CommitRead(num_bytes)) peer.Notify();
}

// The members that keep the window of `owner` full.
std::vector<int> Exchange::FindBlockers(const std::vector<Peer>& peers, int owner) {
  std::vector<int> blockers;
  for (int reader = 0; reader + 1 < static_cast<int>(peers.size()); ++reader) {
    if (!peers[owner].window.Blocks(reader)) continue;
    blockers.push_back(reader < owner ? reader : reader + 1);
  }
  return blockers;
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
    if (outgoing.Done()) continue;
    std::vector<int> culprits = {outgoing.peer};
    if (outgoing.to_all) culprits = FindBlockers(peers, outgoing.peer);
    for (const int peer : culprits) add(peer, call_.phase > 0);
  }
  return missing;
}

bool Exchange::Needs(int peer) const {
  for (const Incoming& incoming : incoming_) {
    if (incoming.peer == peer && !incoming.is_done) return true;
  }
  for (const Outgoing& outgoing : outgoing_) {
    if ((outgoing.to_all || outgoing.peer == peer) && !outgoing.Done()) return true;
  }
  return false;
}

}  // namespace megascale::comm
