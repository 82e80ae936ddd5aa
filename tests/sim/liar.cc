#include "tests/sim/liar.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megascale::sim {

void Liar::Start(absl::Duration until) {
  until_ = until;
  world_.timeline.After(rng_.Between(absl::ZeroDuration(), absl::Seconds(4)), [this] {
    if (world_.timeline.now() >= until_) return;
    Lie();
    Start(until_);
  });
}

void Liar::Lie() {
  agent::Hello hello;
  hello.set_protocol_version(megascale::agent::v1::PROTOCOL_VERSION_CURRENT);
  hello.set_incarnation(absl::StrCat("lie-", ++num_lies_));
  hello.set_machine_id(absl::StrCat("machine of lie ", num_lies_));
  hello.set_key(kLiarsKey);
  hello.set_instruction_set("avx2");
  // Without slots it gets no ranks, so that no job waits for what it never does.
  hello.set_num_slots(rng_.Chance(0.5) ? std::numeric_limits<int32_t>::max() : 0);
  const auto& nodes = driver_.durable().nodes();
  if (rng_.Chance(0.5) && !nodes.empty()) {
    // Rather one whose agent is away.
    const auto lost = std::find_if(nodes.begin(), nodes.end(), [](const auto& node) {
      return !node.alive() && !absl::StartsWith(node.hello().node_id(), kMadeUpNode);
    });
    const int any = static_cast<int>(rng_.Index(static_cast<size_t>(nodes.size())));
    const auto& victim = lost != nodes.end() ? *lost : nodes[any];
    if (victim.evicted()) return;  // an operator gives its id to whoever comes
    hello.set_node_id(victim.hello().node_id());
  } else {
    hello.set_node_id(absl::StrCat(kMadeUpNode, num_lies_));
  }
  world_.Say(hello.node_id(), absl::StrCat("a liar offers ", hello.num_slots(), " slots"));
  network_.Connect(hello, {}, {.certificate = "liar", .address = "10.0.0.66"});
}

}  // namespace megascale::sim
