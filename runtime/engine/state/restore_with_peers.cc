#include "runtime/engine/state/restore_with_peers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/engine/state/snapshot_shard.h"
#include "runtime/plan/instruction.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

using optim::StateSlice;

// What is sent at once, and what a reader holds in memory for others.
constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr size_t kTextBytes = 1000;
constexpr size_t kProblemsShown = 3;
constexpr size_t kProblemsMax = 16;  // that are kept

enum class Need : uint64_t {
  kNothing,  // it read everything itself
  kReader,
  kGivesUp,
  kNothingMore,  // others read for it
};

// How a rank's own read went, as all others are told.
struct Report {
  Need need = Need::kNothing;
  uint64_t error = 0;      // of the message; 0: none
  uint64_t is_damage = 0;  // 1: the bytes were read, and are not those of the manifest
};
static_assert(sizeof(Report) % sizeof(double) == 0);

// Why a reader could not read a slice, as it tells the rank that it reads for.
struct Problem {
  uint64_t error = 0;
  uint64_t is_damage = 0;
  uint64_t text_bytes = 0;
  std::array<char, kTextBytes> text = {};
};

struct Pair {
  int asker = 0;
  int reader = 0;
};

// Equal for equal messages.
uint64_t ErrorOf(const absl::Status& status) {
  if (status.ok()) return 0;
  return base::Xxh3(status.message().data(), status.message().size());
}

// Returns whether the file itself is damaged. A failed system call may be a fault of this machine.
bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) && base::ErrnoOf(status) == 0;
}

Problem ProblemOf(const absl::Status& status) {
  Problem problem;
  problem.error = ErrorOf(status);
  problem.is_damage = IsDamage(status) ? 1 : 0;
  problem.text_bytes = std::min(status.message().size(), kTextBytes);
  std::memcpy(problem.text.data(), status.message().data(), problem.text_bytes);
  return problem;
}

std::string TextOf(const Problem& problem) {
  const size_t size = std::min<size_t>(problem.text_bytes, kTextBytes);
  return base::Printable(absl::string_view(problem.text.data(), size));
}

template <typename T>
absl::Span<std::byte> BytesOf(T* value) {
  return {reinterpret_cast<std::byte*>(value), sizeof(T)};
}
absl::Span<std::byte> BytesOf(std::vector<uint8_t>* values) {
  return {reinterpret_cast<std::byte*>(values->data()), values->size()};
}
absl::Span<std::byte> BytesOf(const tensor::HostVector& vector) {
  return {vector.as<std::byte>(), static_cast<size_t>(vector.bytes())};
}

// Elements [first, first + count) of a slice, which are sent at once.
struct Block {
  int64_t first = 0;
  int64_t count = 0;
};

// Cuts elements [first, first + count) of a slice into blocks. Both sides cut whole slices, or
// pieces that begin with a block.
std::vector<Block> BlocksOf(int64_t first, int64_t count, tensor::DType dtype) {
  static_assert(device::HostWindow::kPieceBytes % kBlockBytes == 0);
  const int64_t most = kBlockBytes / static_cast<int64_t>(tensor::SizeOf(dtype));
  std::vector<Block> blocks;
  for (int64_t done = 0; done < count; done += most) {
    blocks.push_back({first + done, std::min(most, count - done)});
  }
  return blocks;
}

class Restore {
 public:
  Restore(const RestoreOptions& options, const std::vector<StateSlice>& state)
      : options_(options),
        state_(state),
        stored_(options.restore),
        missing_(state.size()),
        reports_(options.nodes.size()) {}

  absl::StatusOr<std::string> Run();

 private:
  void ReadOwn();
  absl::Status Exchange();
  absl::Status GatherReports();
  // Returns the pairs of the next round; empty: the restore ends, since no rank needs a reader, or
  // a rank that needs one cannot have one.
  std::vector<Pair> NextPairs();
  std::optional<int> ReaderFor(int asker, const std::vector<int>& num_askers) const;
  bool FoundByAnotherMachine(int asker) const;
  // Gives up once two machines have found the same damage: then the file is damaged for all.
  void NoteDamage(uint64_t error, const std::string& node) {
    if (damages_.emplace(error, node).first->second != node) gives_up_ = true;
  }
  absl::StatusOr<std::unique_ptr<RankPair>> Connect(int peer, int asker, int reader) const;
  absl::Status Ask(int reader);
  absl::Status ReceivePiece(RankPair& pair, int reader, int64_t first,
                            const tensor::HostVector& piece, bool* complete);
  absl::Status Receive(RankPair& pair, int reader, const StateSlice& slice, bool* complete);
  absl::Status Serve(int asker);
  absl::Status Send(RankPair& pair, int asker, const StateSlice& slice);
  absl::Status Failure(const absl::Status& exchange) const;
  std::string Warning() const;

