#include "controlplane/agent/evidence/recent_exchanges.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "controlplane/agent/evidence/recent_spans.h"

namespace megascale::agent {
namespace {

using telemetry::ExchangeRecord;
using telemetry::v1::ExchangeState;

void Fill(const ExchangeRecord& record, ExchangeState* state) {
  state->set_group(record.group);
  state->set_operation(static_cast<uint32_t>(record.operation));
  state->set_sequence(record.sequence);
  state->set_instruction(record.instruction);
  state->set_peer(record.peer);
  state->set_begin_nanos(record.begin_nanos);
  state->set_end_nanos(record.end_nanos);
  state->set_ok(record.end_nanos != 0 && record.ok);
}

void Fill(const ExchangeRecord& record, const telemetry::PeerExchange& peer, ExchangeState* state) {
  Fill(record, state);
  state->set_peer(peer.progress.world_rank);
  state->set_send_bytes(peer.progress.send_bytes);
  state->set_transmitted_bytes(peer.progress.transmitted_bytes);
  state->set_delivered_bytes(peer.progress.delivered_bytes);
  state->set_receive_bytes(peer.progress.receive_bytes);
  state->set_received_bytes(peer.progress.received_bytes);
  state->set_changed_nanos(peer.changed_nanos);
}

// Returns an entry for each peer of the calls that run, or for the call if it shows none.
std::vector<ExchangeState> StatesOf(const std::vector<ExchangeRecord>& running) {
  std::vector<ExchangeState> states;
  for (const ExchangeRecord& record : running) {
    if (record.peers.empty()) Fill(record, &states.emplace_back());
    for (const telemetry::PeerExchange& peer : record.peers) {
      Fill(record, peer, &states.emplace_back());
    }
  }
  return states;
}

bool HasMoved(const ExchangeState& before, const ExchangeState& now) {
  return before.send_bytes() != now.send_bytes() ||
         before.transmitted_bytes() != now.transmitted_bytes() ||
         before.delivered_bytes() != now.delivered_bytes() ||
         before.receive_bytes() != now.receive_bytes() ||
         before.received_bytes() != now.received_bytes();
}

// A kernel takes bytes for a member that has not come, so only what the member sends shows that it
// has; where it sends nothing, what it takes must do.
bool HasCome(const telemetry::PeerExchange& member) {
  const comm::PeerProgress& progress = member.progress;
  return progress.receive_bytes > 0 ? progress.received_bytes > 0 : progress.delivered_bytes > 0;
}

bool IsMoving(const telemetry::PeerExchange& member) {
  const comm::PeerProgress& progress = member.progress;
  return HasCome(member) && (progress.delivered_bytes < progress.send_bytes ||
                             progress.received_bytes < progress.receive_bytes);
}

// A receive is posted long before its message is due, so only collectives show who waits.
bool IsCollective(const ExchangeRecord& record) {
  return record.operation != comm::Operation::kSend && record.operation != comm::Operation::kRecv;
}

// Returns what the calls that run show at this moment.
RecentExchanges::Shares SharesNow(const std::vector<ExchangeRecord>& running) {
  RecentExchanges::Shares now;
  for (const ExchangeRecord& record : running) {
    if (!IsCollective(record)) continue;
    const auto& members = record.peers;
    // A barrier moves no bytes and shows no members: it lasts until all have come.
    if (members.empty() || !std::all_of(members.begin(), members.end(), HasCome)) now.awaiting = 1;
    if (members.empty()) continue;
    const auto num_moving = std::count_if(members.begin(), members.end(), IsMoving);
    now.transfer = std::max(now.transfer,
                            static_cast<double>(num_moving) / static_cast<double>(members.size()));
  }
  return now;
}

}  // namespace

// Keeps the states that are new or have changed since the last look, and those that have stood
// still for a while.
void RecentExchanges::Sample(int64_t now_nanos) {
  const std::vector<ExchangeRecord> running = reader_.Running();
  const Shares shares = SharesNow(running);
  ++num_looks_;
  sums_.awaiting += shares.awaiting;
  sums_.transfer += shares.transfer;
  decltype(last_) current;
  for (ExchangeState& state : StatesOf(running)) {
    const auto key = std::make_tuple(state.group(), state.sequence(), state.peer());
    const auto found = last_.find(key);
    const bool is_due = found == last_.end() || HasMoved(found->second.state(), state) ||
                        now_nanos - found->second.seen_nanos() >= kStillNanos;
    if (!is_due) {
      current.insert(*found);
      continue;
    }
    telemetry::v1::InFlightSample sample;
    sample.set_seen_nanos(now_nanos);
    *sample.mutable_state() = std::move(state);
    in_flight_.push_back(sample);
    current[key] = std::move(sample);
  }
  last_ = std::move(current);
  while (in_flight_.size() > kInFlightSamples) in_flight_.pop_front();
}

void RecentExchanges::Drain(int64_t now_nanos) {
  drained_.clear();
  num_lost_ = std::min(num_lost_ + reader_.Drain(&drained_), kLostMax);
  for (ExchangeRecord& record : drained_) ended_.push_back(std::move(record));
  while (ended_.size() > kHistoryCalls) ended_.pop_front();
  Sample(now_nanos);
}

RecentExchanges::Shares RecentExchanges::TakeShares() {
  const int num_looks = std::max(1, std::exchange(num_looks_, 0));
  const Shares sums = std::exchange(sums_, {});
  return {.awaiting = sums.awaiting / num_looks, .transfer = sums.transfer / num_looks};
}

telemetry::v1::Evidence RecentExchanges::Read() const {
  telemetry::v1::Evidence evidence;
  evidence.set_num_lost(num_lost_);
  for (ExchangeState& state : StatesOf(reader_.Running())) {
    *evidence.add_running() = std::move(state);
  }
  for (const telemetry::v1::InFlightSample& sample : in_flight_) {
    *evidence.add_in_flight() = sample;
  }
  for (const ExchangeRecord& record : ended_) {
    ExchangeState* state = evidence.add_completed();
    Fill(record, state);
    state->set_send_bytes(record.payload_bytes);
  }
  return evidence;
}

}  // namespace megascale::agent
