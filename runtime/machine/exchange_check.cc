#include "runtime/machine/exchange_check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::machine {
namespace {

constexpr timeval kSocketTimeout = {10, 0};

absl::Duration Now() { return base::RealClock().Monotonic(); }

struct Connection {
  base::UniqueFd sender;
  base::UniqueFd receiver;
};

absl::StatusOr<Connection> Connect() {
  const base::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return base::ErrnoStatus(errno, "socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0) {
    return base::ErrnoStatus(errno, "listen on 127.0.0.1");
  }
  Connection connection;
  connection.sender = base::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.sender.valid()) return base::ErrnoStatus(errno, "socket");
  if (::connect(connection.sender.get(), generic, size) != 0) {
    return base::ErrnoStatus(errno, "connect to 127.0.0.1");
  }
  connection.receiver = base::UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection.receiver.valid()) return base::ErrnoStatus(errno, "accept on 127.0.0.1");
  ::setsockopt(connection.sender.get(), SOL_SOCKET, SO_SNDTIMEO, &kSocketTimeout,
               sizeof(kSocketTimeout));
  ::setsockopt(connection.receiver.get(), SOL_SOCKET, SO_RCVTIMEO, &kSocketTimeout,
               sizeof(kSocketTimeout));
  return connection;
}

// Sends the block until `end`, at least once, and closes the connection. Returns an errno; 0: all
// was sent.
int SendBlocks(int socket, const std::vector<char>& block, absl::Duration end) {
  int error = 0;
  do {
    for (size_t done = 0; done < block.size() && error == 0;) {
      const ssize_t sent = ::send(socket, block.data() + done, block.size() - done, MSG_NOSIGNAL);
      if (sent > 0) {
        done += static_cast<size_t>(sent);
      } else if (errno != EINTR) {
        error = errno;
      }
    }
  } while (error == 0 && Now() < end);
  ::shutdown(socket, SHUT_WR);
  return error;
}

// Returns how many bytes came before the end or an error, which goes to `error`; 0: there was none.
size_t ReceiveBlock(int socket, std::vector<char>* block, int* error) {
  size_t done = 0;
  while (done < block->size()) {
    const ssize_t got = ::recv(socket, block->data() + done, block->size() - done, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return done;
    } else if (errno != EINTR) {
      *error = errno;
      return done;
    }
  }
  return done;
}

bool IsTimeout(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

std::string ErrorText(absl::string_view what, int error) {
  return absl::StrCat(what, ": ",
                      IsTimeout(error) ? "nothing moved for 10 s" : std::strerror(error));
}

// True for errors that a machine in order has, too: a missing, full or protected directory.
bool IsNoFault(int error) {
  return error != EIO && error != EILSEQ && error != EBADMSG && error != EUCLEAN;
}

PartResult FailureOrNote(const DirectoryOptions& options, std::string text) {
  PartResult result;
  (options.is_own ? result.failure : result.note) = std::move(text);
  return result;
}

// Returns the failure or the note for an error at a directory.
PartResult ErrorAt(const DirectoryOptions& options, absl::string_view what, int error) {
  std::string text = absl::StrCat(what, " a file in ", options.path, ": ", std::strerror(error));
  if (!IsNoFault(error)) return FailureOrNote(options, std::move(text));
  PartResult result;
  result.note = std::move(text);
  return result;
}

// Opens a file that has no name, so that nothing is left of it when this process is killed. Returns
// an invalid descriptor and sets errno on failure.
base::UniqueFd OpenScratchFile(const std::string& directory) {
  base::UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  // The file system, a network's for example, has no such files.
  std::string path = absl::StrCat(directory, "/.megascale-test-XXXXXX");
  fd = base::UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
  if (fd.valid()) ::unlink(path.c_str());
  return fd;
}

// The kind of a file system, as statfs has it; 0: unknown.
uint32_t FileSystemOf(int fd) {
  struct statfs status = {};
  return ::fstatfs(fd, &status) == 0 ? static_cast<uint32_t>(status.f_type) : 0;
}

bool IsInMemory(uint32_t file_system) {
  return file_system == TMPFS_MAGIC || file_system == RAMFS_MAGIC;
}

// True for file systems that no other machine uses.
bool IsLocal(uint32_t file_system) {
  constexpr uint32_t kZfsMagic = 0x2fc12fc1;
  constexpr uint32_t kBcachefsMagic = 0xca451a4e;
  switch (file_system) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
    case kZfsMagic:
    case kBcachefsMagic:
      return true;
    default:
      return IsInMemory(file_system);
  }
}

