#include "controlplane/agent/evidence/recent_exchanges.h"

#include <algorithm>
#include <utility>

namespace megascale::agent {
namespace {

using telemetry::ExchangeRecord;
using telemetry::v1::ExchangeState;

// A broken rank may claim to have written any number again and again.
constexpr int64_t kLostMax = int64_t{1} << 61;

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

}  // namespace

void RecentExchanges::Drain() {
  drained_.clear();
  num_lost_ = std::min(num_lost_ + reader_.Drain(&drained_), kLostMax);
  for (ExchangeRecord& record : drained_) ended_.push_back(std::move(record));
  while (ended_.size() > kHistoryCalls) ended_.pop_front();
}

telemetry::v1::Evidence RecentExchanges::Read() const {
  telemetry::v1::Evidence evidence;
  evidence.set_num_lost(num_lost_);
  for (const ExchangeRecord& record : reader_.Running()) {
    if (record.peers.empty()) Fill(record, evidence.add_running());
    for (const telemetry::PeerExchange& peer : record.peers) {
      ExchangeState* state = evidence.add_running();
      Fill(record, state);
      state->set_peer(peer.progress.world_rank);
      state->set_send_bytes(peer.progress.send_bytes);
      state->set_transmitted_bytes(peer.progress.transmitted_bytes);
      state->set_delivered_bytes(peer.progress.delivered_bytes);
      state->set_receive_bytes(peer.progress.receive_bytes);
      state->set_received_bytes(peer.progress.received_bytes);
      state->set_changed_nanos(peer.changed_nanos);
    }
  }
  for (const ExchangeRecord& record : ended_) {
    ExchangeState* state = evidence.add_completed();
    Fill(record, state);
    state->set_send_bytes(record.payload_bytes);
  }
  return evidence;
}

}  // namespace megascale::agent
