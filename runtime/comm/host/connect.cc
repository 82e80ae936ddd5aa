#include "runtime/comm/host/connect.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
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
// Pause before a socket that the peer closed is replaced: a dying process closes its sockets one by
// one.
constexpr absl::Duration kTryAgainAfter = absl::Milliseconds(100);
// Pause before a connection to a listener whose queue was full.
constexpr absl::Duration kBusyPause = absl::Milliseconds(10);

// Whether an errno says that this process or its machine has no room for a socket. Then no peer is
// at fault, and it does not help to wait.
bool IsOwnLack(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// What a number in an epoll event stands for: an index of Meeting::outgoing_, a stranger's number
// with this bit, or the listening socket.
constexpr uint64_t kStrangerBit = uint64_t{1} << 62;
constexpr uint64_t kListening = ~uint64_t{0};

// The work of a turn is that of the sockets on which something has happened, however many wait.
class Meeting {
 public:
  Meeting(const ConnectOptions& options, const std::vector<StreamRequest>& requests)
      : options_(options),
        requests_(requests),
        deadline_(Now() + options.timeout),
        streams_(requests.size()),
        num_missing_(requests.size()) {}

  absl::StatusOr<std::vector<base::UniqueFd>> Run();

 private:
  // A connection to a higher rank that is being made.
  struct Outgoing {
    size_t request = 0;
    std::string address;
    base::UniqueFd socket = base::UniqueFd();                 // invalid: to be connected (again)
    std::unique_ptr<ConnectorHandshake> handshake = nullptr;  // null: not connected yet
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
  absl::Status NotFound(const std::vector<int>& ranks, const std::vector<std::string>& keys,
                        const absl::Status& why);
  absl::Duration Left() const { return deadline_ - Now(); }
  absl::Status CheckDeadlines();
  absl::Status TimedOut(absl::Duration timeout) const;
  absl::Status Watch(int operation, int fd, uint64_t number, uint32_t events) const;
  absl::Status HandleEvents();
  void SetStream(size_t request, base::UniqueFd socket);

  absl::Status ConnectIdle();
  absl::Status Blamed(const Outgoing& outgoing, const absl::Status& status) const;
  static absl::Status NotReached(const Outgoing& outgoing, const absl::Status& why);
  absl::Status StartOutgoing(size_t index);
  absl::Status AdvanceOutgoing(size_t index);
  void TryAgain(size_t index, absl::Duration pause);
  void NoteUnanswered(size_t index, const absl::Status& why);
  absl::Status BeginHandshake(Outgoing& outgoing);
  Shared SharedAt(const std::string& address) const {
    return {options_.secret, options_.binds_address ? address : ""};
  }

  absl::Status Accept();
  absl::Status SetListening(bool wanted);
  bool HasRoom() const { return incoming_.size() < strangers_max_; }
  void DropSilent();
  // Returns whether the stranger is still one.
  bool AdvanceStranger(uint64_t number);
  absl::Status Welcome(AcceptorHandshake& handshake);

  const ConnectOptions& options_;
  const std::vector<StreamRequest>& requests_;
  const absl::Duration deadline_;
  absl::Duration all_found_at_ = absl::InfiniteDuration();  // the addresses of all higher peers
  absl::Duration next_check_ = -absl::InfiniteDuration();   // of the deadlines
  base::UniqueFd epoll_;
  std::vector<base::UniqueFd> streams_;
  size_t num_missing_;  // of streams_
  size_t strangers_max_ = kStrangersMax;
  std::optional<ListeningSocket> listening_;
  bool is_listening_ = false;  // the epoll tells of new connections
  std::vector<Outgoing> outgoing_;
  std::vector<size_t> idle_;                             // of outgoing_: those without a socket
  absl::Duration next_try_ = -absl::InfiniteDuration();  // when the first of them is due
  std::map<uint64_t, Stranger> incoming_;                // the oldest first
  uint64_t num_accepted_ = 0;
  const Digest job_digest_ = DigestOf(options_.job_id);
  // The requests that this rank accepts, by the connector's rank and its digest of the group.
  std::map<std::pair<int, Digest>, size_t> expected_;
};

absl::StatusOr<std::vector<base::UniqueFd>> Meeting::Run() {
  RETURN_IF_ERROR(ReserveDescriptors());
  epoll_ = base::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return base::ErrnoStatus(errno, "make an epoll to connect ranks");
  RETURN_IF_ERROR(Listen());
  RETURN_IF_ERROR(FindAddresses());
  all_found_at_ = Now();
  while (true) {
    RETURN_IF_ERROR(ConnectIdle());
    RETURN_IF_ERROR(Accept());
    if (num_missing_ == 0) return std::move(streams_);
    if (options_.cancelled->load()) return absl::AbortedError("aborted while connecting");
    RETURN_IF_ERROR(CheckDeadlines());
    RETURN_IF_ERROR(HandleEvents());
  }
}

absl::Status Meeting::Watch(int operation, int fd, uint64_t number, uint32_t events) const {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = number;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return absl::OkStatus();
  return base::ErrnoStatus(errno, "watch a socket while ranks connect");
}

// Waits for the next events, for a tenth of a second at most.
absl::Status Meeting::HandleEvents() {
  constexpr int kEventsMax = 256;
  epoll_event events[kEventsMax];
  const absl::Duration timeout = std::min({kPollInterval, Left(), next_try_ - Now()});
  const int count =
      ::epoll_wait(epoll_.get(), events, kEventsMax,
                   static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout))));
  for (int i = 0; i < count; ++i) {
    const uint64_t number = events[i].data.u64;
    if (options_.num_looks != nullptr) ++*options_.num_looks;
    if (number == kListening) continue;  // Accept follows
    if ((number & kStrangerBit) != 0) {
      AdvanceStranger(number);
      continue;
    }
    RETURN_IF_ERROR(Blamed(outgoing_[number], AdvanceOutgoing(number)));
  }
  return absl::OkStatus();
}

