// The rings of a job's communicators, sized by what their channels carry: from its specification
// alone, so agents and ranks agree without a message. Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/operation.h"

namespace megascale::layout {

// A ring is never smaller or larger; those of flags and norms are the smallest.
inline constexpr size_t kRingBytesMin = size_t{4} << 10;
inline constexpr size_t kRingBytesMax = size_t{512} << 10;
// The most that a rank's rings of one channel take together if all other members are on other
// machines. Groups of more than 65 members have smaller rings for it.
inline constexpr size_t kRingsOfChannelMax = size_t{64} << 20;

class RingSizes {
 public:
  // Requires: `spec` is resolved. Errors: InvalidArgument - the specification cannot be run.
  static absl::StatusOr<RingSizes> Create(const megascale::job::v1::JobSpec& spec,
                                          const plan::Mesh& mesh);

  // Returns comm::GroupSpec::ring_bytes of a channel of this mesh: room for a few of its largest
  // messages, within the limits above.
  size_t Of(const plan::Channel& channel) const;
  // The same for a group of `num_members` whose largest message has `message_bytes`.
  static size_t For(int64_t message_bytes, int num_members);

 private:
  explicit RingSizes(const plan::Mesh& mesh) : mesh_(mesh) {}

  plan::Mesh mesh_;
  std::map<plan::Payload, int64_t> message_bytes_;  // the largest from one member to another
};

}  // namespace megascale::layout
