#include "runtime/device/staged_communicator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/device/hang.h"
#include "runtime/device/solo_communicator.h"

namespace megascale::device {
namespace {

using comm::CallInfo;
using comm::Operation;
using tensor::HostVector;
using tensor::Vector;

// Elements [first, first + count) of a tensor.
struct Piece {
  int64_t first = 0;
  int64_t count = 0;
};

class StagedCommunicator final : public comm::Communicator {
 public:
  StagedCommunicator(const Device* device, comm::HostCommunicator* host, stream::Stream* stream,
                     std::unique_ptr<Memory> send, std::unique_ptr<Memory> receive)
      : device_(*device),
        host_(*host),
        stream_(*stream),
        send_(std::move(send)),
        receive_(std::move(receive)) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const std::string& name() const override { return host_.name(); }

  absl::Status AllReduce(const Vector& buffer, const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kAllReduce, info));
    return ForPieces(buffer, 1, [&](const Piece& piece) -> absl::Status {
      const HostVector here = ToHost({buffer, piece}, 1);
      RETURN_IF_ERROR(Await());
      RETURN_IF_ERROR(host_.AllReduce(here, info));
      ToDevice(here, {buffer, piece}, 1);
      return absl::OkStatus();
    });
  }

  absl::Status ReduceScatter(const Vector& input, const Vector& output,
                             const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kReduceScatter, info));
    RETURN_IF_ERROR(CheckBlocks(input, output));
    return ForPieces(output, size(), [&](const Piece& piece) -> absl::Status {
      const HostVector all = ToHost({input, piece, output.size}, size());
      const HostVector sum = View(*receive_, output.dtype, piece.count);
      RETURN_IF_ERROR(Await());
      RETURN_IF_ERROR(host_.ReduceScatter(all, sum, info));
      ToDevice(sum, {output, piece}, 1);
      return absl::OkStatus();
    });
  }

  absl::Status AllGather(const Vector& input, const Vector& output, const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kAllGather, info));
    RETURN_IF_ERROR(CheckBlocks(output, input));
    return ForPieces(input, size(), [&](const Piece& piece) -> absl::Status {
      const HostVector mine = ToHost({input, piece}, 1);
      const HostVector all = View(*receive_, input.dtype, size() * piece.count);
      RETURN_IF_ERROR(Await());
      RETURN_IF_ERROR(host_.AllGather(mine, all, info));
      ToDevice(all, {output, piece, input.size}, size());
      return absl::OkStatus();
    });
  }

  absl::Status Broadcast(const Vector& buffer, int root, const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kBroadcast, info));
    return ForPieces(buffer, 1, [&](const Piece& piece) -> absl::Status {
      if (root != rank()) {
        const HostVector here = View(*receive_, buffer.dtype, piece.count);
        RETURN_IF_ERROR(AwaitReads());
        RETURN_IF_ERROR(host_.Broadcast(here, root, info));
        ToDevice(here, {buffer, piece}, 1);
        return AwaitReads();
      }
      const HostVector here = ToHost({buffer, piece}, 1);
      RETURN_IF_ERROR(Await());
      return host_.Broadcast(here, root, info);
    });
  }

  absl::Status Reduce(const Vector& input, const Vector& output, int root,
                      const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kReduce, info));
    return ForPieces(input, 1, [&](const Piece& piece) -> absl::Status {
      const HostVector here = ToHost({input, piece}, 1);
      const HostVector sum = View(*receive_, input.dtype, piece.count);
      RETURN_IF_ERROR(Await());
      RETURN_IF_ERROR(host_.Reduce(here, sum, root, info));
      if (root == rank()) ToDevice(sum, {output, piece}, 1);
      return absl::OkStatus();
    });
  }

  absl::Status AllToAll(const Vector& input, const Vector& output, const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kAllToAll, info));
    const int64_t block = input.size / size();
    return ForPieces({input.data, input.dtype, block}, size(),
                     [&](const Piece& piece) -> absl::Status {
                       const HostVector here = ToHost({input, piece, block}, size());
                       const HostVector there = View(*receive_, input.dtype, here.size());
                       RETURN_IF_ERROR(Await());
                       RETURN_IF_ERROR(host_.AllToAll(here, there, info));
                       ToDevice(there, {output, piece, block}, size());
                       return absl::OkStatus();
                     });
  }

  absl::Status Barrier(const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kBarrier, info));
    RETURN_IF_ERROR(Await());
    return host_.Barrier(info);
  }

  absl::Status Send(int peer, const Vector& tensor, const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kSend, info));
    return ForPieces(tensor, 1, [&](const Piece& piece) -> absl::Status {
      const HostVector here = ToHost({tensor, piece}, 1);
      RETURN_IF_ERROR(Await());
      return host_.Send(peer, BytesOf(here), info);
    });
  }

  absl::Status Recv(int peer, const Vector& tensor, const CallInfo& info) override {
    RETURN_IF_ERROR(Begin(Operation::kRecv, info));
    return ForPieces(tensor, 1, [&](const Piece& piece) -> absl::Status {
      const HostVector here = View(*receive_, tensor.dtype, piece.count);
      RETURN_IF_ERROR(AwaitReads());
      RETURN_IF_ERROR(host_.Recv(peer, BytesOf(here), info));
      ToDevice(here, {tensor, piece}, 1);
      return AwaitReads();
    });
  }

  void Abort(const absl::Status& reason) override { host_.Abort(reason); }

 private:
  // A piece of each of the equal blocks of a tensor; blocks are `stride` elements apart.
  struct Blocks {
    const Vector& tensor;
    Piece piece;
    int64_t stride = 0;

    std::byte* At(int block) const {
      return tensor.as<std::byte>() +
             (block * stride + piece.first) * static_cast<int64_t>(tensor::SizeOf(tensor.dtype));
    }
    size_t bytes() const { return static_cast<size_t>(piece.count) * tensor::SizeOf(tensor.dtype); }
  };

  // The call that runs.
  struct Call {
    Operation operation = Operation::kBarrier;
    uint64_t instruction_id = 0;
    absl::Duration patience = absl::ZeroDuration();  // with a device that ends no work
  };

  // Begins a call. Once the communicator is dead, no call gives a device that may hang more work.
  absl::Status Begin(Operation operation, const CallInfo& info) {
    // The other members, which may have begun to wait earlier, time out later: a rank whose device
    // hangs is to say so before they report a peer that did not come.
    call_ = {operation, info.instruction_id, host_.TimeoutOf(info) * 2 / 3};
    return failure_.ok() ? host_.failure() : failure_;
  }

  // Calls `exchange` for pieces of `part` such that `num_blocks` of a piece fit the buffer; once
  // for an empty tensor, which the members agree on as well.
  template <typename ExchangePiece>
  absl::Status ForPieces(const Vector& part, int num_blocks, const ExchangePiece& exchange) {
    const auto element_bytes = static_cast<int64_t>(tensor::SizeOf(part.dtype));
    const int64_t most = static_cast<int64_t>(kStagingBytes) / (element_bytes * num_blocks);
    MEGASCALE_CHECK(most > 0);
    int64_t first = 0;
    do {
      const Piece piece = {first, std::min(most, part.size - first)};
      RETURN_IF_ERROR(exchange(piece));
      first += piece.count;
    } while (first < part.size);
    return absl::OkStatus();
  }

  absl::Status CheckBlocks(const Vector& whole, const Vector& block) const {
    if (whole.size == block.size * size() && whole.dtype == block.dtype) return absl::OkStatus();
    // The host communicator refuses other sizes with its own message; it needs no elements for it.
    return absl::InvalidArgumentError("staged communicator: blocks must be equal parts");
  }

  static HostVector View(const Memory& memory, tensor::DType dtype, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * tensor::SizeOf(dtype);
    return HostVector::OfBytes(absl::MakeSpan(static_cast<std::byte*>(memory.data()), bytes),
                               dtype);
  }
  static absl::Span<std::byte> BytesOf(const HostVector& vector) {
    return {vector.as<std::byte>(), static_cast<size_t>(vector.bytes())};
  }

  // Issues the copies of a piece into the buffer for sending, block after block.
  HostVector ToHost(const Blocks& from, int num_blocks) {
    auto* to = static_cast<std::byte*>(send_->data());
    for (int block = 0; block < num_blocks; ++block) {
      stream_.Copy(to + static_cast<size_t>(block) * from.bytes(), from.At(block), from.bytes());
    }
    return View(*send_, from.tensor.dtype, num_blocks * from.piece.count);
  }

  // Issues the copies back. The host must not write to that memory again before AwaitReads or
  // Await.
  void ToDevice(const HostVector& from, const Blocks& to, int num_blocks) {
    const auto* data = from.as<const std::byte>();
    for (int block = 0; block < num_blocks; ++block) {
      stream_.Copy(to.At(block), data + static_cast<size_t>(block) * to.bytes(), to.bytes());
    }
    device_reads_ = true;
  }

  // Waits for the work that was issued: what ToHost copies is there, and the device has read what
  // ToDevice gave it. The wait ends when the communicator is aborted, or when the device has ended
  // nothing for two thirds of the timeout. It may wait longer than that for work before the
  // exchange, as long as any stream's work ends.
  absl::Status Await() {
    device_reads_ = false;
    uint64_t num_ended = device_.num_ended();
    absl::Duration since = base::RealClock().Monotonic();
    return stream_.FinishWhile([&]() -> absl::Status {
      RETURN_IF_ERROR(host_.failure());
      const absl::Duration now = base::RealClock().Monotonic();
      if (num_ended != device_.num_ended()) {
        num_ended = device_.num_ended();
        since = now;
      }
      return now - since < call_.patience ? absl::OkStatus() : GiveUp();
    });
  }

  // Ends the communicator because the device hangs, and tells the other members.
  absl::Status GiveUp() {
    const int world_rank = host_.WorldRank(rank());
    failure_ = AsHang(comm::Blame(
        absl::InternalError(absl::StrCat(
            "group ", name(), ", rank ", world_rank, ", ", comm::Name(call_.operation),
            " (instruction ", call_.instruction_id, "): the device of rank ", world_rank,
            " hangs: it has ended no work for ", absl::FormatDuration(call_.patience),
            ", and the exchange waits for stream ", stream_.name())),
        {world_rank}));
    host_.Abort(failure_);
    return failure_;
  }

  // For calls that copy nothing to the host.
  absl::Status AwaitReads() { return device_reads_ ? Await() : absl::OkStatus(); }

  const Device& device_;
  comm::HostCommunicator& host_;
  stream::Stream& stream_;
  const std::unique_ptr<Memory> send_;
  const std::unique_ptr<Memory> receive_;
  bool device_reads_ = false;  // copies of ToDevice may not have ended
  Call call_;
  absl::Status failure_;  // that the device hangs
};

}  // namespace

absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeStagedCommunicator(
    Device* device, comm::HostCommunicator* host, stream::Stream* stream) {
  if (host->size() == 1) return MakeSoloCommunicator(host, stream);
  ASSIGN_OR_RETURN(auto send, device->AllocateHost("a staged communicator", kStagingBytes));
  ASSIGN_OR_RETURN(auto receive, device->AllocateHost("a staged communicator", kStagingBytes));
  return std::make_unique<StagedCommunicator>(device, host, stream, std::move(send),
                                              std::move(receive));
}

}  // namespace megascale::device