// Returns an errno; 0: all was written.
int WriteBlock(int fd, const std::vector<char>& block) {
  for (size_t done = 0; done < block.size();) {
    const ssize_t wrote = ::write(fd, block.data() + done, block.size() - done);
    if (wrote > 0) {
      done += static_cast<size_t>(wrote);
    } else if (wrote < 0 && errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Returns an errno; 0: the block was read, or as much of it as there is, and `size_bytes` is set.
int ReadBlock(int fd, off_t offset, std::vector<char>* block, size_t* size_bytes) {
  for (*size_bytes = 0; *size_bytes < block->size();) {
    const ssize_t got = ::pread(fd, block->data() + *size_bytes, block->size() - *size_bytes,
                                offset + static_cast<off_t>(*size_bytes));
    if (got == 0) return 0;
    if (got < 0 && errno != EINTR) return errno;
    if (got > 0) *size_bytes += static_cast<size_t>(got);
  }
  return 0;
}

PartResult ReadBack(const DirectoryOptions& options, int fd, uint64_t num_blocks) {
  std::vector<char> block(options.block_bytes);
  for (uint64_t i = 0; i < num_blocks; ++i) {
    size_t size_bytes = 0;
    const int error = ReadBlock(fd, static_cast<off_t>(i * block.size()), &block, &size_bytes);
    if (error != 0) return ErrorAt(options, "read", error);
    if (options.tamper) options.tamper(block.data(), block.size());
    if (size_bytes < block.size()) {
      return FailureOrNote(
          options, absl::StrCat("a file in ", options.path, ": ", i * block.size() + size_bytes,
                                " bytes of ", num_blocks * block.size(), " could be read"));
    }
    if (const std::string wrong = FindWrongBytes(i, block.data(), block.size()); !wrong.empty()) {
      return FailureOrNote(options,
                           absl::StrCat("a file in ", options.path, ": ", wrong, " of block ", i));
    }
  }
  return {};
}

// Sends blocks over one connection. `stalled`: nothing moved for a while.
PartResult SendAndReceive(const LoopbackOptions& options, bool* stalled) {
  PartResult result;
  absl::StatusOr<Connection> connection = Connect();
  if (!connection.ok()) {
    result.note = std::string(connection.status().message());
    return result;
  }
  std::vector<char> block(options.block_bytes);
  FillPattern(0, block.data(), block.size());
  const absl::Duration begin = Now();
  int send_error = 0;
  const auto send = [&] {
    send_error = options.fails_to_send ? options.fails_to_send() : 0;
    if (send_error == 0) {
      send_error = SendBlocks(connection->sender.get(), block, begin + options.budget);
    } else {
      ::shutdown(connection->sender.get(), SHUT_WR);
    }
  };
  std::thread sender;
  try {
    sender = std::thread(send);
  } catch (const std::system_error& error) {
    result.note = absl::StrCat("no thread to send: ", error.what());
    return result;
  }
  std::vector<char> received(options.block_bytes);
  double num_bytes = 0;
  int error = 0;
  while (result.failure.empty()) {
    const size_t size = ReceiveBlock(connection->receiver.get(), &received, &error);
    num_bytes += static_cast<double>(size);
    if (error != 0) result.failure = ErrorText("receive on 127.0.0.1", error);
    if (error != 0 || size < received.size()) break;
    if (options.tamper) options.tamper(received.data(), received.size());
    result.failure = FindWrongBytes(0, received.data(), received.size());
  }
  connection->receiver.reset();  // a sender that still waits ends, because data is left unread
  sender.join();
  if (result.failure.empty() && send_error != 0) {
    result.failure = ErrorText("send on 127.0.0.1", send_error);
  }
  *stalled = IsTimeout(error) || IsTimeout(send_error);
  result.bytes_per_second = RateOf(num_bytes, Now() - begin);
  return result;
}

}  // namespace

PartResult CheckLoopback(const LoopbackOptions& options) {
  bool stalled = false;
  const PartResult first = SendAndReceive(options, &stalled);
  return stalled ? SendAndReceive(options, &stalled) : first;
}

PartResult CheckDirectory(const DirectoryOptions& given) {
  const base::UniqueFd file = OpenScratchFile(given.path);
  if (!file.valid()) return ErrorAt(given, "make", errno);
  DirectoryOptions options = given;
  const uint32_t file_system = FileSystemOf(file.get());
  options.is_own = given.is_own && IsLocal(file_system);
  if (IsInMemory(file_system)) {
    options.size_bytes_max = std::min(given.size_bytes_max, given.memory_bytes_max);
  }
  std::vector<char> block(options.block_bytes);
  const absl::Duration begin = Now();
  uint64_t num_blocks = 0;
  do {
    FillPattern(num_blocks, block.data(), block.size());
    if (const int error = WriteBlock(file.get(), block); error != 0) {
      return ErrorAt(options, "write", error);
    }
    ++num_blocks;
  } while (Now() - begin < options.budget &&
           (num_blocks + 1) * options.block_bytes <= options.size_bytes_max);
  if (::fsync(file.get()) != 0) return ErrorAt(options, "sync", errno);
  const absl::Duration taken = Now() - begin;
  // So that the disk is read; a file system that cannot do this reads from memory.
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  PartResult result = ReadBack(options, file.get(), num_blocks);
  result.bytes_per_second = RateOf(static_cast<double>(num_blocks * options.block_bytes), taken);
  return result;
}

}  // namespace megascale::machine
