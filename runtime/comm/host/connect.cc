#include "runtime/comm/connect.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/handshake.h"
#include "runtime/comm/socket_address.h"

namespace megascale::comm {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
// Sockets that have connected and not yet proven anything; beyond that, the oldest is dropped.
constexpr size_t kStrangersMax = 256;

class Meeting {
 public:
  Meeting(const ConnectOptions& options, const std::vector<StreamRequest>& requests)
      : options_(options),
        requests_(requests),
        deadline_(base::RealClock().Monotonic() + options.timeout),
        streams_(requests.size()) {}

  absl::StatusOr<std::vector<base::UniqueFd>> Run();

 private:
  // A connection to a higher rank, on its way.
  struct Outgoing {
    size_t request = 0;
    std::string address;
    base::UniqueFd socket;                          // invalid: to be tried (again)
    std::unique_ptr<ConnectorHandshake> handshake;  // null: not yet connected
  };

  absl::Status Listen();
  absl::Status FindAddresses();
  absl::Duration Left() const { return deadline_ - base::RealClock().Monotonic(); }
  absl::Status TimedOut() const;
  void WaitForWork();
  absl::Status AdvanceOutgoing(Outgoing& outgoing);
  absl::Status Accept();
  void AdvanceIncoming();
  absl::Status Welcome(AcceptorHandshake& handshake);

  const ConnectOptions& options_;
  const std::vector<StreamRequest>& requests_;
  const absl::Duration deadline_;
  std::vector<base::UniqueFd> streams_;
  std::optional<ListeningSocket> listening_;
  std::vector<Outgoing> outgoing_;
  std::deque<std::unique_ptr<AcceptorHandshake>> incoming_;
};

absl::StatusOr<std::vector<base::UniqueFd>> Meeting::Run() {
  RETURN_IF_ERROR(Listen());
  RETURN_IF_ERROR(FindAddresses());
  while (true) {
    for (Outgoing& outgoing : outgoing_) {
      if (streams_[outgoing.request].valid()) continue;
      if (absl::Status status = AdvanceOutgoing(outgoing); !status.ok()) {
        const StreamRequest& request = requests_[outgoing.request];
        return Blame(base::Annotate(
                         status, absl::StrCat("rank ", request.peer, " of group ", request.group)),
                     {request.peer});
      }
    }
    RETURN_IF_ERROR(Accept());
    AdvanceIncoming();
    if (std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s.valid(); })) {
      return std::move(streams_);
    }
    if (options_.cancelled->load()) return absl::AbortedError("aborted while connecting");
    if (Left() <= absl::ZeroDuration()) return TimedOut();
    WaitForWork();
  }
}

absl::Status Meeting::Listen() {
  const bool is_acceptor = std::any_of(requests_.begin(), requests_.end(),
                                       [&](const auto& r) { return r.peer < options_.rank; });
  if (!is_acceptor) return absl::OkStatus();
  absl::StatusOr<ListeningSocket> listening =
      options_.tcp_address.empty()
          ? ListeningSocket::ListenUnix(
                options_.socket_directory,
                absl::StrCat("c-", base::Sha256Hex(options_.job_id).substr(0, 8), "-",
                             options_.attempt, "-", options_.rank))
          : ListeningSocket::ListenTcp(options_.tcp_address);
  if (!listening.ok()) return listening.status();
  listening_.emplace(*std::move(listening));
  return options_.store->Set(absl::StrCat("address/", options_.rank), listening_->address());
}

// A peer publishes its address before it waits for anything, so these waits cannot lock up.
absl::Status Meeting::FindAddresses() {
  std::map<int, std::string> addresses;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const int peer = requests_[i].peer;
    if (peer < options_.rank) continue;
    if (addresses.count(peer) == 0) {
      absl::StatusOr<std::string> address =
          options_.store->Wait(absl::StrCat("address/", peer), Left());
      if (!address.ok()) {
        return Blame(base::Annotate(address.status(), absl::StrCat("address of rank ", peer)),
                     {peer});
      }
      addresses[peer] = *std::move(address);
    }
    outgoing_.push_back({i, addresses[peer], {}, nullptr});
  }
  return absl::OkStatus();
}

absl::Status Meeting::TimedOut() const {
  std::set<int> missing;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (!streams_[i].valid()) missing.insert(requests_[i].peer);
  }
  const std::vector<int> ranks(missing.begin(), missing.end());
  return Blame(absl::DeadlineExceededError(absl::StrCat(
                   "rank ", options_.rank, " waited ", absl::FormatDuration(options_.timeout),
                   " for the other members of its groups; not connected: rank(s) ",
                   absl::StrJoin(ranks, ", "))),
               ranks);
}

