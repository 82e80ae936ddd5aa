#include "runtime/engine/products/product_agreement.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "runtime/base/checksum.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/doing.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

constexpr char kDigest[] = "products/digest";  // in the store: that of the job's table

// The id of all that ranks exchange here. The communicators are those of the norm.
plan::InstructionId Exchange() { return plan::InstructionId(plan::OpKind::kReduceNorm); }

// What rank 0 tells all others.
struct Proposal {
  bool is_kept = false;  // the job's table; else what is known before anything is measured
  std::string table;
};

// Names a set of products; zeros: the empty set.
struct SetName {
  alignas(double) std::array<char, 32> digits = {};
  auto operator<=>(const SetName&) const = default;
};

SetName NameOf(const std::vector<std::string>& products) {
  SetName name;
  if (products.empty()) return name;
  const std::string digest = base::Sha256Hex(absl::StrJoin(products, "\n"));
  std::copy_n(digest.begin(), name.digits.size(), name.digits.begin());
  return name;
}

// Returns the first member of each set, ascending.
std::vector<int> FirstOfEachSet(const std::vector<SetName>& set_of_rank) {
  std::vector<int> first;
  std::set<SetName> seen = {SetName{}};
  for (size_t rank = 0; rank < set_of_rank.size(); ++rank) {
    if (seen.insert(set_of_rank[rank]).second) first.push_back(static_cast<int>(rank));
  }
  return first;
}

// The bytes travel as 64-bit numbers; a broadcast and an all-gather only copy them.
template <typename T>
tensor::HostVector Words(absl::Span<T> objects) {
  static_assert(sizeof(T) % sizeof(double) == 0);
  return tensor::HostVector::OfBytes(objects, tensor::DType::kF64);
}

class Agreement {
 public:
  Agreement(const ProductAgreementOptions& options, const device::ProductCalls& calls,
            device::ProductTuner* tuner)
      : options_(options), calls_(calls), tuner_(*tuner), all_(*options.all) {}

  absl::StatusOr<std::string> Run();

 private:
  absl::StatusOr<Proposal> Begin() const;
  absl::StatusOr<std::string> KnownTable() const;
  absl::Status CheckKept(const std::string& table) const;
  bool IsOwn(const checkpoint::v1::Manifest& checkpoint) const {
    return checkpoint.job_id() == options_.job_id;
  }
  absl::Status Share(Proposal* proposal);
  absl::Status CheckDigest(const std::string& table) const;
  absl::StatusOr<std::string> Measure(const std::string& known);

  bool is_root() const { return all_.rank() == 0; }
  comm::CallInfo call() const {
    return {.instruction_id = Exchange().packed(), .timeout = options_.timeout};
  }

  const ProductAgreementOptions& options_;
  const device::ProductCalls& calls_;
  device::ProductTuner& tuner_;
  const AllRanks& all_;
};

