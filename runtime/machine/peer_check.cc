#include "runtime/machine/peer_check.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/clock.h"
#include "runtime/base/median.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/comm/store/store.h"
#include "runtime/tensor/tensor.h"

namespace megascale::machine {
namespace {

using comm::CallInfo;
using megascale::agent::v1::ExchangeRequest;
using tensor::HostVector;

constexpr char kGroup[] = "exchange";
constexpr int64_t kAttempt = 1;
constexpr int kPings = 16;

HostVector Words(std::vector<float>* words) { return HostVector::Of(absl::MakeSpan(*words)); }

// The names of the members that an error blames; of all others if it blames none.
std::string NamesOf(const ExchangeRequest& exchange, const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (int i = 0; i < exchange.node_ids_size(); ++i) {
    const bool is_blamed = std::find(ranks.begin(), ranks.end(), i) != ranks.end();
    if (i != exchange.member() && (ranks.empty() || is_blamed)) {
      names.push_back(exchange.node_ids(i));
    }
  }
  return absl::StrJoin(names, ", ");
}

// Whether such an error comes from the members and the network between them, if not from the store.
bool IsOfExchange(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnavailable:
      return true;
    default:
      return false;
  }
}

// Passes calls on, and notes that one failed by the fault of the store, or of the way to it. That a
// wait ran out is none: the other member did not come.
class NotingStore : public comm::Store {
 public:
  explicit NotingStore(comm::Store* store) : store_(*store) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return Note(store_.Set(key, value));
  }
  absl::StatusOr<std::string> Get(const std::string& key) override {
    absl::StatusOr<std::string> value = store_.Get(key);
    if (!absl::IsNotFound(value.status())) (void)Note(value.status());
    return value;
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount,
                              const std::string& request_id) override {
    absl::StatusOr<int64_t> sum = store_.Add(key, amount, request_id);
    (void)Note(sum.status());
    return sum;
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    absl::StatusOr<std::string> value = store_.Wait(key, timeout);
    if (!absl::IsDeadlineExceeded(value.status())) (void)Note(value.status());
    return value;
  }
  absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                   absl::Duration timeout) override {
    absl::StatusOr<std::vector<std::string>> values = store_.WaitAll(keys, timeout);
    if (!absl::IsDeadlineExceeded(values.status())) (void)Note(values.status());
    return values;
  }
  absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(
      const std::vector<std::string>& keys) override {
    absl::StatusOr<std::vector<std::optional<std::string>>> values = store_.GetAll(keys);
    (void)Note(values.status());
    return values;
  }
  bool has_failed() const { return has_failed_; }

 private:
  absl::Status Note(absl::Status status) {
    if (!status.ok()) has_failed_ = true;
    return status;
  }

  comm::Store& store_;
  std::atomic<bool> has_failed_ = false;
};

class Exchange {
 public:
  explicit Exchange(const PeerOptions& options)
      : options_(options),
        asked_(options.exchange),
        store_(options.store),
        num_members_(asked_.node_ids_size()),
        block_words_(options.block_bytes / sizeof(float)) {}

  // Errors: what went wrong, with the name of the other machine where one is known.
  absl::Status Run();
  // Whether the error of Run tells of the members and the network between them, and not of this
  // machine or of the store alone.
  bool IsOfPair(const absl::Status& status) const {
    return !store_.has_failed() && IsOfExchange(status);
  }
  bool is_connected() const { return members_ != nullptr; }
  PeerResult TakeResult() { return std::move(result_); }

 private:
  absl::Status Connect();
  absl::Status MeasureLatency();
  absl::Status MeasureRate();
  absl::Status SendBlocks();
  // Returns whether member 0 says that another round follows.
  absl::StatusOr<bool> GoesOn();
  void Compare();
  uint64_t SeedOf(int from, int to) const;
  CallInfo Call() const { return {.instruction_id = 0, .timeout = options_.call_timeout}; }

  const PeerOptions& options_;
  const ExchangeRequest& asked_;
  NotingStore store_;
  const int num_members_;
  const size_t block_words_;  // of 4 bytes, to or from each member
  std::unique_ptr<base::SharedMemory> region_;
  std::unique_ptr<comm::Fabric> fabric_;
  std::unique_ptr<comm::HostCommunicator> members_;
  int64_t round_ = 0;
  std::vector<float> sent_[2];  // of even and odd rounds, which differ: what is old is found
  std::vector<float> received_;
  absl::Duration sending_;
  PeerResult result_;
};

absl::Status Exchange::Run() {
  RETURN_IF_ERROR(base::Annotate(Connect(), "does not connect"));
  RETURN_IF_ERROR(base::Annotate(MeasureLatency(), "does not answer"));
  return base::Annotate(MeasureRate(), "stops in the middle");
}