void Meeting::WaitForWork() {
  std::vector<pollfd> polled;
  if (listening_.has_value()) polled.push_back({listening_->fd(), POLLIN, 0});
  for (const Outgoing& outgoing : outgoing_) {
    if (streams_[outgoing.request].valid() || !outgoing.socket.valid()) continue;
    const short events = outgoing.handshake == nullptr ? POLLOUT : POLLIN;
    polled.push_back({outgoing.socket.get(), events, 0});
  }
  for (const auto& handshake : incoming_) polled.push_back({handshake->socket(), POLLIN, 0});
  const absl::Duration timeout = std::min(kPollInterval, Left());
  ::poll(polled.data(), polled.size(),
         static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout))));
}

absl::Status Meeting::AdvanceOutgoing(Outgoing& outgoing) {
  if (!outgoing.socket.valid()) {
    absl::StatusOr<base::UniqueFd> socket = StartConnect(outgoing.address);
    if (absl::IsResourceExhausted(socket.status())) return absl::OkStatus();  // later
    if (!socket.ok()) return socket.status();
    outgoing.socket = *std::move(socket);
  }
  if (outgoing.handshake == nullptr) {
    pollfd polled = {outgoing.socket.get(), POLLOUT, 0};
    if (::poll(&polled, 1, 0) <= 0) return absl::OkStatus();
    RETURN_IF_ERROR(FinishConnect(outgoing.socket.get()));
    PrepareStream(outgoing.socket.get());
    const StreamRequest& request = requests_[outgoing.request];
    ASSIGN_OR_RETURN(Hello hello, MakeHello(options_.job_id, options_.attempt, request.group));
    hello.from_rank = options_.rank;
    hello.to_rank = request.peer;
    outgoing.handshake =
        std::make_unique<ConnectorHandshake>(outgoing.socket.get(), options_.secret, hello);
    RETURN_IF_ERROR(outgoing.handshake->Start());
  }
  ASSIGN_OR_RETURN(const bool is_proven, outgoing.handshake->Advance());
  if (is_proven) streams_[outgoing.request] = std::move(outgoing.socket);
  return absl::OkStatus();
}

absl::Status Meeting::Accept() {
  while (listening_.has_value()) {
    base::UniqueFd socket(
        ::accept4(listening_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        return base::ErrnoStatus(errno, absl::StrCat("accept at ", listening_->address()));
      }
      break;
    }
    PrepareStream(socket.get());
    Hello expected;
    expected.attempt = options_.attempt;
    expected.job = DigestOf(options_.job_id);
    expected.to_rank = options_.rank;
    incoming_.push_back(
        std::make_unique<AcceptorHandshake>(std::move(socket), options_.secret, expected));
    if (incoming_.size() > kStrangersMax) incoming_.pop_front();
  }
  return absl::OkStatus();
}

void Meeting::AdvanceIncoming() {
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    absl::StatusOr<bool> is_proven = (*it)->Advance();
    if (is_proven.ok() && !*is_proven) {
      ++it;
      continue;
    }
    const absl::Status status = is_proven.ok() ? Welcome(**it) : is_proven.status();
    if (!status.ok()) {
      base::LogWarning(
          absl::StrCat("dropped a stranger at ", listening_->address(), ": ", status.message()));
    }
    it = incoming_.erase(it);
  }
}

// The peer is proven; is it one that this rank shares the group with?
absl::Status Meeting::Welcome(AcceptorHandshake& handshake) {
  const Hello& hello = handshake.hello();
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].peer != hello.from_rank || DigestOf(requests_[i].group) != hello.group)
      continue;
    if (streams_[i].valid()) break;
    const char verdict = 1;
    if (::send(handshake.socket(), &verdict, 1, MSG_NOSIGNAL) != 1) {
      return absl::UnavailableError("it hung up before it was welcomed");
    }
    streams_[i] = handshake.Release();
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", hello.from_rank, " shares no such group with this one, or came twice"));
}

}  // namespace

absl::StatusOr<std::vector<base::UniqueFd>> ConnectStreams(
    const ConnectOptions& options, const std::vector<StreamRequest>& requests) {
  return Meeting(options, requests).Run();
}

}  // namespace megascale::comm
