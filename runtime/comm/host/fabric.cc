#include "runtime/comm/host/fabric.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"
#include "runtime/comm/host/connect.h"
#include "runtime/comm/host/endpoint.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/comm/host/peer_process.h"
#include "runtime/comm/host/stream_pump.h"

namespace megascale::comm {
namespace {

constexpr size_t kSecretBytesMin = 16;
// After a failure only its notices remain to be sent.
constexpr absl::Duration kFailedCloseTimeout = absl::Seconds(1);

// This rank's part of a group.
struct Membership {
  size_t group_index = 0;
  int index = -1;  // in the group
  MemberSlot* slot = nullptr;
  std::shared_ptr<Endpoint> endpoint;  // after Connect
  bool is_made = false;
};

}  // namespace

struct Fabric::Impl {
  Impl(FabricOptions options, std::vector<GroupSpec> groups)
      : options(std::move(options)), groups(std::move(groups)) {}

  const std::string& NodeOf(int rank) const { return options.placements[rank]; }
  bool IsLocal(int rank) const { return NodeOf(rank) == NodeOf(options.rank); }
  absl::Status Validate() const;
  absl::Status CheckStreamOptions() const;
  absl::Status Attach();
  std::vector<StreamRequest> RemotePeers() const;
  absl::Status Connect();
  std::vector<Peer> Peers(const Membership& member, std::vector<base::UniqueFd>& streams,
                          size_t& next_stream);
  void Close();

  const FabricOptions options;
  const std::vector<GroupSpec> groups;
  const uint64_t word = MakeWord();
  std::optional<RegionLayout> layout;
  StreamPump pump;
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  absl::Status abort_reason;        // guarded by mutex
  std::vector<Membership> members;  // endpoints guarded by mutex until connected
};

absl::Status Fabric::Impl::Validate() const {
  RETURN_IF_ERROR(ValidateGroups(groups, options.placements));
  if (options.rank < 0 || static_cast<size_t>(options.rank) >= options.placements.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " in a world of ", options.placements.size()));
  }
  if (options.region == nullptr) {
    return absl::InvalidArgumentError("a Fabric needs the region of its node");
  }
  return absl::OkStatus();
}

absl::Status Fabric::Impl::CheckStreamOptions() const {
  if (options.store == nullptr) {
    return absl::InvalidArgumentError("a rank with peers on other nodes needs a store");
  }
  if (options.secret.size() < kSecretBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the attempt's secret has ", options.secret.size(), " bytes, needs ", kSecretBytesMin));
  }
  if (options.socket_directory.empty() == options.tcp_address.empty()) {
    return absl::InvalidArgumentError(
        "streams need either a socket directory or the address of an interface");
  }
  return absl::OkStatus();
}

// Finds and claims this rank's slots: one process per rank and attempt.
absl::Status Fabric::Impl::Attach() {
  ASSIGN_OR_RETURN(layout, RegionLayout::Attach({groups, options.placements, NodeOf(options.rank),
                                                 options.job_id, options.attempt},
                                                *options.region));
  for (const base::SharedMemory* memory : options.readable) base::UseHugePages(*memory);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int>& ranks = groups[g].ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), options.rank);
    if (found == ranks.end()) continue;
    const int index = static_cast<int>(found - ranks.begin());
    MemberSlot* slot = layout->Slot(g, index);
    PeerState absent = PeerState::kAbsent;
    if (!slot->state.compare_exchange_strong(absent, PeerState::kOpen)) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", options.rank, " of attempt ", options.attempt,
                       " attached to group ", groups[g].name, " before; start a new attempt"));
    }
    Introduce(word, options.readable, slot->card);
    members.push_back({g, index, slot, nullptr});
  }
  return absl::OkStatus();
}

std::vector<StreamRequest> Fabric::Impl::RemotePeers() const {
  std::vector<StreamRequest> requests;
  for (const Membership& member : members) {
    const GroupSpec& group = groups[member.group_index];
    for (const int rank : group.ranks) {
      if (!IsLocal(rank)) requests.push_back({group.name, rank});
    }
  }
  return requests;
}

