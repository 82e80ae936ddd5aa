#include "runtime/comm/host/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::comm {
namespace {

// Returns the number of this process's pid namespace; 0: unknown.
uint64_t PidNamespace() {
  struct stat info;
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

uint64_t MakeWord() {
  uint64_t word = 0;
  MEGASCALE_CHECK(::getrandom(&word, sizeof(word), 0) == sizeof(word));
  return word;
}

void Introduce(const uint64_t& word, absl::Span<const base::SharedMemory* const> readable,
               ProcessCard& card) {
  // Fails where there is no Yama, which then needs no permission.
  ::prctl(PR_SET_PTRACER, ::getppid(), 0, 0, 0);
  card.pid_namespace = PidNamespace();
  card.word = word;
  card.word_address = reinterpret_cast<uint64_t>(&word);
  const size_t num_memories = std::min<size_t>(readable.size(), ReadableMemory::kMax);
  for (size_t i = 0; i < num_memories; ++i) {
    card.memories[i] = {reinterpret_cast<uint64_t>(readable[i]->data()), readable[i]->size_bytes(),
                        readable[i]->fd()};
  }
  card.process_id.store(::getpid(), std::memory_order_release);
}

void PeerProcess::Unmap::operator()(const std::byte* data) const {
  ::munmap(const_cast<std::byte*>(data), num_bytes);
}

void PeerProcess::Meet(const ProcessCard& card) {
  const int process_id = card.process_id.load(std::memory_order_acquire);
  if (process_id == 0 || is_met()) return;
  card_ = &card;
  if (card.pid_namespace == 0 || card.pid_namespace != PidNamespace()) return;
  process_id_ = process_id;
  pidfd_ = base::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process_id, 0)));
  if (!pidfd_.valid()) {
    has_ended_ = errno == ESRCH;
    return;
  }
  // The pidfd was opened first: if the word matches, both belong to the process that wrote the
  // card.
  uint64_t word = 0;
  can_read_ = ReadByKernel(card.word_address, sizeof(word), reinterpret_cast<std::byte*>(&word)) &&
              word == card.word;
}

bool PeerProcess::HasEnded() const {
  if (!pidfd_.valid()) return has_ended_;
  pollfd polled = {pidfd_.get(), POLLIN, 0};
  return ::poll(&polled, 1, 0) > 0;
}

bool PeerProcess::Read(uint64_t address, size_t num_bytes, std::byte* to) {
  const std::byte* mapped = FindMapped(address, num_bytes);
  if (mapped == nullptr) return ReadByKernel(address, num_bytes, to);
  std::memcpy(to, mapped, num_bytes);
  return true;
}

const std::byte* PeerProcess::Fetch(uint64_t address, size_t num_bytes) {
  if (const std::byte* mapped = FindMapped(address, num_bytes)) return mapped;
  if (fetched_.size() < num_bytes + 2 * kPageBytes) fetched_.resize(num_bytes + 2 * kPageBytes);
  // At the same offset in a page as the source: the kernel copies page by page, and is faster this
  // way.
  const auto base = reinterpret_cast<uint64_t>(fetched_.data());
  std::byte* to = fetched_.data() + (kPageBytes - base % kPageBytes) + address % kPageBytes;
  return ReadByKernel(address, num_bytes, to) ? to : nullptr;
}

const std::byte* PeerProcess::FindMapped(uint64_t address, size_t num_bytes) {
  for (int i = 0; i < ReadableMemory::kMax; ++i) {
    const ReadableMemory& memory = card_->memories[i];
    const uint64_t offset = address - memory.address;
    if (address < memory.address || offset + num_bytes > memory.num_bytes) continue;
    if (!mappings_[i].was_tried) Map(i);
    return mappings_[i].data == nullptr ? nullptr : mappings_[i].data.get() + offset;
  }
  return nullptr;
}

void PeerProcess::Map(int memory_index) {
  const ReadableMemory& memory = card_->memories[memory_index];
  Mapping& mapping = mappings_[memory_index];
  mapping.was_tried = true;
  const std::string path = absl::StrCat("/proc/", process_id_, "/fd/", memory.fd);
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  // The id still belongs to the process that was met if that has not ended by now.
  if (!fd.valid() || HasEnded() || ::fstat(fd.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != memory.num_bytes) {
    return;
  }
  void* data = base::MapAligned(fd.get(), memory.num_bytes, PROT_READ);
  if (data == MAP_FAILED) return;
  mapping.data = {static_cast<const std::byte*>(data), Unmap{memory.num_bytes}};
}

bool PeerProcess::ReadByKernel(uint64_t address, size_t num_bytes, std::byte* to) const {
  while (num_bytes > 0) {
    const iovec local = {to, num_bytes};
    const iovec remote = {reinterpret_cast<void*>(address), num_bytes};
    const ssize_t got = ::process_vm_readv(process_id_, &local, 1, &remote, 1, 0);
    if (got <= 0) return false;
    address += got;
    to += got;
    num_bytes -= got;
  }
  return true;
}

}  // namespace megascale::comm
