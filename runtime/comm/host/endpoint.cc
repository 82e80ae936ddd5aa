#include "runtime/comm/host/endpoint.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

// How often a waiting member checks that its peers live: a killed process rings no doorbell.
constexpr absl::Duration kPeerCheckInterval = absl::Milliseconds(100);

// How often it asks whether their machines confirm what was sent, as a share of how long they may
// not. It costs a system call for each peer.
constexpr double kMachineCheckShare = 1.0 / 16;

std::string RankList(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

// Returns the notice of a member that gave up as an error. Blames the member itself unless it
// blames others.
absl::Status NoticeStatus(const AbortNotice& notice, int world_rank) {
  const uint32_t num_blamed = std::min<uint32_t>(notice.num_blamed, AbortNotice::kBlamedMax);
  const size_t text_bytes = std::min<size_t>(notice.text_bytes, AbortNotice::kTextMax);
  std::vector<int> blamed(notice.blamed, notice.blamed + num_blamed);
  if (blamed.empty()) blamed.push_back(world_rank);
  return Blame(absl::AbortedError(absl::StrCat(
                   "rank ", world_rank, " gave up: ", absl::string_view(notice.text, text_bytes))),
               blamed);
}

}  // namespace

absl::Status Endpoint::Run(Exchange& exchange, absl::Duration deadline) {
  absl::Status status = RunToEnd(exchange, deadline);
  if (status.ok()) return status;
  // The caller may now free the memory that it lent to the streams.
  for (const Peer& peer : peers_) {
    if (peer.stream != nullptr) peer.stream->Revoke();
  }
  return status;
}

absl::Status Endpoint::RunToEnd(Exchange& exchange, absl::Duration deadline) {
  const absl::Duration begin = base::RealClock().Monotonic();
  absl::Duration next_check = begin + kPeerCheckInterval;
  absl::Duration next_machine_check = begin + unconfirmed_max_ * kMachineCheckShare;
  while (true) {
    if (failed_.load(std::memory_order_acquire)) return failure();
    MeetPeers();
    const uint32_t seen = slot_->doorbell.Count();
    absl::StatusOr<bool> moved = exchange.Progress(peers_);
    if (!moved.ok()) return Fail(base::Annotate(moved.status(), Context(exchange)));
    if (exchange.Done()) return absl::OkStatus();
    Report(exchange, !*moved);
    if (*moved) continue;
    const absl::Duration now = base::RealClock().Monotonic();
    const bool asks_kernel = now >= next_check;
    if (asks_kernel) next_check = now + kPeerCheckInterval;
    if (absl::Status gone = FindGonePeer(&exchange, asks_kernel); !gone.ok()) {
      // Messages that the peer sent before it ended still count.
      moved = exchange.Progress(peers_);
      if (!moved.ok()) return Fail(base::Annotate(moved.status(), Context(exchange)));
      if (*moved) continue;
      return Fail(Blame(base::Annotate(gone, Context(exchange)), BlamedRanks(gone)));
    }
    if (now >= next_machine_check) {
      next_machine_check = now + unconfirmed_max_ * kMachineCheckShare;
      if (absl::Status silent = FindSilentMachine(exchange); !silent.ok()) {
        return Fail(base::Annotate(silent, Context(exchange)));
      }
    }
    if (now >= deadline) return Fail(DeadlineError(exchange));
    slot_->doorbell.Wait(seen, std::min(deadline, next_check) - now);
  }
}

void Endpoint::ReportTo(CallProgress* progress, int channel) {
  progress_ = progress;
  channel_ = channel;
  shown_.reserve(peers_.size());
  others_.reserve(peers_.size());
}

void Endpoint::Report(const Exchange& exchange, bool waits) {
  if (progress_ == nullptr) return;
  exchange.ShowProgress(peers_, index_, waits, &shown_);
  others_.clear();
  for (const PeerProgress& peer : shown_) {
    if (peer.send_bytes + peer.receive_bytes > 0) others_.push_back(peer);
  }
  progress_->Update(channel_, others_);
}

void Endpoint::Abort(const absl::Status& reason) {
  const std::vector<int> blamed = BlamedRanks(reason);
  absl::Status status = absl::AbortedError(reason.message());
  Fail(blamed.empty() ? status : Blame(status, blamed)).IgnoreError();
}