// Shows that a rank waits for its peers, while this lives. Afterwards no peer is to blame if the
// rank stalls.
class Waiting {
 public:
  explicit Waiting(telemetry::HeartbeatWriter* heartbeat) : heartbeat_(heartbeat) {
    telemetry::ShowDoing(heartbeat_, {.activity = telemetry::v1::ACTIVITY_WAIT_FOR_PRODUCTS,
                                      .instruction = Exchange()});
  }
  ~Waiting() { telemetry::ShowDoing(heartbeat_, {}); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  telemetry::HeartbeatWriter* const heartbeat_;
};

// Returns what is known before anything is measured.
absl::StatusOr<std::string> Agreement::KnownTable() const {
  switch (options_.restore.source()) {
    case RestorePoint::SOURCE_STORAGE: {
      const std::string& directory = options_.restore.directory();
      ASSIGN_OR_RETURN(const checkpoint::v1::Manifest manifest,
                       checkpoint::ReadManifest(directory));
      RETURN_IF_ERROR(checkpoint::CheckIsCommitted(manifest, options_.restore));
      if (options_.may_differ && !IsOwn(manifest)) return "";
      return checkpoint::ProductTableOfCheckpoint(manifest, directory);
    }
    case RestorePoint::SOURCE_MEMORY:
      return absl::InvalidArgumentError(checkpoint::MissingProductTable(options_.directory));
    default:
      return "";
  }
}

// A job that began from another job's checkpoint may have measured more than that one's table has.
absl::Status Agreement::CheckKept(const std::string& table) const {
  if (options_.restore.source() != RestorePoint::SOURCE_STORAGE) return absl::OkStatus();
  const auto manifest = checkpoint::ReadManifest(options_.restore.directory());
  // Whoever loads the state says what is wrong with the manifest.
  if (!manifest.ok() || !IsOwn(*manifest)) return absl::OkStatus();
  if (checkpoint::IsProductTableOf(*manifest, table)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(options_.directory, "/", checkpoint::kProductTableFile,
                   " is not the table by which the job has trained; copy that of its checkpoint ",
                   options_.restore.directory(), " over it"));
}

absl::StatusOr<Proposal> Agreement::Begin() const {
  if (options_.restore.source() == RestorePoint::SOURCE_MEMORY && options_.snapshots != nullptr) {
    // Nothing is read from storage: it may be why the job goes on from memory.
    absl::StatusOr<std::string> in_memory = checkpoint::KeptTable(*options_.snapshots);
    if (in_memory.ok()) return Proposal{true, *std::move(in_memory)};
    base::LogInfo(absl::StrCat(in_memory.status().message(), "; reads that of the job's folder"));
  }
  absl::StatusOr<std::string> kept = checkpoint::ReadProductTable(options_.directory);
  const bool is_kept = kept.ok();
  if (is_kept) RETURN_IF_ERROR(CheckKept(*kept));
  if (absl::IsNotFound(kept.status())) kept = KnownTable();
  if (!kept.ok()) return kept.status();
  return Proposal{is_kept, *std::move(kept)};
}

absl::Status Agreement::CheckDigest(const std::string& table) const {
  const std::string digest = base::Sha256Hex(table);
  const absl::StatusOr<std::string> published =
      options_.store->Wait(kDigest, options_.store_timeout);
  if (absl::IsDeadlineExceeded(published.status())) {
    return absl::DeadlineExceededError(absl::StrCat(
        "matrix products: the store did not show ", kDigest, " within ",
        absl::FormatDuration(options_.store_timeout), ": ", published.status().message()));
  }
  if (!published.ok()) return published.status();
  if (*published == digest) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("matrix products: rank 0 sent a table with the digest ",
                                          digest, ", but the store has ", *published,
                                          "; the next attempt agrees anew"));
}

