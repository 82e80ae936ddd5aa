#include "gpu/comm/call_checks.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::cuda {

using comm::Operation;
using tensor::DType;
using tensor::Vector;

absl::Status CallChecks::Refuse(Operation operation, absl::string_view why) const {
  return absl::InvalidArgumentError(
      absl::StrCat("group ", group_, ", ", comm::Name(operation), ": ", why));
}

absl::Status CallChecks::CheckSummable(Operation operation, DType dtype) const {
  if (dtype != DType::kI32) return absl::OkStatus();
  return Refuse(operation, "no sums of I32; expected F64, F32 or BF16");
}

absl::Status CallChecks::CheckRoot(Operation operation, int root) const {
  if (root >= 0 && root < size_) return absl::OkStatus();
  return Refuse(operation, absl::StrCat("no member ", root, " of ", size_, " to be the root"));
}

absl::Status CallChecks::CheckParts(Operation operation, const Vector& whole, const Vector& part,
                                    int parts) const {
  if (whole.dtype == part.dtype && whole.size == part.size * parts) return absl::OkStatus();
  return Refuse(operation, absl::StrCat(whole.size, " elements of ", tensor::Name(whole.dtype),
                                        " and ", part.size, " of ", tensor::Name(part.dtype),
                                        "; expected ", parts, " times as many, of one type"));
}

absl::Status CallChecks::AllReduce(const Vector& buffer) const {
  return CheckSummable(Operation::kAllReduce, buffer.dtype);
}

absl::Status CallChecks::ReduceScatter(const Vector& input, const Vector& output) const {
  RETURN_IF_ERROR(CheckSummable(Operation::kReduceScatter, input.dtype));
  return CheckParts(Operation::kReduceScatter, input, output, size_);
}

absl::Status CallChecks::AllGather(const Vector& input, const Vector& output) const {
  return CheckParts(Operation::kAllGather, output, input, size_);
}

absl::Status CallChecks::Broadcast(int root) const {
  return CheckRoot(Operation::kBroadcast, root);
}

absl::Status CallChecks::Reduce(const Vector& input, const Vector& output, int root) const {
  RETURN_IF_ERROR(CheckSummable(Operation::kReduce, input.dtype));
  RETURN_IF_ERROR(CheckRoot(Operation::kReduce, root));
  if (rank_ != root) return absl::OkStatus();
  return CheckParts(Operation::kReduce, input, output, 1);
}

absl::Status CallChecks::AllToAll(const Vector& input, const Vector& output) const {
  RETURN_IF_ERROR(CheckParts(Operation::kAllToAll, input, output, 1));
  if (input.size % size_ != 0) {
    return Refuse(Operation::kAllToAll,
                  absl::StrCat(input.size, " elements; expected a multiple of ", size_));
  }
  const auto* from = input.as<const std::byte>();
  const auto* to = output.as<const std::byte>();
  if (from < to + output.bytes() && to < from + input.bytes()) {
    return Refuse(Operation::kAllToAll, "input and output overlap");
  }
  return absl::OkStatus();
}

absl::Status CallChecks::Message(Operation operation, int peer) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return absl::OkStatus();
  return Refuse(operation,
                absl::StrCat("member ", peer, " is no peer of member ", rank_, " of ", size_));
}

}  // namespace megascale::cuda
