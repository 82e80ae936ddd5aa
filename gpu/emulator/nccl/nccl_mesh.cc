#include "gpu/emulator/nccl/nccl_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::emulator {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kNameBytes = 16;

struct Address {
  sockaddr_un address = {};
  socklen_t size = 0;
};

// An abstract name begins with a null byte.
Address AddressOf(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path, name.data(), name.size());
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return result;
}

// The first words of a member to rank 0: who it is, and where it listens.
struct Hello {
  int32_t rank = 0;
  char name[kNameBytes] = {};
};

struct Header {
  static constexpr uint64_t kMagic = 0x6e63636c;
  uint64_t magic = kMagic;
  NcclLabel label;
};

std::string Text(const NcclLabel& label) {
  return absl::StrCat("operation ", label.operation, ", ", label.bytes, " bytes of type ",
                      label.dtype, ", root ", label.root);
}

}  // namespace

NcclListener ListenForNccl() {
  NcclListener listener;
  listener.fd = base::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // Without a name the kernel makes one.
  MEGASCALE_CHECK(
      ::bind(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) == 0);
  MEGASCALE_CHECK(::listen(listener.fd.get(), kBacklog) == 0);
  socklen_t size = sizeof(address);
  MEGASCALE_CHECK(::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), &size) ==
                  0);
  listener.name.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
  MEGASCALE_CHECK(listener.name.size() <= kNameBytes);
  return listener;
}

NcclMesh::NcclMesh(int rank, int size)
    : rank_(rank), size_(size), abort_(::eventfd(0, EFD_CLOEXEC)) {
  links_.resize(static_cast<size_t>(size));
}

void NcclMesh::Abort() {
  const uint64_t one = 1;
  MEGASCALE_CHECK(::write(abort_.get(), &one, sizeof(one)) == sizeof(one));
}

void NcclMesh::AwaitAbort() const {
  while (Await(abort_.get(), POLLIN)) {
  }
}

bool NcclMesh::Await(int fd, short events) const {
  while (true) {
    pollfd fds[] = {{abort_.get(), POLLIN, 0}, {fd, events, 0}};
    const int ready = ::poll(fds, 2, -1);
    MEGASCALE_CHECK(ready > 0 || errno == EINTR);
    if ((fds[0].revents & POLLIN) != 0) return false;
    if (ready > 0 && fds[1].revents != 0) return true;
  }
}

NcclOutcome NcclMesh::Read(int fd, void* data, size_t bytes) const {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    if (!Await(fd, POLLIN)) return NcclOutcome::kAborted;
    const ssize_t count = ::read(fd, to, bytes);
    if (count <= 0) return NcclOutcome::kPeerGone;
    to += count;
    bytes -= static_cast<size_t>(count);
  }
  return NcclOutcome::kDone;
}

NcclOutcome NcclMesh::Write(int fd, const void* data, size_t bytes) const {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    if (!Await(fd, POLLOUT)) return NcclOutcome::kAborted;
    const ssize_t count = ::send(fd, from, bytes, MSG_NOSIGNAL);
    if (count <= 0) return NcclOutcome::kPeerGone;
    from += count;
    bytes -= static_cast<size_t>(count);
  }
  return NcclOutcome::kDone;
}

NcclOutcome NcclMesh::Accept(int listener, base::UniqueFd* accepted) const {
  if (!Await(listener, POLLIN)) return NcclOutcome::kAborted;
  *accepted = base::UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  return accepted->valid() ? NcclOutcome::kDone : NcclOutcome::kPeerGone;
}

#define RETURN_UNLESS_DONE(expression)                                                           \
  do {                                                                                           \
    if (const NcclOutcome outcome = (expression); outcome != NcclOutcome::kDone) return outcome; \
  } while (false)

NcclOutcome NcclMesh::Connect(NcclListener root) {
  return rank_ == 0 ? ConnectAsRoot(root) : ConnectAsMember(root.name);
}

NcclOutcome NcclMesh::ConnectAsRoot(const NcclListener& root) {
  std::vector<Hello> members(static_cast<size_t>(size_));
  for (int i = 1; i < size_; ++i) {
    base::UniqueFd link;
    Hello hello;
    RETURN_UNLESS_DONE(Accept(root.fd.get(), &link));
    RETURN_UNLESS_DONE(Read(link.get(), &hello, sizeof(hello)));
    MEGASCALE_CHECK(hello.rank > 0 && hello.rank < size_);
    members[static_cast<size_t>(hello.rank)] = hello;
    links_[static_cast<size_t>(hello.rank)] = std::move(link);
  }
  for (int i = 1; i < size_; ++i) {
    RETURN_UNLESS_DONE(Write(links_[static_cast<size_t>(i)].get(), members.data(),
                             members.size() * sizeof(Hello)));
  }
  return NcclOutcome::kDone;
}

