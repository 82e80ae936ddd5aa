#include "runtime/plan/instruction.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

constexpr std::array<absl::string_view, kMaxOpKind + 1> kLetters = {
    "-", "L", "RA", "F", "SA", "RG", "B", "SG", "R", "N", "O", "G", "W", "U", "T", "S"};

// Parses `prefix` and a number of at most `max`, without sign or leading zeros.
bool ParsePart(absl::string_view text, absl::string_view prefix, int max, int& value) {
  return absl::ConsumePrefix(&text, prefix) && absl::SimpleAtoi(text, &value) && value >= 0 &&
         value <= max && absl::StrCat(value) == text;
}

}  // namespace

absl::string_view Letters(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kLetters.size() ? kLetters[index] : "?";
}

absl::string_view Name(StreamKind kind) {
  switch (kind) {
    case StreamKind::kCompute:
      return "compute";
    case StreamKind::kLoadBatch:
      return "load-batch";
    case StreamKind::kSendActivation:
      return "send-activation";
    case StreamKind::kReceiveActivation:
      return "receive-activation";
    case StreamKind::kSendGradient:
      return "send-gradient";
    case StreamKind::kReceiveGradient:
      return "receive-gradient";
    case StreamKind::kDataParallel:
      return "data-parallel";
    case StreamKind::kOptimizer:
      return "optimizer";
    case StreamKind::kTensorParallel:
      return "tensor-parallel";
  }
  return "?";
}

absl::string_view Name(Owner owner) { return owner == Owner::kStage ? "stage" : "shard"; }

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

bool IsTransfer(OpKind kind) {
  return kind == OpKind::kSendActivation || kind == OpKind::kReceiveActivation ||
         kind == OpKind::kSendGradient || kind == OpKind::kReceiveGradient;
}

bool IsPass(OpKind kind) {
  return kind == OpKind::kForward || kind == OpKind::kBackward || kind == OpKind::kWeightGradient;
}

bool IsExchangeOfPass(InstructionId id) { return IsPass(id.operation()) && id.piece() > 0; }

bool NeedsPeers(InstructionId id) {
  switch (id.operation()) {
    case OpKind::kForward:
    case OpKind::kBackward:
    case OpKind::kWeightGradient:
      return IsExchangeOfPass(id);
    case OpKind::kLoadBatch:
    case OpKind::kOptimizerUpdate:
    case OpKind::kOptimizerStep:
      return false;
    case OpKind::kReceiveActivation:
    case OpKind::kSendActivation:
    case OpKind::kReceiveGradient:
    case OpKind::kSendGradient:
    case OpKind::kSumReplicated:
    case OpKind::kReduceGradients:
    case OpKind::kReduceNorm:
    case OpKind::kGatherTrustSums:
    case OpKind::kGatherParameters:
      return true;
  }
  return false;
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
  if (operation() == OpKind::kReceiveActivation && chunk() > 0) {
    return InstructionId(OpKind::kSendActivation, chunk() - 1, microbatch(), bucket());
  }
  if (operation() == OpKind::kReceiveGradient && chunk() + 1 < kNoChunk) {
    return InstructionId(OpKind::kSendGradient, chunk() + 1, microbatch(), bucket());
  }
  return *this;
}

absl::StatusOr<InstructionId> InstructionId::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  size_t operation = 1;
  while (operation <= kMaxOpKind && kLetters[operation] != parts[0]) ++operation;
  int chunk = kNoChunk;
  int microbatch = kNoMicrobatch;
  int bucket = 0;
  int piece = 0;
  size_t next = 1;
  if (next < parts.size() && ParsePart(parts[next], "c", kNoChunk - 1, chunk)) ++next;
  if (next < parts.size() && ParsePart(parts[next], "m", kNoMicrobatch - 1, microbatch)) ++next;
  if (next < parts.size() && ParsePart(parts[next], "b", kMaxBucket, bucket) && bucket > 0) ++next;
  if (next < parts.size() && ParsePart(parts[next], "p", kMaxPiece, piece) && piece > 0) ++next;
  if (operation > kMaxOpKind || next != parts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no instruction id; expected an operation and "
                     "its place, such as F.c0.m3, R.c1.b2 or N"));
  }
  return InstructionId(static_cast<OpKind>(operation), chunk, microbatch, bucket).WithPiece(piece);
}

}  // namespace megascale::plan
