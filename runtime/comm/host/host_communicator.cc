#include "runtime/comm/host/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

using tensor::DType;
using tensor::HostVector;

bool IsSummable(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16;
}

size_t Bytes(HostVector vector) { return static_cast<size_t>(vector.bytes()); }

// Returns elements [index * block, (index + 1) * block), as far as they exist.
HostVector Block(HostVector vector, int index, int64_t block) {
  const int64_t begin = std::min(index * block, vector.size());
  const int64_t end = std::min(begin + block, vector.size());
  return vector.Slice(begin, end - begin);
}

void Copy(HostVector from, HostVector to) {
  if (from.data() != to.data() && Bytes(from) > 0) std::memcpy(to.data(), from.data(), Bytes(from));
}

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<Endpoint> endpoint, Options options)
    : endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      channel_(options_.progress == nullptr ? -1 : options_.progress->Register(name())),
      num_sent_(endpoint_->size()),
      num_received_(endpoint_->size()) {
  if (channel_ >= 0) endpoint_->ReportTo(options_.progress, channel_);
}

absl::Status HostCommunicator::AllReduce(HostVector buffer, const CallInfo& info) {
  if (!IsSummable(buffer.dtype())) return Invalid(Operation::kAllReduce, "no sums of this type");
  Call call = Begin(Collective(Operation::kAllReduce, buffer), info, -1);
  // Blocks are multiples of a cache line; the last ones are shorter or empty.
  constexpr int64_t kGrain = 16;
  const int64_t share = (buffer.size() + size() - 1) / size();
  const int64_t block = (share + kGrain - 1) / kGrain * kGrain;
  const HostVector own = Block(buffer, rank(), block);
  Exchange scatter(call.header);
  for (int i = 0; i < size(); ++i) {
    const HostVector other = Block(buffer, i, block);
    if (i != rank()) scatter.Send(i, other.data(), Bytes(other));
  }
  scatter.ReceiveSum(
      {rank(), size(), own.as<std::byte>(), own.as<std::byte>(), static_cast<size_t>(Bytes(own))});
  absl::Status status = endpoint_->Run(scatter, call.deadline);
  if (status.ok()) {
    call.header.phase = 1;
    status = GatherBlocks(call, buffer, block);
  }
  return End(call, status);
}

absl::Status HostCommunicator::ReduceScatter(HostVector input, HostVector output,
                                             const CallInfo& info) {
  if (!IsSummable(input.dtype())) return Invalid(Operation::kReduceScatter, "no sums of this type");
  if (input.dtype() != output.dtype() || input.size() != output.size() * size()) {
    return Invalid(
        Operation::kReduceScatter,
        absl::StrCat("input of ", input.size(), " elements and output of ", output.size(),
                     ", expected ", size(), " times as many, of one type"));
  }
  Call call = Begin(Collective(Operation::kReduceScatter, input), info, -1);
  Exchange exchange(call.header);
  for (int i = 0; i < size(); ++i) {
    if (i != rank()) exchange.Send(i, Block(input, i, output.size()).data(), Bytes(output));
  }
  const HostVector own = Block(input, rank(), output.size());
  exchange.ReceiveSum({rank(), size(), own.as<std::byte>(), output.as<std::byte>(), Bytes(output)});
  if (size() == 1) Copy(own, output);
  return End(call, endpoint_->Run(exchange, call.deadline));
}

absl::Status HostCommunicator::AllGather(HostVector input, HostVector output,
                                         const CallInfo& info) {
  if (input.dtype() != output.dtype() || input.size() * size() != output.size()) {
    return Invalid(
        Operation::kAllGather,
        absl::StrCat("input of ", input.size(), " elements and output of ", output.size(),
                     ", expected ", size(), " times as many, of one type"));
  }
  Call call = Begin(Collective(Operation::kAllGather, output), info, -1);
  Copy(input, Block(output, rank(), input.size()));
  return End(call, GatherBlocks(call, output, input.size()));
}