NcclOutcome NcclMesh::ConnectAsMember(const std::string& root) {
  const NcclListener listener = ListenForNccl();
  Hello own = {.rank = rank_};
  std::memcpy(own.name, listener.name.data(), listener.name.size());
  std::vector<Hello> members(static_cast<size_t>(size_));
  // Ranks connect to lower ones, and accept higher ones.
  for (int i = 0; i < rank_; ++i) {
    const std::string name =
        i == 0 ? root : std::string(members[static_cast<size_t>(i)].name, listener.name.size());
    base::UniqueFd& link = links_[static_cast<size_t>(i)];
    link = base::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Address address = AddressOf(name);
    if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) !=
        0) {
      return NcclOutcome::kPeerGone;
    }
    RETURN_UNLESS_DONE(Write(link.get(), &own, sizeof(own)));
    if (i == 0) {
      RETURN_UNLESS_DONE(Read(link.get(), members.data(), members.size() * sizeof(Hello)));
    }
  }
  for (int i = rank_ + 1; i < size_; ++i) {
    base::UniqueFd link;
    Hello hello;
    RETURN_UNLESS_DONE(Accept(listener.fd.get(), &link));
    RETURN_UNLESS_DONE(Read(link.get(), &hello, sizeof(hello)));
    links_[static_cast<size_t>(hello.rank)] = std::move(link);
  }
  return NcclOutcome::kDone;
}

// A transfer and how far it has come.
struct NcclMesh::Progress {
  const NcclTransfer* transfer = nullptr;
  Header header;
  size_t done = 0;  // bytes of header and data
  NcclEvents::Transport events = {};

  bool IsDone() const { return done == sizeof(Header) + transfer->label.bytes; }
};

// Moves what the socket takes or has at once.
NcclOutcome NcclMesh::Move(Progress& progress) {
  const NcclTransfer& transfer = *progress.transfer;
  const int fd = links_[static_cast<size_t>(transfer.peer)].get();
  const bool in_header = progress.done < sizeof(Header);
  auto* const at = in_header ? reinterpret_cast<std::byte*>(&progress.header) + progress.done
                             : transfer.data + (progress.done - sizeof(Header));
  const size_t left =
      (in_header ? sizeof(Header) : sizeof(Header) + transfer.label.bytes) - progress.done;
  const ssize_t count = transfer.is_send ? ::send(fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                                         : ::recv(fd, at, left, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return NcclOutcome::kDone;
  if (count <= 0) return NcclOutcome::kPeerGone;
  progress.done += static_cast<size_t>(count);
  if (!transfer.is_send && in_header && progress.done == sizeof(Header) &&
      (progress.header.magic != Header::kMagic || !(progress.header.label == transfer.label))) {
    mismatch_ = absl::StrCat("rank ", rank_, " expected ", Text(transfer.label), " of rank ",
                             transfer.peer, ", which sent ", Text(progress.header.label));
    return NcclOutcome::kMismatch;
  }
  return NcclOutcome::kDone;
}

NcclOutcome NcclMesh::Exchange(absl::Span<const NcclTransfer> transfers, NcclEvents& events) {
  // By peer, sends and receives apart: the first of each moves.
  std::vector<std::deque<Progress>> lanes(2 * static_cast<size_t>(size_));
  for (const NcclTransfer& transfer : transfers) {
    lanes[2 * static_cast<size_t>(transfer.peer) + (transfer.is_send ? 1 : 0)].push_back(
        {&transfer, {Header::kMagic, transfer.is_send ? transfer.label : NcclLabel()}, 0});
  }
  auto& own_receives = lanes[2 * static_cast<size_t>(rank_)];
  auto& own_sends = lanes[2 * static_cast<size_t>(rank_) + 1];
  MEGASCALE_CHECK(own_receives.size() == own_sends.size());
  for (size_t i = 0; i < own_sends.size(); ++i) {
    const NcclTransfer& from = *own_sends[i].transfer;
    MEGASCALE_CHECK(from.label == own_receives[i].transfer->label);
    std::memmove(own_receives[i].transfer->data, from.data, from.label.bytes);
  }
  own_receives.clear();
  own_sends.clear();
  for (std::deque<Progress>& lane : lanes) {
    for (Progress& progress : lane) {
      const NcclTransfer& it = *progress.transfer;
      progress.events =
          events.Start(it.event, {.peer = it.peer, .is_send = it.is_send, .bytes = it.label.bytes});
    }
  }
  while (true) {
    std::vector<pollfd> fds = {{abort_.get(), POLLIN, 0}};
    std::vector<std::deque<Progress>*> active = {nullptr};
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      while (!lanes[lane].empty() && lanes[lane].front().IsDone()) lanes[lane].pop_front();
      if (lanes[lane].empty()) continue;
      const short events = lane % 2 == 1 ? POLLOUT : POLLIN;
      fds.push_back({links_[lane / 2].get(), events, 0});
      active.push_back(&lanes[lane]);
    }
    if (active.size() == 1) return NcclOutcome::kDone;
    const int ready = ::poll(fds.data(), fds.size(), -1);
    MEGASCALE_CHECK(ready > 0 || errno == EINTR);
    if (fds[0].revents != 0) return NcclOutcome::kAborted;
    for (size_t i = 1; ready > 0 && i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      Progress& progress = active[i]->front();
      RETURN_UNLESS_DONE(Move(progress));
      if (progress.done >= sizeof(Header)) {
        events.Moved(progress.done - sizeof(Header), &progress.events);
      }
    }
  }
}

}  // namespace megascale::emulator