void Meeting::SetStream(size_t request, base::UniqueFd socket) {
  // Fails only if it is not watched.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  if (!streams_[request].valid()) --num_missing_;
  streams_[request] = std::move(socket);
}

// Strangers get only descriptors that no peer needs.
absl::Status Meeting::ReserveDescriptors() {
  const auto limit = static_cast<size_t>(base::RaiseDescriptorLimit());
  const auto num_open = static_cast<size_t>(base::CountOpenDescriptors());
  // A process that has more open than ranks of a job have needs as many more.
  constexpr auto kBeside = static_cast<size_t>(kDescriptorsBesideStreams);
  const size_t num_others = std::max(kBeside, num_open + kBeside / 2);
  const size_t num_needed = requests_.size() + num_others - num_open;
  if (num_open + num_needed > limit) {
    return base::WithErrno(
        absl::ResourceExhaustedError(absl::StrCat(
            "too few descriptors: this rank needs ", num_needed, " for its ", requests_.size(),
            " connections to other machines, beside ", num_open, " open ones, and its limit is ",
            limit,
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
  RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, listening_->fd(), kListening, 0));
  std::map<std::string, Digest> digests;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].peer >= options_.rank) continue;
    const auto [digest, is_new] = digests.try_emplace(requests_[i].group);
    if (is_new) digest->second = DigestOf(requests_[i].group);
    expected_[{requests_[i].peer, digest->second}] = i;
  }
  return options_.store->Set(absl::StrCat("address/", options_.rank), listening_->address());
}

// A peer publishes its address before it waits for anything, so this wait cannot deadlock.
absl::Status Meeting::FindAddresses() {
  std::map<int, std::string> addresses;
  for (const StreamRequest& request : requests_) {
    if (request.peer > options_.rank) addresses[request.peer];
  }
  std::vector<int> ranks;
  std::vector<std::string> keys;
  for (const auto& [rank, address] : addresses) {
    ranks.push_back(rank);
    keys.push_back(absl::StrCat("address/", rank));
  }
  absl::StatusOr<std::vector<std::string>> found = options_.store->WaitAll(keys, Left());
  if (!found.ok()) return NotFound(ranks, keys, found.status());
  for (size_t i = 0; i < ranks.size(); ++i) addresses[ranks[i]] = std::move((*found)[i]);
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].peer < options_.rank) continue;
    idle_.push_back(outgoing_.size());
    outgoing_.push_back({.request = i, .address = addresses[requests_[i].peer]});
  }
  return absl::OkStatus();
}