absl::Status HostCommunicator::GatherBlocks(const Call& call, HostVector output, int64_t block) {
  Exchange exchange(call.header);
  SendToOthers(exchange, Block(output, rank(), block));
  for (int step = 1; step < size(); ++step) {
    // so that members do not all read from the same one at once
    const int i = (rank() + step) % size();
    ReceiveFrom(exchange, i, Block(output, i, block));
  }
  return endpoint_->Run(exchange, call.deadline);
}

void HostCommunicator::SendToOthers(Exchange& exchange, HostVector data) const {
  if (endpoint_->has_windows()) return exchange.SendToAll(rank(), data.data(), Bytes(data));
  for (int i = 0; i < size(); ++i) {
    if (i != rank()) exchange.Send(i, data.data(), Bytes(data));
  }
}

void HostCommunicator::ReceiveFrom(Exchange& exchange, int peer, HostVector data) const {
  if (endpoint_->has_windows()) {
    exchange.ReceiveFromWindow(peer, data.data(), Bytes(data));
  } else {
    exchange.Receive(peer, data.data(), Bytes(data));
  }
}

absl::Status HostCommunicator::Broadcast(HostVector buffer, int root, const CallInfo& info) {
  if (root < 0 || root >= size()) {
    return Invalid(Operation::kBroadcast, absl::StrCat("no member ", root, " to be the root"));
  }
  MessageHeader header = Collective(Operation::kBroadcast, buffer);
  header.root = root;
  Call call = Begin(header, info, -1);
  Exchange exchange(call.header);
  if (rank() == root) {
    SendToOthers(exchange, buffer);
  } else {
    ReceiveFrom(exchange, root, buffer);
  }
  return End(call, endpoint_->Run(exchange, call.deadline));
}

absl::Status HostCommunicator::Reduce(HostVector input, HostVector output, int root,
                                      const CallInfo& info) {
  if (!IsSummable(input.dtype())) return Invalid(Operation::kReduce, "no sums of this type");
  if (root < 0 || root >= size()) {
    return Invalid(Operation::kReduce, absl::StrCat("no member ", root, " to be the root"));
  }
  if (rank() == root && (input.dtype() != output.dtype() || input.size() != output.size())) {
    return Invalid(Operation::kReduce,
                   absl::StrCat("input of ", input.size(), " elements and output of ",
                                output.size(), ", expected equally many, of one type"));
  }
  MessageHeader header = Collective(Operation::kReduce, input);
  header.root = root;
  // A rank that waits only for the root cannot know which rank the root waits for, so it lets the
  // root's timeout expire first.
  CallInfo patient = info;
  if (rank() != root) patient.timeout = 2 * TimeoutOf(info);
  Call call = Begin(header, patient, -1);
  Exchange exchange(call.header);
  if (rank() != root) {
    exchange.Send(root, input.data(), Bytes(input));
  } else {
    exchange.ReceiveSum(
        {rank(), size(), input.as<std::byte>(), output.as<std::byte>(), Bytes(output)});
    if (size() == 1) Copy(input, output);
  }
  return End(call, endpoint_->Run(exchange, call.deadline));
}

absl::Status HostCommunicator::AllToAll(HostVector input, HostVector output, const CallInfo& info) {
  if (input.dtype() != output.dtype() || input.size() != output.size() ||
      input.size() % size() != 0) {
    return Invalid(
        Operation::kAllToAll,
        absl::StrCat("input of ", input.size(), " elements and output of ", output.size(),
                     ", expected equally many, a multiple of ", size(), ", of one type"));
  }
  const std::byte* begin = input.as<std::byte>();
  if (begin < output.as<std::byte>() + Bytes(output) &&
      output.as<std::byte>() < begin + Bytes(input)) {
    return Invalid(Operation::kAllToAll, "input and output overlap");
  }
  Call call = Begin(Collective(Operation::kAllToAll, input), info, -1);
  const int64_t block = input.size() / size();
  Copy(Block(input, rank(), block), Block(output, rank(), block));
  Exchange exchange(call.header);
  for (int step = 1; step < size(); ++step) {
    // so that members do not all read from the same one at once
    const int i = (rank() + step) % size();
    const HostVector theirs = Block(input, i, block);
    exchange.Send(i, theirs.data(), Bytes(theirs));
    exchange.Receive(i, Block(output, i, block).data(), Bytes(theirs));
  }
  return End(call, endpoint_->Run(exchange, call.deadline));
}