absl::Status Fabric::Impl::Connect() {
  const std::vector<StreamRequest> requests = RemotePeers();
  std::vector<base::UniqueFd> streams;
  if (!requests.empty()) {
    RETURN_IF_ERROR(CheckStreamOptions());
    const ConnectOptions connect = {.rank = options.rank,
                                    .job_id = options.job_id,
                                    .attempt = options.attempt,
                                    .secret = options.secret,
                                    .binds_address = options.binds_address,
                                    .store = options.store,
                                    .socket_directory = options.socket_directory,
                                    .tcp_address = options.tcp_address,
                                    .timeout = options.connect_timeout,
                                    .reach_timeout = options.reach_timeout,
                                    .join_timeout = options.join_timeout,
                                    .cancelled = &aborted};
    ASSIGN_OR_RETURN(streams, ConnectStreams(connect, requests));
  }
  size_t next_stream = 0;
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  for (const Membership& member : members) {
    endpoints.push_back(std::make_shared<Endpoint>(groups[member.group_index].name, member.index,
                                                   member.slot, Peers(member, streams, next_stream),
                                                   options.join_timeout));
  }
  if (!requests.empty()) RETURN_IF_ERROR(pump.Start());
  std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].endpoint = std::move(endpoints[i]);
    if (!abort_reason.ok()) members[i].endpoint->Abort(abort_reason);
  }
  return abort_reason.ok() ? absl::OkStatus() : absl::AbortedError(abort_reason.message());
}

// `streams` are in the order of RemotePeers.
std::vector<Peer> Fabric::Impl::Peers(const Membership& member,
                                      std::vector<base::UniqueFd>& streams, size_t& next_stream) {
  const GroupSpec& group = groups[member.group_index];
  std::vector<Peer> peers(group.ranks.size());
  for (int i = 0; i < static_cast<int>(peers.size()); ++i) {
    Peer& peer = peers[i];
    peer.world_rank = group.ranks[i];
    if (i == member.index) {
      peer.window = layout->WindowOf(member.group_index, i);
      continue;
    }
    if (IsLocal(peer.world_rank)) {
      peer.window = layout->WindowOf(member.group_index, i, member.index);
      peer.slot = layout->Slot(member.group_index, i);
      if (options.reads_in_place && member.index < 64) peer.own_bit = uint64_t{1} << member.index;
      peer.inbox = layout->RingBetween(member.group_index, i, member.index);
      peer.outbox = layout->RingBetween(member.group_index, member.index, i);
      continue;
    }
    peer.pump = &pump;
    peer.stream =
        pump.Add(std::move(streams[next_stream++]), group.ring_bytes, &member.slot->doorbell);
    peer.inbox = peer.stream->inbox();
    peer.outbox = peer.stream->outbox();
  }
  return peers;
}

void Fabric::Impl::Close() {
  bool has_failed = false;
  for (const Membership& member : members) {
    PeerState open = PeerState::kOpen;
    has_failed |= !member.slot->state.compare_exchange_strong(open, PeerState::kClosed);
    const GroupSpec& group = groups[member.group_index];
    for (int i = 0; i < static_cast<int>(group.ranks.size()); ++i) {
      if (i != member.index && IsLocal(group.ranks[i])) {
        layout->Slot(member.group_index, i)->doorbell.Bump();
      }
    }
  }
  pump.Stop(has_failed ? std::min(options.close_timeout, kFailedCloseTimeout)
                       : options.close_timeout);
}

absl::StatusOr<std::unique_ptr<Fabric>> Fabric::Create(FabricOptions options,
                                                       std::vector<GroupSpec> groups) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(groups));
  RETURN_IF_ERROR(impl->Validate());
  RETURN_IF_ERROR(impl->Attach());
  return std::unique_ptr<Fabric>(new Fabric(std::move(impl)));
}

Fabric::Fabric(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Fabric::~Fabric() { impl_->Close(); }

void Fabric::Close() { impl_->Close(); }

absl::Status Fabric::Connect() { return impl_->Connect(); }

absl::StatusOr<std::unique_ptr<HostCommunicator>> Fabric::Make(absl::string_view group) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  for (Membership& member : impl_->members) {
    if (impl_->groups[member.group_index].name != group) continue;
    if (member.endpoint == nullptr || member.is_made) {
      return absl::FailedPreconditionError(
          absl::StrCat("group ", group,
                       member.is_made ? " has its communicator already" : ": call Connect first"));
    }
    member.is_made = true;
    HostCommunicator::Options options = {impl_->options.default_timeout, impl_->options.observer,
                                         impl_->options.progress};
    return std::make_unique<HostCommunicator>(member.endpoint, std::move(options));
  }
  return absl::NotFoundError(
      absl::StrCat("rank ", impl_->options.rank, " is in no group named ", group));
}

void Fabric::Abort(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->abort_reason.ok()) impl_->abort_reason = reason;
  impl_->aborted = true;
  for (Membership& member : impl_->members) {
    if (member.endpoint != nullptr) member.endpoint->Abort(reason);
  }
}

}  // namespace megascale::comm