// Blames the ranks whose addresses are missing; if that cannot be found out, all that were asked
// for.
absl::Status Meeting::NotFound(const std::vector<int>& ranks, const std::vector<std::string>& keys,
                               const absl::Status& why) {
  std::vector<int> missing = ranks;
  if (absl::IsDeadlineExceeded(why)) {
    const auto values = options_.store->GetAll(keys);
    for (size_t i = ranks.size(); values.ok() && i-- > 0;) {
      if ((*values)[i].has_value()) missing.erase(missing.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  const absl::Status status =
      base::Annotate(why, absl::StrCat("address of rank(s) ", absl::StrJoin(missing, ", ")));
  return missing.empty() ? status : Blame(status, missing);
}

// The kernel of a machine answers a connection, however slow the rank there is.
absl::Status Meeting::CheckDeadlines() {
  if (Now() < next_check_) return absl::OkStatus();
  next_check_ = Now() + kPollInterval;
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

// --- to higher ranks --------------------------------------------------------------------------

// Connects those that are due.
absl::Status Meeting::ConnectIdle() {
  const absl::Duration now = Now();
  if (now < next_try_) return absl::OkStatus();
  next_try_ = absl::InfiniteDuration();
  for (const size_t index : std::exchange(idle_, {})) {
    Outgoing& outgoing = outgoing_[index];
    if (options_.num_looks != nullptr) ++*options_.num_looks;
    if (now < outgoing.try_after) {
      idle_.push_back(index);
      next_try_ = std::min(next_try_, outgoing.try_after);
      continue;
    }
    RETURN_IF_ERROR(Blamed(outgoing, StartOutgoing(index)));
  }
  return absl::OkStatus();
}

absl::Status Meeting::Blamed(const Outgoing& outgoing, const absl::Status& status) const {
  if (status.ok() || IsOwnLack(base::ErrnoOf(status))) return status;
  const StreamRequest& request = requests_[outgoing.request];
  return Blame(
      base::Annotate(status, absl::StrCat("rank ", request.peer, " of group ", request.group)),
      {request.peer});
}

absl::Status Meeting::NotReached(const Outgoing& outgoing, const absl::Status& why) {
  if (outgoing.num_hangups == 0) return why;
  return base::Annotate(why, "hung up during the handshake and cannot be reached again");
}

void Meeting::TryAgain(size_t index, absl::Duration pause) {
  Outgoing& outgoing = outgoing_[index];
  outgoing.handshake.reset();
  outgoing.socket.reset();
  outgoing.try_after = Now() + pause;
  next_try_ = std::min(next_try_, outgoing.try_after);
  idle_.push_back(index);
}

// Within reach_timeout the link may come back.
void Meeting::NoteUnanswered(size_t index, const absl::Status& why) {
  Outgoing& outgoing = outgoing_[index];
  outgoing.unanswered_since = std::min(outgoing.unanswered_since, Now());
  outgoing.why_unanswered = std::string(why.message());
  TryAgain(index, kTryAgainAfter);
}

absl::Status Meeting::StartOutgoing(size_t index) {
  Outgoing& outgoing = outgoing_[index];
  absl::StatusOr<base::UniqueFd> socket = StartConnect(outgoing.address);
  if (absl::IsDeadlineExceeded(socket.status())) {
    NoteUnanswered(index, socket.status());
    return absl::OkStatus();
  }
  if (absl::IsResourceExhausted(socket.status()) && !IsOwnLack(base::ErrnoOf(socket.status()))) {
    TryAgain(index, kBusyPause);  // the listener's queue is full
    return absl::OkStatus();
  }
  if (!socket.ok()) return NotReached(outgoing, socket.status());
  outgoing.socket = *std::move(socket);
  outgoing.unanswered_since = std::min(outgoing.unanswered_since, Now());
  return Watch(EPOLL_CTL_ADD, outgoing.socket.get(), index, EPOLLOUT);
}

absl::Status Meeting::AdvanceOutgoing(size_t index) {
  Outgoing& outgoing = outgoing_[index];
  if (!outgoing.socket.valid()) return absl::OkStatus();  // an event from before it was closed
  absl::Status status;
  if (outgoing.handshake == nullptr) {
    const absl::Status connected = FinishConnect(outgoing.socket.get());
    if (absl::IsDeadlineExceeded(connected)) {
      NoteUnanswered(index, connected);
      return absl::OkStatus();
    }
    if (!connected.ok()) return NotReached(outgoing, connected);
    outgoing.unanswered_since = absl::InfiniteDuration();
    outgoing.why_unanswered.clear();
    PrepareStream(outgoing.socket.get());
    RETURN_IF_ERROR(Watch(EPOLL_CTL_MOD, outgoing.socket.get(), index, EPOLLIN));
    status = BeginHandshake(outgoing);
  }
  absl::StatusOr<bool> is_proven = false;
  if (status.ok()) {
    is_proven = outgoing.handshake->Advance();
    status = is_proven.status();
  }
  // The peer dropped the socket, or died; the next connection shows which: it fails at once if no
  // process listens.
  if (absl::IsUnavailable(status)) {
    ++outgoing.num_hangups;
    TryAgain(index, kTryAgainAfter);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(status);
  if (*is_proven) SetStream(outgoing.request, std::move(outgoing.socket));
  return absl::OkStatus();
}

// Errors: those of ConnectorHandshake.
absl::Status Meeting::BeginHandshake(Outgoing& outgoing) {
  const StreamRequest& request = requests_[outgoing.request];
  ASSIGN_OR_RETURN(Hello hello, MakeHello(options_.job_id, options_.attempt, request.group));
  hello.from_rank = options_.rank;
  hello.to_rank = request.peer;
  outgoing.handshake = std::make_unique<ConnectorHandshake>(outgoing.socket.get(),
                                                            SharedAt(outgoing.address), hello);
  return outgoing.handshake->Start();
}

// --- from lower ranks -------------------------------------------------------------------------

// Sockets beyond kStrangersMax stay in the kernel's queue, where a peer loses nothing.
absl::Status Meeting::Accept() {
  if (!listening_.has_value()) return absl::OkStatus();
  if (!HasRoom()) DropSilent();
  while (HasRoom()) {
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
    expected.job = job_digest_;
    expected.to_rank = options_.rank;
    const uint64_t number = kStrangerBit | num_accepted_++;
    RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, socket.get(), number, EPOLLIN));
    incoming_[number] = {std::make_unique<AcceptorHandshake>(
                             std::move(socket), SharedAt(listening_->address()), expected),
                         Now()};
  }
  return SetListening(HasRoom());
}

// The epoll must not tell again and again of connections for which there is no room.
absl::Status Meeting::SetListening(bool wanted) {
  if (wanted == is_listening_) return absl::OkStatus();
  is_listening_ = wanted;
  return Watch(EPOLL_CTL_MOD, listening_->fd(), kListening, wanted ? EPOLLIN : 0u);
}

// Drops strangers that have had enough time. What has arrived from them counts first.
void Meeting::DropSilent() {
  size_t num_dropped = 0;
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    const auto [number, accepted] = std::make_pair(it->first, it->second.accepted);
    ++it;
    if (Now() - accepted < options_.stranger_patience) break;
    if (!AdvanceStranger(number)) continue;
    incoming_.erase(number);
    ++num_dropped;
  }
  if (num_dropped == 0) return;
  base::LogWarning(absl::StrCat("dropped ", num_dropped, " strangers at ", listening_->address(),
                                ": they proved nothing for ",
                                absl::FormatDuration(options_.stranger_patience),
                                " and others wait"));
}

bool Meeting::AdvanceStranger(uint64_t number) {
  const auto stranger = incoming_.find(number);
  if (stranger == incoming_.end()) return false;
  AcceptorHandshake& handshake = *stranger->second.handshake;
  const absl::StatusOr<bool> is_proven = handshake.Advance();
  if (is_proven.ok() && !*is_proven) return true;
  const absl::Status status = is_proven.ok() ? Welcome(handshake) : is_proven.status();
  if (!status.ok()) {
    base::LogWarning(
        absl::StrCat("dropped a stranger at ", listening_->address(), ": ", status.message()));
  }
  incoming_.erase(stranger);
  return false;
}

// Answers a peer that has proved itself, if this rank shares the group with it. A peer that comes
// again lost its earlier socket before it got the verdict: the newest socket counts.
absl::Status Meeting::Welcome(AcceptorHandshake& handshake) {
  const Hello& hello = handshake.hello();
  const auto request = expected_.find({hello.from_rank, hello.group});
  if (request != expected_.end()) {
    RETURN_IF_ERROR(handshake.Answer(Verdict::kWelcome));
    SetStream(request->second, handshake.Release());
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
