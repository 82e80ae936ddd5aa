#include "runtime/engine/products/product_agreement.h"

#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runtime/base/checksum.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/doing.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

// Keys in the store. kStart holds "kept\n" or "known\n", then a table.
constexpr char kStart[] = "products/start";
constexpr char kClaim[] = "products/claim/";  // then the digest of a set of products
constexpr char kNumParts[] = "products/num_parts";
constexpr char kNumRanks[] = "products/num_ranks";  // that have claimed their set, or need none
constexpr char kAllParts[] = "products/all_parts";  // num_parts, once all ranks have
constexpr char kPart[] = "products/part/";          // then its number, from 1
constexpr char kTable[] = "products/table";

constexpr absl::string_view kKept = "kept\n";
constexpr absl::string_view kKnown = "known\n";

class Agreement {
 public:
  Agreement(const ProductAgreementOptions& options, const device::ProductCalls& calls,
            device::ProductTuner* tuner)
      : options_(options), calls_(calls), tuner_(*tuner) {}

  absl::StatusOr<std::string> Run();

 private:
  absl::StatusOr<std::string> Begin() const;
  absl::StatusOr<std::string> KnownTable() const;
  absl::Status CheckKept(const std::string& table) const;
  bool IsOwn(const checkpoint::v1::Manifest& checkpoint) const {
    return checkpoint.job_id() == options_.job_id;
  }
  absl::Status ClaimAndMeasure(const std::string& known);
  absl::Status Measure(const std::string& known);
  absl::StatusOr<std::string> JoinParts(const std::string& known) const;
  absl::StatusOr<int64_t> AddOne(const std::string& key) const {
    return options_.store->Add(key, 1, absl::StrCat(key, "/", options_.rank));
  }
  absl::StatusOr<std::string> Wait(const std::string& key) const;

  const ProductAgreementOptions& options_;
  const device::ProductCalls& calls_;
  device::ProductTuner& tuner_;
};

absl::StatusOr<std::string> Agreement::Wait(const std::string& key) const {
  telemetry::ShowDoing(options_.heartbeat,
                       {.activity = telemetry::v1::ACTIVITY_WAIT_FOR_PRODUCTS,
                        .instruction = plan::InstructionId(plan::OpKind::kReduceNorm)});
  absl::StatusOr<std::string> value = options_.store->Wait(key, options_.timeout);
  // From here on no peer is to blame if this rank stalls.
  telemetry::ShowDoing(options_.heartbeat, {});
  if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
  return absl::DeadlineExceededError(
      absl::StrCat("matrix products: other ranks did not publish ", key, " within ",
                   absl::FormatDuration(options_.timeout), ": ", value.status().message()));
}

// Returns what is known before anything is measured.
absl::StatusOr<std::string> Agreement::KnownTable() const {
  switch (options_.restore.source()) {
    case RestorePoint::SOURCE_STORAGE: {
      const std::string& directory = options_.restore.directory();
      ASSIGN_OR_RETURN(const checkpoint::v1::Manifest manifest,
                       checkpoint::ReadManifest(directory));
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

absl::StatusOr<std::string> Agreement::Begin() const {
  if (options_.rank != 0) return Wait(kStart);
  absl::StatusOr<std::string> kept = checkpoint::ReadProductTable(options_.directory);
  const bool is_kept = kept.ok();
  if (is_kept) RETURN_IF_ERROR(CheckKept(*kept));
  if (absl::IsNotFound(kept.status())) kept = KnownTable();
  if (!kept.ok()) return kept.status();
  std::string start = absl::StrCat(is_kept ? kKept : kKnown, *kept);
  RETURN_IF_ERROR(options_.store->Set(kStart, start));
  return start;
}

absl::Status Agreement::Measure(const std::string& known) {
  ASSIGN_OR_RETURN(const int64_t number, AddOne(kNumParts));
  const auto show = [this](int done, int total) {
    telemetry::ShowDoing(
        options_.heartbeat,
        {.activity = telemetry::v1::ACTIVITY_TUNE_PRODUCTS, .done = done, .total = total});
  };
  ASSIGN_OR_RETURN(const std::string part, tuner_.Measure(known, calls_, show));
  return options_.store->Set(absl::StrCat(kPart, number), part);
}

absl::Status Agreement::ClaimAndMeasure(const std::string& known) {
  ASSIGN_OR_RETURN(const std::vector<std::string> missing, tuner_.Missing(known, calls_));
  bool is_mine = false;
  if (!missing.empty()) {
    const std::string digest = base::Sha256Hex(absl::StrJoin(missing, "\n"));
    ASSIGN_OR_RETURN(const int64_t place, AddOne(absl::StrCat(kClaim, digest)));
    is_mine = place == 1;
  }
  if (is_mine) {
    base::LogInfo(absl::StrCat("tunes ", missing.size(), " matrix products"));
    RETURN_IF_ERROR(Measure(known));
  }
  ASSIGN_OR_RETURN(const int64_t num_ranks, AddOne(kNumRanks));
  if (num_ranks < options_.num_ranks) return absl::OkStatus();
  // Every part was numbered before its rank was counted.
  ASSIGN_OR_RETURN(const int64_t num_parts, options_.store->Add(kNumParts, 0, "products/count"));
  return options_.store->Set(kAllParts, absl::StrCat(num_parts));
}

absl::StatusOr<std::string> Agreement::JoinParts(const std::string& known) const {
  ASSIGN_OR_RETURN(const std::string text, Wait(kAllParts));
  int64_t num_parts = 0;
  if (!absl::SimpleAtoi(text, &num_parts)) {
    return absl::InternalError(absl::StrCat("store: ", kAllParts, " is '", text, "', no number"));
  }
  std::vector<std::string> tables = {known};
  for (int64_t part = 1; part <= num_parts; ++part) {
    ASSIGN_OR_RETURN(tables.emplace_back(), Wait(absl::StrCat(kPart, part)));
  }
  ASSIGN_OR_RETURN(const std::string table, tuner_.Join(tables));
  return checkpoint::KeepProductTable(options_.directory, table);
}

absl::StatusOr<std::string> Agreement::Run() {
  ASSIGN_OR_RETURN(const std::string start, Begin());
  absl::string_view table = start;
  if (absl::ConsumePrefix(&table, kKept)) return std::string(table);
  absl::ConsumePrefix(&table, kKnown);
  const std::string known(table);
  RETURN_IF_ERROR(ClaimAndMeasure(known));
  if (options_.rank != 0) return Wait(kTable);
  ASSIGN_OR_RETURN(std::string joined, JoinParts(known));
  RETURN_IF_ERROR(options_.store->Set(kTable, joined));
  return joined;
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
  if (options.heartbeat != nullptr) options.heartbeat->SetDoing({});
  return ForTheUser(used);
}

}  // namespace megascale::engine