  bool Lacks(int rank) const {
    const Need need = reports_[static_cast<size_t>(rank)].need;
    return need == Need::kReader || need == Need::kGivesUp;
  }
  const std::string& NodeOf(int rank) const { return options_.nodes[static_cast<size_t>(rank)]; }
  std::string NameOf(int rank) const {
    return absl::StrCat("rank ", rank, " on node ", NodeOf(rank));
  }
  bool has_everything() const {
    return std::find(missing_.begin(), missing_.end(), 1) == missing_.end();
  }
  // Shows an activity that waits for other ranks; `peer`: the one rank, if the activity names one.
  void ShowWait(telemetry::v1::Activity activity, int peer = 0) const {
    telemetry::ShowDoing(options_.heartbeat,
                         {.activity = activity, .instruction = exchange_, .peer = peer});
  }
  comm::CallInfo call() const {
    return {.instruction_id = exchange_.packed(), .timeout = options_.timeout};
  }

  // The exchange uses the communicators of the norm, and its instruction id.
  const plan::InstructionId exchange_{plan::OpKind::kReduceNorm};

  const RestoreOptions& options_;
  const std::vector<StateSlice>& state_;
  StoredState stored_;
  std::vector<uint8_t> missing_;  // by slice: 1: it could not be read
  absl::Status own_error_;        // the first of this rank's own read
  bool gives_up_ = false;
  std::map<uint64_t, std::string> damages_;     // found in this rank's slices: error and first node
  std::vector<std::string> problems_;           // of readers that this rank had
  std::set<std::string> helpers_;               // nodes that read something for this rank
  std::map<int, absl::Status> errors_for_;      // the first in reading for another rank, by rank
  std::vector<Report> reports_;                 // by rank
  std::map<int, std::set<std::string>> asked_;  // nodes, by the rank that asked
  std::vector<std::byte> block_;                // what is read for others
};

void Restore::ReadOwn() {
  telemetry::ShowDoing(options_.heartbeat, {.activity = telemetry::v1::ACTIVITY_READ_CHECKPOINT});
  for (size_t i = 0; i < state_.size(); ++i) {
    const absl::Status status = options_.window->Write(
        state_[i].data,
        [&](int64_t first, const auto& piece) { return stored_.Read(state_[i], first, piece); });
    if (status.ok()) continue;
    missing_[i] = 1;
    // A process without memory or descriptors gives up, and has to say so, whatever came before.
    if (own_error_.ok() || (absl::IsResourceExhausted(status) && !gives_up_)) own_error_ = status;
    // This process lacks memory or descriptors, whatever its machine can read: help is useless.
    gives_up_ = gives_up_ || absl::IsResourceExhausted(status);
  }
  if (own_error_.ok()) return;
  if (IsDamage(own_error_)) NoteDamage(ErrorOf(own_error_), NodeOf(options_.rank));
  base::LogWarning(absl::StrCat("cannot read the checkpoint: ", own_error_.message(),
                                "; asks ranks on other machines to read it"));
}

// Nearly always nobody lacks anything: then no more than one number goes through each group.
absl::Status Restore::GatherReports() {
  Report mine;
  if (!own_error_.ok()) {
    mine.need = has_everything() ? Need::kNothingMore : gives_up_ ? Need::kGivesUp : Need::kReader;
    mine.error = ErrorOf(own_error_);
    mine.is_damage = IsDamage(own_error_) ? 1 : 0;
  }
  ShowWait(telemetry::v1::ACTIVITY_WAIT_FOR_READS);
  reports_.assign(reports_.size(), Report());
  Report& here = reports_[static_cast<size_t>(options_.rank)];
  here = mine;
  uint64_t lacks = Lacks(options_.rank) ? 1 : 0;
  RETURN_IF_ERROR(options_.all->KeepFirst(&lacks, std::greater<>(), call()));
  if (lacks == 0) return absl::OkStatus();
  // The bytes travel as 64-bit numbers; an all-gather only copies them.
  return options_.all->AllGather(
      tensor::HostVector::OfBytes(absl::MakeSpan(reports_), tensor::DType::kF64), call());
}

// Returns whether a rank on another machine has reported the same damage without being asked.
bool Restore::FoundByAnotherMachine(int asker) const {
  const Report& own = reports_[static_cast<size_t>(asker)];
  if (own.is_damage == 0) return false;
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    const Report& other = reports_[rank];
    if (options_.nodes[rank] != NodeOf(asker) && other.is_damage != 0 && other.error == own.error) {
      return true;
    }
  }
  return false;
}

