// The messages of one step of a call: which data goes to and comes from which members. An Exchange
// moves as much as the rings permit at the moment, sends and receives together, so that two ranks
// with bounded rings cannot deadlock. Endpoint does the waiting.
//
// In a ring, a message is a header of 64 bytes, the payload, and padding to the next multiple of
// 64. A payload larger than the ring stays in the sender's memory if all receivers can read it
// there: the header carries its address, and a reader removes the header from the ring once it has
// read the payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/comm/call_progress.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/peer_process.h"
#include "runtime/comm/host/region.h"
#include "runtime/comm/host/ring.h"
#include "runtime/comm/host/stream_pump.h"

namespace megascale::comm {

// Another member and the connection to it: either a slot in shared memory or a stream.
struct Peer {
  int world_rank = -1;
  Ring inbox;   // from it
  Ring outbox;  // to it
  Ring window;  // from it to all members; the own entry: from this member to all. May be empty
  MemberSlot* slot = nullptr;
  PeerProcess process;   // for a member with a slot
  uint64_t own_bit = 0;  // this member's bit in `readable` of slots; 0: nothing is read in place
  Stream* stream = nullptr;
  StreamPump* pump = nullptr;

  // Tells the other side that there are new bytes, or new room, in a ring.
  void Notify() const { slot != nullptr ? slot->doorbell.Bump() : pump->Notify(stream); }
  PeerState state() const {
    return slot != nullptr ? slot->state.load(std::memory_order_acquire) : stream->state();
  }
  // Whether the peer can read this member's memory.
  bool ReadsInPlace() const {
    return slot != nullptr && (slot->readable.load(std::memory_order_acquire) & own_bit) != 0;
  }
  const AbortNotice& notice() const { return slot != nullptr ? slot->notice : stream->notice(); }
};

// Precedes every payload.
struct MessageHeader {
  static constexpr uint32_t kMagic = 0x4d53474d;
  uint32_t magic = kMagic;
  Operation operation = Operation::kBarrier;
  tensor::DType dtype = tensor::DType::kF32;
  uint8_t phase = 0;  // phase of the call: a rank that sends phase 1 has received phase 0
  uint8_t reserved = 0;
  uint64_t sequence = 0;
  uint64_t instruction_id = 0;
  uint64_t call_bytes = 0;     // size of the call's whole buffer
  uint64_t payload_bytes = 0;  // size of this message
  uint64_t address = 0;        // of the payload in the sender's memory; 0: the payload follows
  int32_t root = -1;           // group index; broadcast and reduce only
  uint32_t padding[3] = {};

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};
static_assert(sizeof(MessageHeader) == kRingAlignment);

// Returns "all-reduce 12 (instruction 7, 4096 bytes of F32)".
std::string Describe(const MessageHeader& header);

class Exchange {
 public:
  // `call`: the header of all messages of this exchange; payload_bytes is filled in for each.
  explicit Exchange(const MessageHeader& call) : call_(call) {}

  // Peers are given as group indices, which index the vector given to Progress.
  void Send(int peer, const void* data, size_t num_bytes);
  void Receive(int peer, void* data, size_t num_bytes);

  // Writes a message once into the window of `self`, from which all other members read it.
  void SendToAll(int self, const void* data, size_t num_bytes);
  void ReceiveFromWindow(int peer, void* data, size_t num_bytes);

  // Receives `num_bytes` from each member but `self` and overwrites `output` with the sum of all,
  // in group order; `own` is this member's part and may be `output`.
  struct Sum {
    int self = 0;
    int group_size = 0;
    const std::byte* own = nullptr;
    std::byte* output = nullptr;
    size_t num_bytes = 0;
  };
  void ReceiveSum(const Sum& sum);

  // Moves as many bytes as possible; returns whether any moved. Errors: Internal - a peer's message
  // is not the expected one.
  absl::StatusOr<bool> Progress(std::vector<Peer>& peers);

  // Overwrites `progress`, by group index, with what has moved. `self`: this member's index.
  // `asks_kernel`: also ask how much a network has not delivered yet, a system call for each peer.
  void ShowProgress(const std::vector<Peer>& peers, int self, bool asks_kernel,
                    std::vector<PeerProgress>* progress) const;

  bool Done() const { return num_open_ == 0; }
  const MessageHeader& call() const { return call_; }

  // The peers that this exchange waits for. `absent`: nothing has come from them, or they have
  // taken nothing. `partial`: they stopped midway. For a full window these are the members that do
  // not read.
  struct Missing {
    std::vector<int> absent;
    std::vector<int> partial;
  };
  Missing FindMissing(const std::vector<Peer>& peers) const;
  bool Needs(int peer, const std::vector<Peer>& peers) const;

 private:
  struct Outgoing {
    int peer = 0;
    MessageHeader header;
    const std::byte* data = nullptr;
    size_t num_done = 0;     // bytes of header, payload and padding
    bool to_all = false;     // goes into the window; `peer` is then this member
    bool is_direct = false;  // a stream sends the payload from `data`
    bool is_done = false;

    bool InPlace() const { return header.address != 0; }
    size_t TotalBytes() const;
  };
  struct Incoming {
    int peer = 0;
    size_t payload_bytes = 0;
    std::byte* data = nullptr;  // null: the message is a part of the sum
    bool from_window = false;
    bool is_direct = false;  // a stream puts the payload into `data`
    bool has_header = false;
    uint64_t address = 0;  // payload address in the header
    size_t num_done = 0;   // bytes of payload
    bool is_done = false;
  };

  static void ShowOutgoing(const Outgoing& outgoing, const Ring& way, size_t reader,
                           PeerProgress* shown);
  bool Push(Outgoing& outgoing, const std::vector<Peer>& peers);
  static bool PushHeader(Outgoing& outgoing, const std::vector<Peer>& peers);
  static void PushPayload(Outgoing& outgoing, const Ring& way);
  static void PushDirectly(Outgoing& outgoing, const Peer& peer);
  absl::StatusOr<bool> PullHeader(Incoming& incoming, const Peer& peer);
  bool Pull(Incoming& incoming, Peer& peer);
  static void AwaitDirectly(Incoming& incoming, const Peer& peer);
  static bool PullDirectly(Incoming& incoming, const Peer& peer);
  static bool PullFromRing(Incoming& incoming, const Peer& peer);
  static bool PullInPlace(Incoming& incoming, Peer& peer);
  bool Fold(std::vector<Peer>& peers);
  size_t FoldableBytes(const std::vector<Peer>& peers) const;
  bool Finish(Incoming& incoming, const Peer& peer);
  static std::vector<int> FindBlockers(const std::vector<Peer>& peers, int owner);
  static std::vector<int> FindTakers(const std::vector<Peer>& peers, const Outgoing& outgoing);
  absl::Status CheckOtherWay(const Incoming& incoming, const Peer& peer) const;
  static const Ring& Way(const Outgoing& outgoing, const std::vector<Peer>& peers) {
    return outgoing.to_all ? peers[outgoing.peer].window : peers[outgoing.peer].outbox;
  }
  static const Ring& Source(const Incoming& incoming, const Peer& peer) {
    return incoming.from_window ? peer.window : peer.inbox;
  }
  static void Take(const Incoming& incoming, const Peer& peer, size_t num_bytes);

  const MessageHeader call_;
  Sum sum_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<const std::byte*> sources_;  // for the piece that is being summed
  size_t num_open_ = 0;                    // messages that are not done
};

}  // namespace megascale::comm
