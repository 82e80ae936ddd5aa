// What is fuzzed: one function of bytes for each place where the program reads what it did not
// write. A target must return on every input, in time and memory that the input bounds; it checks
// with MEGASCALE_CHECK what must hold of the answer, so that a wrong one counts as a crash.
//
// Where to start: targets.cc has the list, engine.h runs it, README.md how to use it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/mutator.h"

namespace megascale::fuzz {

struct Target {
  std::string name;  // also of its folder in the corpus
  void (*run)(absl::string_view input);
  std::vector<std::string> dictionary;
  // Makes a structured mistake in an input that has a structure; null: bytes only.
  std::string (*mutate)(const std::string& input, Random* random) = nullptr;
};

// YAML -> job file -> resolved job -> YAML.
void RunJobFile(absl::string_view input);
// manifest.json, beside a fixed shard.
void RunManifest(absl::string_view input);
std::string MutateManifest(const std::string& input, Random* random);
// A safetensors file, and as a shard of a checkpoint.
void RunSafetensors(absl::string_view input);
std::string MutateSafetensors(const std::string& input, Random* random);
// Frames of AgentUp, from two agents, into the driver's failure detector and state machine.
void RunAgentMessages(absl::string_view input);
std::string MutateAgentMessages(const std::string& input, Random* random);
// Frames of FromWorker and FromHost, over a socket pair, into the agent's core.
void RunWorkerLink(absl::string_view input);
std::string MutateWorkerLink(const std::string& input, Random* random);
// The payload of one frame to the process keeper.
void RunKeeperWire(absl::string_view input);

// What a Redis server answers, in pieces.
void RunStoreReplies(absl::string_view input);

const std::vector<Target>& Targets();
// Null where there is none of that name.
const Target* FindTarget(absl::string_view name);

// Messages one after the other: 4 bytes of length (little endian), then the message; what is cut
// off at the end is left out.
std::vector<std::string> SplitFrames(absl::string_view input);
std::string JoinFrames(const std::vector<std::string>& frames);

// One frame of `input`, removed, repeated, moved or (by `mutate`, which gets the frame) changed.
std::string MutateFrames(const std::string& input, Random* random,
                         std::string (*mutate)(const std::string& frame, Random* random));

}  // namespace megascale::fuzz
