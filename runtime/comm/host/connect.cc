#include "runtime/comm/host/connect.h"

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
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/handshake.h"
#include "runtime/comm/host/socket_address.h"

namespace megascale::comm {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
// Incoming sockets that have not authenticated yet. Further ones wait in the kernel's queue.
constexpr size_t kStrangersMax = 256;
constexpr size_t kStrangersMin = 8;
// What a rank opens beside its connections: the listening socket, the pump's eventfd, some files.
constexpr size_t kOtherDescriptors = 16;
// Pause before a socket that the peer closed is replaced: a dying process closes its sockets one by
// one.
constexpr absl::Duration kTryAgainAfter = absl::Milliseconds(100);

// Whether an errno says that this process or its machine has no room for a socket. Then no peer is
// at fault, and it does not help to wait.
bool IsOwnLack(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

class Meeting {
 public:
  Meeting(const ConnectOptions& options, const std::vector<StreamRequest>& requests)
      : options_(options),
        requests_(requests),
        deadline_(Now() + options.timeout),
        streams_(requests.size()) {}

  absl::StatusOr<std::vector<base::UniqueFd>> Run();

 private:
  // A connection to a higher rank that is being made.
  struct Outgoing {
    size_t request = 0;
    std::string address;
    base::UniqueFd socket;                          // invalid: to be connected (again)
    std::unique_ptr<ConnectorHandshake> handshake;  // null: not connected yet
    int num_hangups = 0;
    absl::Duration try_after = -absl::InfiniteDuration();
    absl::Duration unanswered_since = absl::InfiniteDuration();  // infinite: its machine answers
    std::string why_unanswered = {};                             // if the system said so
  };
  // An incoming socket that has not authenticated.
  struct Stranger {
    std::unique_ptr<AcceptorHandshake> handshake;
    absl::Duration accepted;
  };

  static absl::Duration Now() { return base::RealClock().Monotonic(); }
  absl::Status ReserveDescriptors();
  absl::Status Listen();
  absl::Status FindAddresses();
  absl::Duration Left() const { return deadline_ - Now(); }
  absl::Status CheckDeadlines() const;
  absl::Status TimedOut(absl::Duration timeout) const;
  void WaitForWork();
  static absl::Status NotReached(const Outgoing& outgoing, const absl::Status& why);
  absl::Status AdvanceOutgoing(Outgoing& outgoing);
  absl::Status TryAgain(Outgoing& outgoing, const absl::Status& unanswered);
  absl::StatusOr<bool> AdvanceHandshake(Outgoing& outgoing);
  Shared SharedAt(const std::string& address) const {
    return {options_.secret, options_.binds_address ? address : ""};
  }
  absl::Status Accept();
  bool HasRoom() const { return incoming_.size() < strangers_max_; }
  void DropSilent();
  void AdvanceIncoming();
  absl::Status Welcome(AcceptorHandshake& handshake);

  const ConnectOptions& options_;
  const std::vector<StreamRequest>& requests_;
  const absl::Duration deadline_;
  absl::Duration all_found_at_ = absl::InfiniteDuration();  // the addresses of all higher peers
  std::vector<base::UniqueFd> streams_;
  size_t strangers_max_ = kStrangersMax;
  std::optional<ListeningSocket> listening_;
  std::vector<Outgoing> outgoing_;
  std::deque<Stranger> incoming_;  // the oldest first
};

absl::StatusOr<std::vector<base::UniqueFd>> Meeting::Run() {
  RETURN_IF_ERROR(ReserveDescriptors());
  RETURN_IF_ERROR(Listen());
  RETURN_IF_ERROR(FindAddresses());
  all_found_at_ = Now();
  while (true) {
    for (Outgoing& outgoing : outgoing_) {
      if (streams_[outgoing.request].valid()) continue;
      if (absl::Status status = AdvanceOutgoing(outgoing); !status.ok()) {
        if (IsOwnLack(base::ErrnoOf(status))) return status;
        const StreamRequest& request = requests_[outgoing.request];
        return Blame(base::Annotate(
                         status, absl::StrCat("rank ", request.peer, " of group ", request.group)),
                     {request.peer});
      }
    }
    AdvanceIncoming();  // first, so that bytes that have arrived count before a socket is dropped
    RETURN_IF_ERROR(Accept());
    if (std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s.valid(); })) {
      return std::move(streams_);
    }
    if (options_.cancelled->load()) return absl::AbortedError("aborted while connecting");
    RETURN_IF_ERROR(CheckDeadlines());
    WaitForWork();
  }
}