// Overwrites `proposal` on all ranks with that of rank 0.
absl::Status Agreement::Share(Proposal* proposal) {
  if (is_root() && proposal->is_kept) {
    RETURN_IF_ERROR(options_.store->Set(kDigest, base::Sha256Hex(proposal->table)));
  }
  const Waiting waiting(options_.heartbeat);
  std::array<uint64_t, 2> head = {proposal->is_kept ? uint64_t{1} : 0, proposal->table.size()};
  RETURN_IF_ERROR(all_.Broadcast(Words(absl::MakeSpan(head)), call()));
  const uint64_t bytes = head[1];
  if (bytes > checkpoint::kProductTableBytesMax) {
    return absl::InternalError(absl::StrCat("matrix products: a table of ", bytes, " bytes"));
  }
  std::vector<uint64_t> words((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  if (is_root()) proposal->table.copy(reinterpret_cast<char*>(words.data()), bytes);
  if (!words.empty()) {
    RETURN_IF_ERROR(all_.Broadcast(Words(absl::MakeSpan(words)), call()));
  }
  if (is_root()) return absl::OkStatus();
  proposal->is_kept = head[0] != 0;
  proposal->table.assign(reinterpret_cast<const char*>(words.data()), bytes);
  return proposal->is_kept ? CheckDigest(proposal->table) : absl::OkStatus();
}

// Returns the job's table on rank 0, and nothing on others.
absl::StatusOr<std::string> Agreement::Measure(const std::string& known) {
  ASSIGN_OR_RETURN(const std::vector<std::string> missing, tuner_.Missing(known, calls_));
  std::vector<SetName> sets(static_cast<size_t>(all_.size()));
  sets[static_cast<size_t>(all_.rank())] = NameOf(missing);
  {
    const Waiting waiting(options_.heartbeat);
    RETURN_IF_ERROR(all_.AllGather(Words(absl::MakeSpan(sets)), call()));
  }
  const std::vector<int> measuring = FirstOfEachSet(sets);
  std::string part;
  if (std::find(measuring.begin(), measuring.end(), all_.rank()) != measuring.end()) {
    base::LogInfo(absl::StrCat("tunes ", missing.size(), " matrix products"));
    const auto show = [this](int done, int total) {
      telemetry::ShowDoing(
          options_.heartbeat,
          {.activity = telemetry::v1::ACTIVITY_TUNE_PRODUCTS, .done = done, .total = total});
    };
    ASSIGN_OR_RETURN(part, tuner_.Measure(known, calls_, show));
  }
  std::vector<std::string> tables = {known};
  for (const int rank : measuring) {
    std::string& table = tables.emplace_back(part);
    if (!all_.IsOnWay(rank)) continue;
    const Waiting waiting(options_.heartbeat);
    RETURN_IF_ERROR(
        base::Annotate(all_.MoveToFirst(rank, &table, checkpoint::kProductTableBytesMax, call()),
                       "matrix products"));
  }
  if (!is_root()) return "";
  ASSIGN_OR_RETURN(const std::string table, tuner_.Join(tables));
  return checkpoint::KeepProductTable(options_.directory, table);
}

absl::StatusOr<std::string> Agreement::Run() {
  Proposal proposal;
  if (is_root()) {
    ASSIGN_OR_RETURN(proposal, Begin());
  }
  RETURN_IF_ERROR(Share(&proposal));
  if (proposal.is_kept) return proposal.table;
  ASSIGN_OR_RETURN(std::string table, Measure(proposal.table));
  Proposal agreed = {true, std::move(table)};
  RETURN_IF_ERROR(Share(&agreed));
  return agreed.table;
}

// A copy that cannot be made costs a restart from memory the reading of a file, no more.
void KeepInMemory(base::SharedMemory* snapshots, const std::string& table) {
  if (snapshots == nullptr) return;
  const absl::Status kept = checkpoint::KeepTable(*snapshots, table);
  // Most ranks have no room.
  if (!kept.ok() && !absl::IsResourceExhausted(kept)) base::LogWarning(kept.message());
}

// What the user has to mend is InvalidArgument; a failed system call may end by itself.
absl::Status ForTheUser(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status) || base::ErrnoOf(status) != 0) return status;
  return absl::InvalidArgumentError(status.message());
}

}  // namespace

absl::Status AgreeOnProducts(const ProductAgreementOptions& options,
                             const device::ProductCalls& calls, device::ProductTuner* tuner) {
  const absl::StatusOr<std::string> table = Agreement(options, calls, tuner).Run();
  if (!table.ok()) return ForTheUser(table.status());
  const std::string file = absl::StrCat(options.directory, "/", checkpoint::kProductTableFile);
  const absl::Status used = base::Annotate(tuner->Use(*table, calls), file);
  if (used.ok()) KeepInMemory(options.snapshots, *table);
  if (options.heartbeat != nullptr) options.heartbeat->SetDoing({});
  return ForTheUser(used);
}

}  // namespace megascale::engine