absl::Status Exchange::Connect() {
  if (num_members_ < 2 || asked_.member() < 0 || asked_.member() >= num_members_) {
    return absl::InvalidArgumentError(
        absl::StrCat("member ", asked_.member(), " of ", num_members_, " machines"));
  }
  comm::FabricOptions options;
  options.rank = asked_.member();
  options.placements = {asked_.node_ids().begin(), asked_.node_ids().end()};
  options.job_id = asked_.group();
  options.attempt = kAttempt;
  options.secret = asked_.secret();
  options.binds_address = asked_.binds_address();
  comm::GroupSpec group;
  group.name = kGroup;
  for (int i = 0; i < num_members_; ++i) group.ranks.push_back(i);
  const std::string& own = asked_.node_ids(asked_.member());
  const comm::RegionSpec spec = {{group}, options.placements, own, options.job_id, kAttempt};
  ASSIGN_OR_RETURN(region_, base::SharedMemory::Create(
                                kGroup, comm::RegionBytes(spec.groups, spec.placements, own)));
  RETURN_IF_ERROR(comm::FormatRegion(spec, *region_));
  options.region = region_.get();
  options.store = &store_;
  options.socket_directory = options_.socket_directory;
  options.tcp_address = options_.interface;
  options.connect_timeout = options_.connect_timeout;
  options.default_timeout = options_.call_timeout;
  options.close_timeout = absl::Seconds(1);
  ASSIGN_OR_RETURN(fabric_, comm::Fabric::Create(std::move(options), {group}));
  RETURN_IF_ERROR(fabric_->Connect());
  ASSIGN_OR_RETURN(members_, fabric_->Make(kGroup));
  return absl::OkStatus();
}

absl::Status Exchange::MeasureLatency() {
  uint64_t word = 0;
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(&word), sizeof(word));
  if (members_->rank() != 0) {
    for (int i = 0; i < kPings; ++i) {
      RETURN_IF_ERROR(members_->Recv(0, bytes, Call()));
      RETURN_IF_ERROR(members_->Send(0, bytes, Call()));
    }
    return absl::OkStatus();
  }
  std::vector<double> seconds;
  for (int peer = 1; peer < num_members_; ++peer) {
    for (int i = 0; i < kPings; ++i) {
      const absl::Duration begin = base::RealClock().Monotonic();
      RETURN_IF_ERROR(members_->Send(peer, bytes, Call()));
      RETURN_IF_ERROR(members_->Recv(peer, bytes, Call()));
      seconds.push_back(absl::ToDoubleSeconds(base::RealClock().Monotonic() - begin));
    }
  }
  result_.latency_seconds = base::UpperMedian(std::move(seconds));
  return absl::OkStatus();
}

absl::StatusOr<bool> Exchange::GoesOn() {
  const absl::Duration time_max =
      absl::Seconds(asked_.time_max().seconds()) + absl::Nanoseconds(asked_.time_max().nanos());
  const int64_t sent_bytes = round_ * static_cast<int64_t>(options_.block_bytes);
  std::vector<float> word = {sending_ < time_max && sent_bytes < asked_.volume_bytes() ? 1.0F
                                                                                       : 0.0F};
  RETURN_IF_ERROR(members_->Broadcast(Words(&word), 0, Call()));
  return word[0] != 0;
}

uint64_t Exchange::SeedOf(int from, int to) const {
  return (static_cast<uint64_t>(from) << 32) + (static_cast<uint64_t>(to) << 1) +
         static_cast<uint64_t>(round_ % 2);
}

absl::Status Exchange::MeasureRate() {
  const size_t num_words = block_words_ * static_cast<size_t>(num_members_);
  for (round_ = 0; round_ < 2; ++round_) {
    std::vector<float>& blocks = sent_[round_];
    blocks.resize(num_words);
    for (int to = 0; to < num_members_; ++to) {
      FillPattern(SeedOf(members_->rank(), to),
                  blocks.data() + static_cast<size_t>(to) * block_words_, options_.block_bytes);
    }
  }
  received_.resize(num_words);
  round_ = 0;
  for (bool goes_on = true; goes_on;) {
    RETURN_IF_ERROR(SendBlocks());
    Compare();
    ++round_;
    ASSIGN_OR_RETURN(goes_on, GoesOn());
  }
  return members_->Barrier(Call());
}

absl::Status Exchange::SendBlocks() {
  const absl::Duration begin = base::RealClock().Monotonic();
  RETURN_IF_ERROR(members_->AllToAll(Words(&sent_[round_ % 2]), Words(&received_), Call()));
  sending_ += base::RealClock().Monotonic() - begin;
  const auto blocks = static_cast<double>((num_members_ - 1) * (round_ + 1));
  result_.part.bytes_per_second =
      RateOf(blocks * static_cast<double>(options_.block_bytes), sending_);
  return absl::OkStatus();
}

// The exchange goes on after a wrong byte, so that the others do not find a broken connection.
void Exchange::Compare() {
  for (int from = 0; from < num_members_; ++from) {
    if (from == members_->rank()) continue;
    float* const block = received_.data() + static_cast<size_t>(from) * block_words_;
    if (options_.tamper) options_.tamper(block, options_.block_bytes);
    const std::string wrong =
        FindWrongBytes(SeedOf(from, members_->rank()), block, options_.block_bytes);
    if (wrong.empty() || !result_.part.failure.empty()) continue;
    result_.part.failure =
        absl::StrCat("block ", round_, " from ", asked_.node_ids(from), ": ", wrong);
  }
}

}  // namespace

PeerResult CheckPeers(const PeerOptions& options) {
  Exchange exchange(options);
  const absl::Status status = exchange.Run();
  PeerResult result = exchange.TakeResult();
  if (status.ok() || !result.part.failure.empty()) return result;
  if (exchange.IsOfPair(status)) {
    result.part.failure =
        absl::StrCat(NamesOf(options.exchange, comm::BlamedRanks(status)), " ", status.message());
    result.peer_missing = !exchange.is_connected();
  } else {
    result.part.note = absl::StrCat("not tested: ", status.message());
  }
  return result;
}

std::string PartNameOf(const ExchangeRequest& exchange) {
  return absl::StrCat("exchange with ", NamesOf(exchange, {}));
}

}  // namespace megascale::machine