// Strangers get only descriptors that no peer needs.
absl::Status Meeting::ReserveDescriptors() {
  const auto limit = static_cast<size_t>(base::RaiseDescriptorLimit());
  const auto num_open = static_cast<size_t>(base::CountOpenDescriptors());
  const size_t num_needed = requests_.size() + kOtherDescriptors + kStrangersMin;
  if (num_open + num_needed > limit) {
    return base::WithErrno(
        absl::ResourceExhaustedError(absl::StrCat(
            "too few descriptors: this rank needs ", num_needed,
            " for its connections to other machines, beside ", num_open,
            " open ones, and its limit is ", limit,
            ", which it has from its agent; raise the agent's limit (ulimit -Hn, or LimitNOFILE "
            "of its unit) and start the agent again")),
        EMFILE);
  }
  strangers_max_ = std::min(kStrangersMax, limit - num_open - num_needed + kStrangersMin);
  return absl::OkStatus();
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

// A peer publishes its address before it waits for anything, so these waits cannot deadlock.
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

// The kernel of a machine answers a connection, however slow the rank there is.
absl::Status Meeting::CheckDeadlines() const {
  std::vector<int> unreached;
  std::string example;
  bool is_late = false;
  for (const Outgoing& outgoing : outgoing_) {
    if (streams_[outgoing.request].valid()) continue;
    is_late |= Now() - all_found_at_ > options_.join_timeout;
    if (Now() - outgoing.unanswered_since <= options_.reach_timeout) continue;
    const int peer = requests_[outgoing.request].peer;
    if (unreached.empty()) {
      example = absl::StrCat(" at ", outgoing.address, outgoing.why_unanswered.empty() ? "" : ": ",
                             outgoing.why_unanswered);
    }
    if (unreached.empty() || unreached.back() != peer) unreached.push_back(peer);
  }
  if (!unreached.empty()) {
    std::sort(unreached.begin(), unreached.end());
    unreached.erase(std::unique(unreached.begin(), unreached.end()), unreached.end());
    return BlameLinks(
        absl::DeadlineExceededError(absl::StrCat("rank ", options_.rank, " got no answer for ",
                                                 absl::FormatDuration(options_.reach_timeout),
                                                 " from the machine of rank(s) ",
                                                 absl::StrJoin(unreached, ", "), example)),
        unreached);
  }
  if (is_late) return TimedOut(options_.join_timeout);
  return Left() > absl::ZeroDuration() ? absl::OkStatus() : TimedOut(options_.timeout);
}

absl::Status Meeting::TimedOut(absl::Duration timeout) const {
  std::set<int> missing;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (!streams_[i].valid()) missing.insert(requests_[i].peer);
  }
  const std::vector<int> ranks(missing.begin(), missing.end());
  std::string text = absl::StrCat("rank ", options_.rank, " waited ", absl::FormatDuration(timeout),
                                  " for the other members of its groups; not connected: rank(s) ",
                                  absl::StrJoin(ranks, ", "));
  for (const Outgoing& outgoing : outgoing_) {
    if (streams_[outgoing.request].valid()) continue;
    if (outgoing.num_hangups == 0 && outgoing.why_unanswered.empty()) continue;
    const int peer = requests_[outgoing.request].peer;
    text += outgoing.num_hangups == 0
                ? absl::StrCat("; rank ", peer, ": ", outgoing.why_unanswered)
                : absl::StrCat("; rank ", peer, " hung up ", outgoing.num_hangups,
                               " times during the handshake");
    break;  // one example is enough
  }
  return Blame(absl::DeadlineExceededError(text), ranks);
}

