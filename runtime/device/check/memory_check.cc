// Memory and copies.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/device/check/device_check.h"
#include "runtime/device/check/pattern.h"
#include "runtime/stream/stream.h"

namespace megascale::device::check {
namespace {

// Device memory, a pinned piece of the host's, and a stream between them.
struct Place {
  std::unique_ptr<device::Memory> memory;
  std::unique_ptr<device::Memory> pinned;
  std::unique_ptr<stream::Stream> stream;  // ends before the memory

  std::byte* there(size_t offset) const { return static_cast<std::byte*>(memory->data()) + offset; }
  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    stream->RunAndWait([&] { stream->Copy(to, from, bytes); });
    return stream->Synchronize();
  }
};

// Returns why there is no place; empty: there is one.
std::string Take(device::Device* device, size_t bytes, size_t pinned_bytes, Place* place) {
  auto memory = device->Allocate("the test of a device", bytes);
  if (!memory.ok()) return std::string(memory.status().message());
  auto pinned = device->AllocateHost("the test of a device", pinned_bytes);
  if (!pinned.ok()) return std::string(pinned.status().message());
  auto stream = device->MakeStream("device test");
  if (!stream.ok()) return std::string(stream.status().message());
  *place = {*std::move(memory), *std::move(pinned), *std::move(stream)};
  return "";
}

std::string Failure(const absl::Status& status) {
  return status.ok() ? "" : absl::StrCat("the device failed: ", status.message());
}

// One round: all of the memory, piece by piece. Returns what is wrong; empty: nothing.
std::string WriteAndReadBack(const Place& place, const MemoryOptions& options, bool inverted) {
  for (const bool writes : {true, false}) {
    for (size_t offset = 0; offset < options.size_bytes; offset += options.piece_bytes) {
      const size_t bytes = std::min(options.piece_bytes, options.size_bytes - offset);
      const uint64_t seed = offset / options.piece_bytes;
      void* const piece = place.pinned->data();
      if (writes) {
        FillPattern(seed, inverted, piece, bytes);
        const absl::Status status = place.Copy(place.there(offset), piece, bytes);
        if (!status.ok()) return Failure(status);
        continue;
      }
      const absl::Status status = place.Copy(piece, place.there(offset), bytes);
      if (!status.ok()) return Failure(status);
      if (options.tamper) options.tamper(piece, bytes);
      std::string wrong = FindWrongBytes(seed, inverted, piece, bytes, offset);
      if (!wrong.empty()) return absl::StrCat("device memory read back: ", wrong);
    }
  }
  return "";
}

}  // namespace

PartResult CheckMemory(device::Device* device, const MemoryOptions& options) {
  MEGASCALE_CHECK(options.size_bytes % 8 == 0 && options.piece_bytes % 8 == 0);
  PartResult result;
  Place place;
  result.note = Take(device, options.size_bytes, options.piece_bytes, &place);
  if (!result.note.empty()) return result;
  const absl::Duration begin = base::RealClock().Monotonic();
  absl::Duration taken;
  int64_t rounds = 0;
  do {
    result.failure = WriteAndReadBack(place, options, /*inverted=*/rounds % 2 == 1);
    taken = base::RealClock().Monotonic() - begin;
    ++rounds;
  } while (result.failure.empty() && (taken < options.budget || rounds < 2));
  result.bytes_per_second = 2.0 * static_cast<double>(rounds) *
                            static_cast<double>(options.size_bytes) /
                            std::max(1e-9, absl::ToDoubleSeconds(taken));
  return result;
}

PartResult CheckCopies(device::Device* device, const CopyOptions& options) {
  MEGASCALE_CHECK(options.size_bytes % 8 == 0);
  PartResult result;
  Place place;
  result.note = Take(device, options.size_bytes, options.size_bytes, &place);
  if (!result.note.empty()) return result;
  const bool to_device = options.direction == Direction::kToDevice;
  void* const here = place.pinned->data();
  void* const there = place.there(0);
  absl::Duration taken;
  int64_t copies = 0;
  const absl::Duration end = base::RealClock().Monotonic() + options.budget;
  do {
    const auto seed = static_cast<uint64_t>(copies);
    FillPattern(seed, false, here, options.size_bytes);
    absl::Status status;
    for (const bool forth : {true, false}) {
      const absl::Duration begin = base::RealClock().Monotonic();
      if (status.ok()) {
        status = forth ? place.Copy(there, here, options.size_bytes)
                       : place.Copy(here, there, options.size_bytes);
      }
      if (forth == to_device) taken += base::RealClock().Monotonic() - begin;
      // What is read back must not be what was written.
      if (forth) FillPattern(seed, true, here, options.size_bytes);
    }
    ++copies;
    result.failure = Failure(status);
    if (!result.failure.empty()) break;
    if (options.tamper) options.tamper(here, options.size_bytes);
    const std::string wrong = FindWrongBytes(seed, false, here, options.size_bytes, 0);
    if (!wrong.empty()) result.failure = absl::StrCat("copied to the device and back: ", wrong);
  } while (result.failure.empty() && base::RealClock().Monotonic() < end);
  result.bytes_per_second = static_cast<double>(copies) * static_cast<double>(options.size_bytes) /
                            std::max(1e-9, absl::ToDoubleSeconds(taken));
  return result;
}

}  // namespace megascale::device::check