std::optional<int> Restore::ReaderFor(int asker, const std::vector<int>& num_askers) const {
  const auto asked = asked_.find(asker);
  const int world_size = options_.all->size();
  std::optional<int> best;
  std::tuple<bool, int> best_rating;
  for (int distance = 1; distance < world_size; ++distance) {
    const int rank = (asker + distance) % world_size;
    if (NodeOf(rank) == NodeOf(asker)) continue;
    if (asked != asked_.end() && asked->second.count(NodeOf(rank)) > 0) continue;
    const Report& report = reports_[static_cast<size_t>(rank)];
    const bool read_all = report.need == Need::kNothing;
    // This rank would meet the same error as the asker.
    if (!read_all && report.error == reports_[static_cast<size_t>(asker)].error) continue;
    const std::tuple rating(!read_all, num_askers[static_cast<size_t>(rank)]);
    if (best.has_value() && best_rating <= rating) continue;
    best = rank;
    best_rating = rating;
  }
  return best;
}

std::vector<Pair> Restore::NextPairs() {
  std::vector<Pair> pairs;
  std::vector<int> num_askers(reports_.size());
  for (int asker = 0; asker < options_.all->size(); ++asker) {
    if (!Lacks(asker)) continue;
    if (reports_[static_cast<size_t>(asker)].need == Need::kGivesUp) return {};
    if (FoundByAnotherMachine(asker)) return {};
    const std::optional<int> reader = ReaderFor(asker, num_askers);
    if (!reader.has_value()) return {};
    asked_[asker].insert(NodeOf(*reader));
    ++num_askers[static_cast<size_t>(*reader)];
    pairs.push_back({asker, *reader});
  }
  return pairs;
}

// Receives elements [first, first + piece.size()) of a slice.
absl::Status Restore::ReceivePiece(RankPair& pair, int reader, int64_t first,
                                   const tensor::HostVector& piece, bool* complete) {
  for (const Block& block : BlocksOf(first, piece.size(), piece.dtype())) {
    uint8_t is_read = 0;
    RETURN_IF_ERROR(pair.communicator().Recv(pair.peer(), BytesOf(&is_read), call()));
    if (is_read == 0) {
      Problem problem;
      RETURN_IF_ERROR(pair.communicator().Recv(pair.peer(), BytesOf(&problem), call()));
      if (problem.is_damage != 0) NoteDamage(problem.error, NodeOf(reader));
      const std::string text = absl::StrCat(NameOf(reader), ": ", TextOf(problem));
      if (problems_.size() < kProblemsMax &&
          std::find(problems_.begin(), problems_.end(), text) == problems_.end()) {
        problems_.push_back(text);
      }
      *complete = false;
      return absl::OkStatus();
    }
    const tensor::HostVector here = piece.Slice(block.first - first, block.count);
    RETURN_IF_ERROR(pair.communicator().Recv(pair.peer(), BytesOf(here), call()));
    ShowWait(telemetry::v1::ACTIVITY_WAIT_FOR_READER, reader);
  }
  return absl::OkStatus();
}

absl::Status Restore::Receive(RankPair& pair, int reader, const StateSlice& slice, bool* complete) {
  *complete = true;
  return options_.window->Write(slice.data, [&](int64_t first, const auto& piece) {
    // The reader sends nothing more of a slice that it could not read.
    return *complete ? ReceivePiece(pair, reader, first, piece, complete) : absl::OkStatus();
  });
}

// A rank never asks the same machine twice, so it never has the same reader twice.
absl::StatusOr<std::unique_ptr<RankPair>> Restore::Connect(int peer, int asker, int reader) const {
  absl::StatusOr<std::unique_ptr<RankPair>> pair =
      options_.connect(peer, absl::StrCat("restore/", asker, "-", reader));
  if (!pair.ok()) return base::Annotate(pair.status(), absl::StrCat("a stream to ", NameOf(peer)));
  return pair;
}

absl::Status Restore::Ask(int reader) {
  ShowWait(telemetry::v1::ACTIVITY_WAIT_FOR_READER, reader);
  ASSIGN_OR_RETURN(const std::unique_ptr<RankPair> pair, Connect(reader, options_.rank, reader));
  RETURN_IF_ERROR(pair->communicator().Send(pair->peer(), BytesOf(&missing_), call()));
  for (size_t i = 0; i < state_.size(); ++i) {
    if (missing_[i] == 0) continue;
    bool complete = false;
    RETURN_IF_ERROR(Receive(*pair, reader, state_[i], &complete));
    if (!complete) continue;
    missing_[i] = 0;
    helpers_.insert(NodeOf(reader));
  }
  return absl::OkStatus();
}

