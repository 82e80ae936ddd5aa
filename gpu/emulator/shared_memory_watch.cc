#include "gpu/emulator/shared_memory_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace megascale::emulator {
namespace {

// Whether everything that the thread did at `before` is seen at `now`.
bool IsOrdered(const Moment& before, const Moment& now) {
  if (before.thread == now.thread || before.block_epoch < now.block_epoch) return true;
  return before.warp == now.warp && before.warp_epoch < now.warp_epoch;
}

}  // namespace

void SharedMemoryWatch::Reset(size_t bytes) {
  ++block_;
  bytes_ = bytes;
  if (state_.size() < bytes) state_.resize(bytes);
}

SharedMemoryWatch::Byte& SharedMemoryWatch::At(size_t index) {
  Byte& byte = state_[index];
  if (byte.block != block_) byte = {.block = block_};
  return byte;
}

std::string SharedMemoryWatch::CheckWrite(size_t index, const Moment& now) {
  const Byte& byte = At(index);
  if (byte.is_copied_to) {
    return absl::StrCat("thread ", byte.write.thread, " still copies into byte ", index);
  }
  if (byte.is_written && !IsOrdered(byte.write, now)) {
    return absl::StrCat("byte ", index, " was written by thread ", byte.write.thread,
                        " without a barrier between");
  }
  if (!byte.is_read) return "";
  const bool is_ordered = byte.reads_of_warps  ? byte.read.block_epoch < now.block_epoch
                          : byte.reads_of_many ? byte.read.block_epoch < now.block_epoch ||
                                                     (byte.read.warp == now.warp &&
                                                      byte.read.warp_epoch < now.warp_epoch)
                                               : IsOrdered(byte.read, now);
  if (is_ordered) return "";
  return absl::StrCat("byte ", index, " was read by ",
                      byte.reads_of_many ? "several threads, thread " : "thread ", byte.read.thread,
                      ", without a barrier between");
}

std::string SharedMemoryWatch::Read(size_t first, size_t bytes, const Moment& now) {
  if (first + bytes > bytes_) {
    return absl::StrCat("bytes ", first, " to ", first + bytes, " of ", bytes_, " bytes");
  }
  for (size_t i = first; i < first + bytes; ++i) {
    Byte& byte = At(i);
    if (byte.is_copied_to) {
      return absl::StrCat("thread ", byte.write.thread, " still copies into byte ", i);
    }
    if (!byte.is_written) return absl::StrCat("byte ", i, " was never written");
    if (!IsOrdered(byte.write, now)) {
      return absl::StrCat("byte ", i, " was written by thread ", byte.write.thread,
                          " without a barrier between");
    }
    const bool is_new = !byte.is_read || byte.read.block_epoch < now.block_epoch;
    const bool other_warp = !is_new && byte.read.warp != now.warp;
    const bool later = !is_new && !other_warp && byte.read.warp_epoch < now.warp_epoch;
    byte.reads_of_warps = !is_new && (byte.reads_of_warps || other_warp);
    byte.reads_of_many =
        byte.reads_of_warps ||
        (!is_new && !later && (byte.reads_of_many || byte.read.thread != now.thread));
    byte.read = now;
    byte.is_read = true;
  }
  return "";
}

std::string SharedMemoryWatch::Write(size_t first, size_t bytes, const Moment& now) {
  if (first + bytes > bytes_) {
    return absl::StrCat("bytes ", first, " to ", first + bytes, " of ", bytes_, " bytes");
  }
  for (size_t i = first; i < first + bytes; ++i) {
    std::string wrong = CheckWrite(i, now);
    if (!wrong.empty()) return wrong;
    state_[i] = {.write = now, .block = block_, .is_written = true};
  }
  return "";
}

std::string SharedMemoryWatch::BeginCopy(size_t first, size_t bytes, const Moment& now) {
  std::string wrong = Write(first, bytes, now);
  if (!wrong.empty()) return wrong;
  for (size_t i = first; i < first + bytes; ++i) state_[i].is_copied_to = true;
  return "";
}

void SharedMemoryWatch::EndCopy(size_t first, size_t bytes, const Moment& now) {
  for (size_t i = first; i < std::min(first + bytes, bytes_); ++i) {
    state_[i] = {.write = now, .block = block_, .is_written = true};
  }
}

}  // namespace megascale::emulator
