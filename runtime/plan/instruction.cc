#include "runtime/plan/instruction.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

// Parses `prefix` and a number of at most `max`, without sign or leading zeros.
bool ParsePart(absl::string_view text, absl::string_view prefix, int max, int& value) {
  return absl::ConsumePrefix(&text, prefix) && absl::SimpleAtoi(text, &value) && value >= 0 &&
         value <= max && absl::StrCat(value) == text;
}

}  // namespace

InstructionId::InstructionId(OpKind operation, int chunk, int microbatch, int bucket)
    : packed_(static_cast<uint64_t>(operation) << 56 | static_cast<uint64_t>(chunk) << 40 |
              static_cast<uint64_t>(microbatch) << 24 | static_cast<uint64_t>(bucket) << 16) {
  MEGASCALE_CHECK(chunk >= 0 && chunk <= kNoChunk);
  MEGASCALE_CHECK(microbatch >= 0 && microbatch <= kNoMicrobatch);
  MEGASCALE_CHECK(bucket >= 0 && bucket <= kMaxBucket);
}

InstructionId InstructionId::FromPacked(uint64_t packed) {
  InstructionId id;
  id.packed_ = packed;
  return id;
}

bool IsExchangeOfPass(InstructionId id) { return IsPass(id.operation()) && id.piece() > 0; }

bool NeedsPeers(InstructionId id) {
  const OpKind kind = id.operation();
  return IsExchangeOfPass(id) || IsTransfer(kind) ||
         OperationOf(kind).op_class == OpClass::kCollective;
}

std::string InstructionId::ToString() const {
  if (packed_ == 0) return "-";
  std::string text(Letters(operation()));
  if (chunk() != kNoChunk) absl::StrAppend(&text, ".c", chunk());
  if (microbatch() != kNoMicrobatch) absl::StrAppend(&text, ".m", microbatch());
  if (bucket() != 0) absl::StrAppend(&text, ".b", bucket());
  if (piece() != 0) absl::StrAppend(&text, ".p", piece());
  return text;
}

InstructionId InstructionId::WithPiece(int piece) const {
  MEGASCALE_CHECK(piece >= 0 && piece <= kMaxPiece);
  return FromPacked((packed_ & ~uint64_t{kMaxPiece}) | static_cast<uint64_t>(piece));
}

InstructionId InstructionId::MessageId() const {
  if (OperationOf(operation()).op_class != OpClass::kReceive) return *this;
  const InstructionId send = OtherEnd();
  return send == InstructionId() ? *this : send;
}

InstructionId InstructionId::OtherEnd() const {
  const Operation& mine = OperationOf(operation());
  if (!IsTransfer(operation())) return {};
  if (!mine.per_chunk) return InstructionId(mine.other_end, chunk(), microbatch(), bucket());
  const int other = chunk() + mine.other_chunk;
  if (other < 0 || other >= kNoChunk) return {};
  return InstructionId(mine.other_end, other, microbatch(), bucket());
}

int OtherStage(InstructionId transfer, int num_stages) {
  const Operation& operation = OperationOf(transfer.operation());
  if (!operation.per_chunk) return operation.other_chunk > 0 ? num_stages - 1 : 0;
  const InstructionId other = transfer.OtherEnd();
  return other == InstructionId() ? -1 : other.chunk() % num_stages;
}

absl::StatusOr<InstructionId> InstructionId::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  const absl::Span<const Operation> operations = AllOperations();
  const auto operation =
      std::find_if(operations.begin(), operations.end(),
                   [&](const Operation& one) { return one.letters == parts[0]; });
  int chunk = kNoChunk;
  int microbatch = kNoMicrobatch;
  int bucket = 0;
  int piece = 0;
  size_t next = 1;
  if (next < parts.size() && ParsePart(parts[next], "c", kNoChunk - 1, chunk)) ++next;
  if (next < parts.size() && ParsePart(parts[next], "m", kNoMicrobatch - 1, microbatch)) ++next;
  if (next < parts.size() && ParsePart(parts[next], "b", kMaxBucket, bucket) && bucket > 0) ++next;
  if (next < parts.size() && ParsePart(parts[next], "p", kMaxPiece, piece) && piece > 0) ++next;
  if (operation == operations.end() || next != parts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no instruction id; expected an operation and "
                     "its place, such as F.c0.m3, R.c1.b2 or N"));
  }
  return InstructionId(operation->kind, chunk, microbatch, bucket).WithPiece(piece);
}

}  // namespace megascale::plan