void Meeting::WaitForWork() {
  std::vector<pollfd> polled;
  if (listening_.has_value() && HasRoom()) polled.push_back({listening_->fd(), POLLIN, 0});
  for (const Outgoing& outgoing : outgoing_) {
    if (streams_[outgoing.request].valid() || !outgoing.socket.valid()) continue;
    const short events = outgoing.handshake == nullptr ? POLLOUT : POLLIN;
    polled.push_back({outgoing.socket.get(), events, 0});
  }
  for (const Stranger& stranger : incoming_) {
    polled.push_back({stranger.handshake->socket(), POLLIN, 0});
  }
  const absl::Duration timeout = std::min(kPollInterval, Left());
  ::poll(polled.data(), polled.size(),
         static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout))));
}

absl::Status Meeting::NotReached(const Outgoing& outgoing, const absl::Status& why) {
  if (outgoing.num_hangups == 0) return why;
  return base::Annotate(why, "hung up during the handshake and cannot be reached again");
}

absl::Status Meeting::AdvanceOutgoing(Outgoing& outgoing) {
  if (!outgoing.socket.valid()) {
    if (Now() < outgoing.try_after) return absl::OkStatus();
    absl::StatusOr<base::UniqueFd> socket = StartConnect(outgoing.address);
    const bool is_queue_full =
        absl::IsResourceExhausted(socket.status()) && !IsOwnLack(base::ErrnoOf(socket.status()));
    if (is_queue_full) return absl::OkStatus();  // try again later
    if (absl::IsDeadlineExceeded(socket.status())) return TryAgain(outgoing, socket.status());
    if (!socket.ok()) return NotReached(outgoing, socket.status());
    outgoing.socket = *std::move(socket);
    outgoing.unanswered_since = std::min(outgoing.unanswered_since, Now());
  }
  if (outgoing.handshake == nullptr) {
    pollfd polled = {outgoing.socket.get(), POLLOUT, 0};
    if (::poll(&polled, 1, 0) <= 0) return absl::OkStatus();
    const absl::Status connected = FinishConnect(outgoing.socket.get());
    if (absl::IsDeadlineExceeded(connected)) return TryAgain(outgoing, connected);
    if (!connected.ok()) return NotReached(outgoing, connected);
    outgoing.unanswered_since = absl::InfiniteDuration();
    outgoing.why_unanswered.clear();
    PrepareStream(outgoing.socket.get());
  }
  const absl::StatusOr<bool> is_proven = AdvanceHandshake(outgoing);
  // The peer dropped the socket, or died; the next connection shows which: it fails at once if no
  // process listens.
  if (absl::IsUnavailable(is_proven.status())) {
    outgoing.handshake.reset();
    outgoing.socket.reset();
    ++outgoing.num_hangups;
    outgoing.try_after = Now() + kTryAgainAfter;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(is_proven.status());
  if (*is_proven) streams_[outgoing.request] = std::move(outgoing.socket);
  return absl::OkStatus();
}

// Within reach_timeout the link may come back.
absl::Status Meeting::TryAgain(Outgoing& outgoing, const absl::Status& unanswered) {
  outgoing.socket.reset();
  outgoing.unanswered_since = std::min(outgoing.unanswered_since, Now());
  outgoing.why_unanswered = std::string(unanswered.message());
  outgoing.try_after = Now() + kTryAgainAfter;
  return absl::OkStatus();
}

// Continues on a connected socket; true once the peer has proved itself. Errors: those of
// ConnectorHandshake.
absl::StatusOr<bool> Meeting::AdvanceHandshake(Outgoing& outgoing) {
  if (outgoing.handshake == nullptr) {
    const StreamRequest& request = requests_[outgoing.request];
    ASSIGN_OR_RETURN(Hello hello, MakeHello(options_.job_id, options_.attempt, request.group));
    hello.from_rank = options_.rank;
    hello.to_rank = request.peer;
    outgoing.handshake = std::make_unique<ConnectorHandshake>(outgoing.socket.get(),
                                                              SharedAt(outgoing.address), hello);
    RETURN_IF_ERROR(outgoing.handshake->Start());
  }
  return outgoing.handshake->Advance();
}

// Sockets beyond kStrangersMax stay in the kernel's queue, where a peer loses nothing.
absl::Status Meeting::Accept() {
  if (listening_.has_value() && !HasRoom()) DropSilent();
  while (listening_.has_value() && HasRoom()) {
    base::UniqueFd socket(
        ::accept4(listening_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (IsOwnLack(errno)) {
        return base::ErrnoStatus(errno, absl::StrCat("accept at ", listening_->address()));
      }
      break;
    }
    if (const absl::Status mine = CheckAccepted(socket.get(), listening_->address()); !mine.ok()) {
      base::LogWarning(absl::StrCat("dropped a stranger: ", mine.message()));
      continue;
    }
    PrepareStream(socket.get());
    Hello expected;
    expected.attempt = options_.attempt;
    expected.job = DigestOf(options_.job_id);
    expected.to_rank = options_.rank;
    incoming_.push_back({std::make_unique<AcceptorHandshake>(
                             std::move(socket), SharedAt(listening_->address()), expected),
                         Now()});
  }
  return absl::OkStatus();
}

// Drops strangers that have had enough time.
void Meeting::DropSilent() {
  size_t num_dropped = 0;
  for (; !incoming_.empty(); incoming_.pop_front(), ++num_dropped) {
    if (Now() - incoming_.front().accepted < options_.stranger_patience) break;
  }
  if (num_dropped == 0) return;
  base::LogWarning(absl::StrCat("dropped ", num_dropped, " strangers at ", listening_->address(),
                                ": they proved nothing for ",
                                absl::FormatDuration(options_.stranger_patience),
                                " and others wait"));
}

void Meeting::AdvanceIncoming() {
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    absl::StatusOr<bool> is_proven = it->handshake->Advance();
    if (is_proven.ok() && !*is_proven) {
      ++it;
      continue;
    }
    const absl::Status status = is_proven.ok() ? Welcome(*it->handshake) : is_proven.status();
    if (!status.ok()) {
      base::LogWarning(
          absl::StrCat("dropped a stranger at ", listening_->address(), ": ", status.message()));
    }
    it = incoming_.erase(it);
  }
}

// Answers a peer that has proved itself, if this rank shares the group with it. A peer that comes
// again lost its earlier socket before it got the verdict: the newest socket counts.
absl::Status Meeting::Welcome(AcceptorHandshake& handshake) {
  const Hello& hello = handshake.hello();
  for (size_t i = 0; i < requests_.size(); ++i) {
    const bool connects = requests_[i].peer < options_.rank;
    if (!connects || requests_[i].peer != hello.from_rank ||
        DigestOf(requests_[i].group) != hello.group) {
      continue;
    }
    RETURN_IF_ERROR(handshake.Answer(Verdict::kWelcome));
    streams_[i] = handshake.Release();
    return absl::OkStatus();
  }
  (void)handshake.Answer(Verdict::kNoSuchGroup);  // dropped whether or not this arrives
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", hello.from_rank, " shares no such group with this one"));
}

}  // namespace

absl::StatusOr<std::vector<base::UniqueFd>> ConnectStreams(
    const ConnectOptions& options, const std::vector<StreamRequest>& requests) {
  return Meeting(options, requests).Run();
}

}  // namespace megascale::comm