absl::Status Endpoint::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

absl::Status Endpoint::Fail(absl::Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  failure_ = status;
  slot_->notice = MakeNotice(status);
  slot_->state.store(PeerState::kAborted, std::memory_order_release);
  failed_.store(true, std::memory_order_release);
  slot_->doorbell.Bump();
  for (const Peer& peer : peers_) {
    if (peer.slot != nullptr) peer.slot->doorbell.Bump();
    if (peer.stream != nullptr) peer.pump->SendAbort(peer.stream, slot_->notice);
  }
  return status;
}

void Endpoint::MeetPeers() {
  if (has_met_all_) return;
  has_met_all_ = true;
  for (int i = 0; i < size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.slot == nullptr || peer.process.is_met()) continue;
    peer.process.Meet(peer.slot->card);
    has_met_all_ &= peer.process.is_met();
    if (peer.process.can_read() && i < 64) {
      slot_->readable.fetch_or(uint64_t{1} << i, std::memory_order_release);
    }
  }
}

absl::Status Endpoint::FindGonePeer(const Exchange* exchange, bool asks_kernel) const {
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    const Peer& peer = peers_[i];
    const PeerState state = peer.state();
    if (state == PeerState::kAborted) return NoticeStatus(peer.notice(), peer.world_rank);
    const bool is_closed = state == PeerState::kClosed;
    const bool has_ended = asks_kernel && peer.process.HasEnded();
    if ((is_closed || has_ended) && (exchange == nullptr || exchange->Needs(i, peers_))) {
      const char* how =
          is_closed ? " closed its end: its process ended, or left early" : ": its process ended";
      return Blame(absl::AbortedError(absl::StrCat("rank ", peer.world_rank, how)),
                   {peer.world_rank});
    }
  }
  return absl::OkStatus();
}

// A rank waits for the machine, and not for a rank there, if the kernel here sends again and again.
absl::Status Endpoint::FindSilentMachine(const Exchange& exchange) {
  std::vector<int> silent;
  for (int i = 0; i < size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.stream == nullptr || peer.stream->UnconfirmedFor() <= unconfirmed_max_) continue;
    if (exchange.Needs(i, peers_)) silent.push_back(peer.world_rank);
  }
  if (silent.empty()) return absl::OkStatus();
  return BlameLinks(absl::DeadlineExceededError(absl::StrCat(
                        "the machine of ", RankList(silent), " has confirmed nothing for ",
                        absl::FormatDuration(unconfirmed_max_))),
                    silent);
}

absl::Status Endpoint::FindFailure(bool asks_kernel) const {
  if (failed_.load(std::memory_order_acquire)) return failure();
  return FindGonePeer(nullptr, asks_kernel);
}

bool Endpoint::HasCall(uint64_t instruction_id) const {
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    for (const Ring* ring : {&peers_[i].inbox, &peers_[i].window}) {
      if (!*ring) continue;
      const absl::Span<const std::byte> bytes = ring->ReadableSpan();
      if (bytes.size() < sizeof(MessageHeader)) continue;
      MessageHeader header;
      std::memcpy(&header, bytes.data(), sizeof(header));
      if (header.instruction_id == instruction_id) return true;
    }
  }
  return false;
}

absl::Status Endpoint::DeadlineError(const Exchange& exchange) const {
  const Exchange::Missing missing = exchange.FindMissing(peers_);
  const std::vector<int> absent = WorldRanks(missing.absent);
  const std::vector<int> partial = WorldRanks(missing.partial);
  std::string text = absl::StrCat(Context(exchange), ": timed out");
  if (!absent.empty()) absl::StrAppend(&text, "; not arrived: ", RankList(absent));
  if (!partial.empty()) absl::StrAppend(&text, "; stopped midway: ", RankList(partial));
  return Blame(absl::DeadlineExceededError(text), absent.empty() ? partial : absent);
}

std::string Endpoint::Context(const Exchange& exchange) const {
  return absl::StrCat("group ", name_, ", rank ", WorldRank(index_), ", ",
                      Describe(exchange.call()));
}

std::vector<int> Endpoint::WorldRanks(const std::vector<int>& indices) const {
  std::vector<int> ranks;
  for (const int index : indices) ranks.push_back(WorldRank(index));
  return ranks;
}

}  // namespace megascale::comm
