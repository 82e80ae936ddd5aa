#include "runtime/telemetry/exchange_board.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "runtime/base/check.h"

namespace megascale::telemetry {
namespace {

using comm::PeerProgress;
using Word = std::atomic<uint64_t>;

constexpr size_t kNameWords = kExchangeNameMax / sizeof(uint64_t);
constexpr size_t kCallWords = 6;
constexpr size_t kPeerWords = 7;
constexpr int kCallReadAttempts = 4;
constexpr auto kLastOperation = static_cast<uint64_t>(comm::Operation::kRecv);

struct PeerSlot {
  std::array<Word, kPeerWords> words;
};

// A call: sequence, instruction, operation and peer, bytes, begin, end (its lowest bit: failed).
using CallSlot = std::array<Word, kCallWords>;

void Store(CallSlot& slot, const std::array<uint64_t, kCallWords>& values) {
  for (size_t i = 0; i < kCallWords; ++i) slot[i].store(values[i], std::memory_order_relaxed);
}

int64_t Bounded(uint64_t value) {
  return static_cast<int64_t>(std::min(value, static_cast<uint64_t>(kExchangeBytesMax)));
}

int64_t Time(uint64_t value) { return static_cast<int64_t>(value & ~(uint64_t{1} << 63)); }

int RankOf(uint64_t value) {
  const auto rank = static_cast<int32_t>(static_cast<uint32_t>(value));
  return rank < -1 ? -1 : rank;
}

uint64_t PackCall(const comm::CallEvent& call) {
  return static_cast<uint64_t>(call.operation) << 32 | static_cast<uint32_t>(call.peer);
}

ExchangeRecord Unpack(const std::array<uint64_t, kCallWords>& words) {
  ExchangeRecord record;
  record.sequence = words[0];
  record.instruction = words[1];
  record.operation = static_cast<comm::Operation>(std::min(words[2] >> 32, kLastOperation));
  record.peer = RankOf(words[2]);
  record.payload_bytes = Bounded(words[3]);
  record.begin_nanos = Time(words[4]);
  record.end_nanos = Time(words[5]) & ~int64_t{1};
  record.ok = (words[5] & 1) == 0;
  return record;
}

std::array<uint64_t, kCallWords> Load(const CallSlot& slot) {
  std::array<uint64_t, kCallWords> words;
  for (size_t i = 0; i < kCallWords; ++i) words[i] = slot[i].load(std::memory_order_relaxed);
  return words;
}

// A part is never more than its whole.
PeerExchange UnpackPeer(const PeerSlot& slot) {
  std::array<uint64_t, kPeerWords> words;
  for (size_t i = 0; i < kPeerWords; ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
  PeerExchange peer;
  peer.progress.world_rank = RankOf(words[0]);
  peer.progress.send_bytes = Bounded(words[1]);
  peer.progress.transmitted_bytes = std::min(Bounded(words[2]), peer.progress.send_bytes);
  peer.progress.delivered_bytes = std::min(Bounded(words[3]), peer.progress.transmitted_bytes);
  peer.progress.receive_bytes = Bounded(words[4]);
  peer.progress.received_bytes = std::min(Bounded(words[5]), peer.progress.receive_bytes);
  peer.changed_nanos = Time(words[6]);
  return peer;
}

// A channel. Its version is odd while no call runs, and changes at every begin and end.
struct alignas(64) Channel {
  Word version;
  CallSlot call;
  Word num_peers;
  std::array<Word, kNameWords> name;
  std::array<PeerSlot, kExchangePeers> peers;
};

struct alignas(64) Ended {
  Word number;  // of the call that is here, from 1; 0: it is being overwritten
  Word channel;
  CallSlot call;
};

std::string NameOf(const Channel& channel) {
  std::array<char, kExchangeNameMax> name;
  for (size_t i = 0; i < kNameWords; ++i) {
    const uint64_t word = channel.name[i].load(std::memory_order_relaxed);
    std::memcpy(name.data() + i * sizeof(word), &word, sizeof(word));
  }
  std::string text(name.data(), ::strnlen(name.data(), name.size()));
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

// No rank makes more calls; a broken one may claim any number.
constexpr int64_t kCallsMax = int64_t{1} << 56;

}  // namespace

struct alignas(64) ExchangeWriter::Board {
  std::atomic<int64_t> num_ended;
  std::atomic<int32_t> num_channels;
  std::array<Channel, kExchangeChannels> channels;
  std::array<Ended, kCompletedExchanges> ended;

  static Board* Find(const base::SharedMemory& region, int index) {
    const size_t from_end = ExchangeBytes(index + 1);
    MEGASCALE_CHECK(index >= 0 && from_end <= region.size_bytes());
    return reinterpret_cast<Board*>(region.data() + region.size_bytes() - from_end);
  }
};

size_t ExchangeBytes(int num_ranks) {
  // As large as ExchangeWriter::Board, which its constructor checks.
  constexpr size_t kBoardBytes =
      64 + kExchangeChannels * sizeof(Channel) + kCompletedExchanges * sizeof(Ended);
  return static_cast<size_t>(num_ranks) * kBoardBytes;
}

ExchangeWriter::ExchangeWriter(base::SharedMemory* region, int index, std::function<int64_t()> now)
    : board_(Board::Find(*region, index)), now_(std::move(now)) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  MEGASCALE_CHECK(sizeof(Board) == ExchangeBytes(1));
  for (Channel& channel : board_->channels) channel.version.store(1, std::memory_order_relaxed);
  for (Ended& ended : board_->ended) ended.number.store(0, std::memory_order_relaxed);
  board_->num_ended.store(0, std::memory_order_relaxed);
  board_->num_channels.store(0, std::memory_order_release);
}

int ExchangeWriter::Register(absl::string_view group) {
  const int32_t index = board_->num_channels.load(std::memory_order_relaxed);
  if (index >= kExchangeChannels) return -1;
  Channel& channel = board_->channels[static_cast<size_t>(index)];
  std::array<char, kExchangeNameMax> name = {};
  std::memcpy(name.data(), group.data(), std::min(group.size(), name.size()));
  for (size_t i = 0; i < kNameWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, name.data() + i * sizeof(word), sizeof(word));
    channel.name[i].store(word, std::memory_order_relaxed);
  }
  board_->num_channels.store(index + 1, std::memory_order_release);
  return index;
}

void ExchangeWriter::Begin(int index, const comm::CallEvent& call) {
  if (index < 0) return;
  Channel& channel = board_->channels[static_cast<size_t>(index)];
  const uint64_t version = channel.version.load(std::memory_order_relaxed);
  const auto now = static_cast<uint64_t>(now_());
  // A reader that sees a word written below also sees that the call before has ended.
  std::atomic_thread_fence(std::memory_order_release);
  channel.num_peers.store(0, std::memory_order_relaxed);
  Store(channel.call,
        {call.sequence, call.instruction_id, PackCall(call), call.payload_bytes, now, 0});
  channel.version.store(version + 1, std::memory_order_release);
}

void ExchangeWriter::Update(int index, absl::Span<const PeerProgress> peers) {
  if (index < 0) return;
  Channel& channel = board_->channels[static_cast<size_t>(index)];
  const auto now = static_cast<uint64_t>(now_());
  const size_t before = channel.num_peers.load(std::memory_order_relaxed);
  const size_t count = std::min<size_t>(peers.size(), kExchangePeers);
  for (size_t i = 0; i < count; ++i) {
    const PeerProgress& peer = peers[i];
    const std::array<uint64_t, kPeerWords - 1> values = {
        static_cast<uint32_t>(peer.world_rank),        static_cast<uint64_t>(peer.send_bytes),
        static_cast<uint64_t>(peer.transmitted_bytes), static_cast<uint64_t>(peer.delivered_bytes),
        static_cast<uint64_t>(peer.receive_bytes),     static_cast<uint64_t>(peer.received_bytes)};
    auto& words = channel.peers[i].words;
    bool has_changed = i >= before;
    for (size_t k = 0; k < values.size(); ++k) {
      if (!has_changed && words[k].load(std::memory_order_relaxed) == values[k]) continue;
      has_changed = true;
      words[k].store(values[k], std::memory_order_relaxed);
    }
    if (has_changed) words[kPeerWords - 1].store(now, std::memory_order_relaxed);
  }
  channel.num_peers.store(count, std::memory_order_release);
}

void ExchangeWriter::End(int index, const comm::CallEvent& call) {
  if (index < 0) return;
  Channel& channel = board_->channels[static_cast<size_t>(index)];
  const uint64_t end = (static_cast<uint64_t>(now_()) & ~uint64_t{1}) | (call.ok ? 0 : 1);
  std::array<uint64_t, kCallWords> words = Load(channel.call);
  words[kCallWords - 1] = end;
  // Channels have threads of their own, which take numbers in turn.
  const int64_t number = board_->num_ended.fetch_add(1, std::memory_order_relaxed);
  Ended& ended = board_->ended[static_cast<size_t>(number % kCompletedExchanges)];
  ended.number.store(0, std::memory_order_relaxed);
  // A reader that sees a word written below also sees that the record is being overwritten.
  std::atomic_thread_fence(std::memory_order_release);
  ended.channel.store(static_cast<uint64_t>(index), std::memory_order_relaxed);
  Store(ended.call, words);
  ended.number.store(static_cast<uint64_t>(number) + 1, std::memory_order_release);
  channel.version.fetch_add(1, std::memory_order_release);
}

ExchangeReader::ExchangeReader(const base::SharedMemory* region, int index)
    : board_(ExchangeWriter::Board::Find(*region, index)) {}

std::vector<ExchangeRecord> ExchangeReader::Running() const {
  std::vector<ExchangeRecord> running;
  const int32_t count = std::clamp(board_->num_channels.load(std::memory_order_acquire), 0,
                                   static_cast<int32_t>(kExchangeChannels));
  for (int32_t i = 0; i < count; ++i) {
    const Channel& channel = board_->channels[static_cast<size_t>(i)];
    for (int attempt = 0; attempt < kCallReadAttempts; ++attempt) {
      const uint64_t version = channel.version.load(std::memory_order_acquire);
      if (version % 2 != 0) break;
      ExchangeRecord record = Unpack(Load(channel.call));
      record.group = NameOf(channel);
      record.end_nanos = 0;
      record.ok = true;
      const auto num_peers =
          std::min<uint64_t>(channel.num_peers.load(std::memory_order_acquire), kExchangePeers);
      for (size_t k = 0; k < num_peers; ++k) record.peers.push_back(UnpackPeer(channel.peers[k]));
      std::atomic_thread_fence(std::memory_order_acquire);
      if (channel.version.load(std::memory_order_relaxed) != version) continue;
      running.push_back(std::move(record));
      break;
    }
  }
  return running;
}

int64_t ExchangeReader::Drain(std::vector<ExchangeRecord>* ended) {
  const int64_t end =
      std::clamp<int64_t>(board_->num_ended.load(std::memory_order_acquire), 0, kCallsMax);
  if (end < next_) next_ = 0;  // a new writer emptied the board
  const int64_t first = std::max(next_, end - kCompletedExchanges);
  int64_t num_lost = first - next_;
  for (next_ = first; next_ < end; ++next_) {
    const Ended& slot = board_->ended[static_cast<size_t>(next_ % kCompletedExchanges)];
    const uint64_t expected = static_cast<uint64_t>(next_) + 1;
    if (slot.number.load(std::memory_order_acquire) != expected) {
      if (next_ == end - 1) break;  // it is being written: the next call decides
      ++num_lost;
      continue;
    }
    const uint64_t channel =
        std::min<uint64_t>(slot.channel.load(std::memory_order_relaxed), kExchangeChannels - 1);
    ExchangeRecord record = Unpack(Load(slot.call));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) != expected) {
      ++num_lost;
      continue;
    }
    record.group = NameOf(board_->channels[channel]);
    ended->push_back(std::move(record));
  }
  return num_lost;
}

}  // namespace megascale::telemetry
