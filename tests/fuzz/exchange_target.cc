// A worker writes nonsense into its exchange board: what the agent reads of it is bounded, and what
// the diagnosis makes of it blames no rank but this one.
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/diagnose/exchange_state.h"
#include "runtime/telemetry/exchange_board.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

constexpr int kRanks = 4;
constexpr int kLiar = kRanks - 1;

void CheckRecord(const telemetry::ExchangeRecord& record) {
  MEGASCALE_CHECK(record.group.size() <= telemetry::kExchangeNameMax);
  MEGASCALE_CHECK(record.operation <= comm::Operation::kRecv);
  MEGASCALE_CHECK(record.peers.size() <= static_cast<size_t>(telemetry::kExchangePeers));
  MEGASCALE_CHECK(record.begin_nanos >= 0 && record.end_nanos >= 0);
  for (const char c : record.group) MEGASCALE_CHECK(c >= ' ' && c < 127);
  for (const telemetry::PeerExchange& peer : record.peers) {
    const comm::PeerProgress& progress = peer.progress;
    MEGASCALE_CHECK(progress.delivered_bytes >= 0);
    MEGASCALE_CHECK(progress.delivered_bytes <= progress.transmitted_bytes);
    MEGASCALE_CHECK(progress.transmitted_bytes <= progress.send_bytes);
    MEGASCALE_CHECK(progress.send_bytes <= telemetry::kExchangeBytesMax);
    MEGASCALE_CHECK(progress.received_bytes <= progress.receive_bytes);
  }
}

// An all-gather whose other members have moved all their bytes.
std::vector<diagnose::ShownCall> HonestCalls() {
  std::vector<diagnose::ShownCall> calls;
  for (int rank = 0; rank < kRanks; ++rank) {
    diagnose::ShownCall call;
    call.rank = rank;
    call.is_known = true;
    call.is_inside = true;
    for (int peer = 0; rank != kLiar && peer < kRanks; ++peer) {
      if (peer != rank) call.flows.push_back({peer, 64, 64, 64, 64, 64, 1});
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace

// The input is repeated over the whole board.
void RunExchanges(absl::string_view input) {
  if (input.empty()) return;
  static base::SharedMemory* const region =
      base::SharedMemory::Create("fuzz", telemetry::ExchangeBytes(1)).value().release();
  auto* const bytes = reinterpret_cast<char*>(region->data());
  for (size_t i = 0; i < region->size_bytes(); i += input.size()) {
    std::copy_n(input.data(), std::min(input.size(), region->size_bytes() - i), bytes + i);
  }
  telemetry::ExchangeReader reader(region, 0);
  std::vector<telemetry::ExchangeRecord> ended;
  reader.Drain(&ended);
  MEGASCALE_CHECK(ended.size() <= static_cast<size_t>(telemetry::kCompletedExchanges));
  for (const telemetry::ExchangeRecord& record : ended) CheckRecord(record);
  for (const telemetry::ExchangeRecord& record : reader.Running()) {
    CheckRecord(record);
    std::vector<diagnose::ShownCall> calls = HonestCalls();
    for (const telemetry::PeerExchange& peer : record.peers) {
      const comm::PeerProgress& shown = peer.progress;
      calls[kLiar].flows.push_back({shown.world_rank, shown.send_bytes, shown.transmitted_bytes,
                                    shown.delivered_bytes, shown.receive_bytes,
                                    shown.received_bytes, 1});
    }
    const diagnose::ExchangeVerdict verdict = diagnose::ExplainExchange(calls);
    MEGASCALE_CHECK(verdict.rank == -1 || verdict.rank == kLiar);
    for (const diagnose::StuckFlow& flow : verdict.stuck) {
      MEGASCALE_CHECK(flow.from == kLiar || flow.to == kLiar);
    }
  }
}

}  // namespace megascale::fuzz