absl::Status Restore::Send(RankPair& pair, int asker, const StateSlice& slice) {
  block_.resize(kBlockBytes);
  for (const Block& block : BlocksOf(0, slice.data.size, slice.data.dtype)) {
    const auto here =
        tensor::HostVector::OfBytes(absl::MakeSpan(block_), slice.data.dtype).Slice(0, block.count);
    telemetry::ShowDoing(options_.heartbeat,
                         {.activity = telemetry::v1::ACTIVITY_READ_FOR_PEER, .peer = asker});
    const absl::Status status = stored_.Read(slice, block.first, here);
    uint8_t is_read = status.ok() ? 1 : 0;
    RETURN_IF_ERROR(pair.communicator().Send(pair.peer(), BytesOf(&is_read), call()));
    if (!status.ok()) {
      const std::string text = absl::StrCat("cannot read for ", NameOf(asker),
                                            ", which cannot either: ", status.message());
      errors_for_[asker].Update(
          AsDamage(base::WithErrno({status.code(), text}, base::ErrnoOf(status))));
      Problem problem = ProblemOf(status);
      return pair.communicator().Send(pair.peer(), BytesOf(&problem), call());
    }
    RETURN_IF_ERROR(pair.communicator().Send(pair.peer(), BytesOf(here), call()));
  }
  return absl::OkStatus();
}

absl::Status Restore::Serve(int asker) {
  ASSIGN_OR_RETURN(const std::vector<StateSlice> theirs, options_.layout_of(asker));
  base::LogWarning(absl::StrCat("reads the checkpoint for ", NameOf(asker), ", which cannot"));
  ShowWait(telemetry::v1::ACTIVITY_WAIT_FOR_ASKER, asker);
  ASSIGN_OR_RETURN(const std::unique_ptr<RankPair> pair, Connect(asker, asker, options_.rank));
  std::vector<uint8_t> missing(theirs.size());
  RETURN_IF_ERROR(pair->communicator().Recv(pair->peer(), BytesOf(&missing), call()));
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (missing[i] == 0) continue;
    RETURN_IF_ERROR(Send(*pair, asker, theirs[i]));
  }
  return absl::OkStatus();
}

// All ranks go through the pairs in the same order, so the first pair that is not done never waits.
absl::Status Restore::Exchange() {
  for (;;) {
    RETURN_IF_ERROR(GatherReports());
    const std::vector<Pair> pairs = NextPairs();
    if (pairs.empty()) return absl::OkStatus();
    for (const Pair& pair : pairs) {
      if (pair.asker == options_.rank) {
        RETURN_IF_ERROR(Ask(pair.reader));
      } else if (pair.reader == options_.rank) {
        RETURN_IF_ERROR(Serve(pair.asker));
      }
    }
  }
}

// A rank that could not read reports its own error, however the exchange ended: from it the driver
// decides which checkpoint is read next.
absl::Status Restore::Failure(const absl::Status& exchange) const {
  if (!has_everything()) {
    const std::string tried =
        problems_.empty()
            ? ""
            : absl::StrCat("; nor could ", base::Shortlist(problems_, kProblemsShown));
    return AsDamage(base::WithErrno({own_error_.code(), absl::StrCat(own_error_.message(), tried)},
                                    base::ErrnoOf(own_error_)));
  }
  if (!exchange.ok()) return exchange;  // then the reports of the others may be incomplete
  for (const auto& [asker, error] : errors_for_) {
    if (Lacks(asker)) return error;
  }
  std::vector<std::string> lacking;
  for (int rank = 0; rank < options_.all->size(); ++rank) {
    if (Lacks(rank)) lacking.push_back(NameOf(rank));
  }
  return absl::AbortedError(absl::StrCat(base::Shortlist(lacking), " cannot read ",
                                         options_.restore.directory(),
                                         ", and no other machine of the job can"));
}

std::string Restore::Warning() const {
  if (own_error_.ok()) return "";
  return absl::StrCat("rank ", options_.rank, " could not read the checkpoint ",
                      options_.restore.directory(), " on this machine (", own_error_.message(),
                      "); node ", base::Shortlist({helpers_.begin(), helpers_.end()}),
                      " read it and sent it. Look at this machine's storage: it may fail to write "
                      "checkpoints, too");
}

absl::StatusOr<std::string> Restore::Run() {
  ReadOwn();
  const absl::Status exchange = Exchange();
  telemetry::ShowDoing(options_.heartbeat, {});  // no longer a rank that waits
  bool all_have_everything = exchange.ok();
  for (int rank = 0; rank < options_.all->size(); ++rank) {
    all_have_everything = all_have_everything && !Lacks(rank);
  }
  if (!all_have_everything) return Failure(exchange);
  std::string warning = Warning();
  if (!warning.empty()) base::LogWarning(warning);
  return warning;
}

}  // namespace

absl::StatusOr<std::string> RestoreWithPeers(const RestoreOptions& options,
                                             const std::vector<StateSlice>& state) {
  MEGASCALE_CHECK(options.window != nullptr);
  MEGASCALE_CHECK(options.all != nullptr && options.all->rank() == options.rank &&
                  options.nodes.size() == static_cast<size_t>(options.all->size()));
  return Restore(options, state).Run();
}

}  // namespace megascale::engine