absl::Status HostCommunicator::Barrier(const CallInfo& info) {
  Call call = Begin(Collective(Operation::kBarrier, {}), info, -1);
  return End(call, GatherBlocks(call, {}, 0));
}

absl::Status HostCommunicator::Send(int peer, absl::Span<const std::byte> bytes,
                                    const CallInfo& info) {
  RETURN_IF_ERROR(CheckPeer(Operation::kSend, peer));
  MessageHeader header;
  header.operation = Operation::kSend;
  header.sequence = num_sent_[peer]++;
  header.call_bytes = bytes.size();
  Call call = Begin(header, info, peer);
  Exchange exchange(call.header);
  exchange.Send(peer, bytes.data(), bytes.size());
  return End(call, endpoint_->Run(exchange, call.deadline));
}

absl::Status HostCommunicator::Recv(int peer, absl::Span<std::byte> bytes, const CallInfo& info) {
  RETURN_IF_ERROR(CheckPeer(Operation::kRecv, peer));
  MessageHeader header;
  header.operation = Operation::kRecv;
  header.sequence = num_received_[peer]++;
  header.call_bytes = bytes.size();
  Call call = Begin(header, info, peer);
  Exchange exchange(call.header);
  exchange.Receive(peer, bytes.data(), bytes.size());
  return End(call, endpoint_->Run(exchange, call.deadline));
}

absl::Status HostCommunicator::Invalid(Operation operation, absl::string_view problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat("group ", name(), ", ", Name(operation), ": ", problem));
}

absl::Status HostCommunicator::CheckPeer(Operation operation, int peer) const {
  if (peer >= 0 && peer < size() && peer != rank()) return absl::OkStatus();
  return Invalid(operation,
                 absl::StrCat("member ", peer, " is no peer of member ", rank(), " of ", size()));
}

MessageHeader HostCommunicator::Collective(Operation operation, HostVector buffer) {
  MessageHeader header;
  header.operation = operation;
  header.dtype = buffer.dtype();
  header.sequence = num_collectives_++;
  header.call_bytes = Bytes(buffer);
  return header;
}

HostCommunicator::Call HostCommunicator::Begin(const MessageHeader& header, const CallInfo& info,
                                               int peer) {
  Call call;
  call.header = header;
  call.header.instruction_id = info.instruction_id;
  call.header.payload_bytes = header.call_bytes;
  call.deadline = base::RealClock().Monotonic() + TimeoutOf(info);
  call.event.operation = header.operation;
  call.event.group = name();
  call.event.sequence = header.sequence;
  call.event.instruction_id = info.instruction_id;
  call.event.peer = peer < 0 ? -1 : endpoint_->WorldRank(peer);
  call.event.payload_bytes = header.call_bytes;
  if (options_.observer) options_.observer(call.event);
  if (channel_ >= 0) options_.progress->Begin(channel_, call.event);
  return call;
}

absl::Status HostCommunicator::End(Call& call, absl::Status status) {
  call.event.kind = CallEvent::Kind::kLeft;
  call.event.ok = status.ok();
  if (options_.observer) options_.observer(call.event);
  if (channel_ >= 0) options_.progress->End(channel_, call.event);
  return status;
}

}  // namespace megascale::comm
