// What a ProcessKeeper and its helper process say to each other. Both are the same program, so
// plain structs do; they are checked all the same, before anything in them is used. Private to this
// folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/frame.h"

namespace megascale::launch {

inline constexpr int kDescriptorsMax = 32;

// A command is this header, then num_arguments + num_environment + 1 strings, each ended by a zero
// byte: the program, the arguments, the environment. Descriptors travel with it: the output first
// when has_output, then one for each entry of `numbers`.
struct KeeperCommand {
  enum Kind : int32_t { kSpawn = 1, kKill = 2 };
  Kind kind;
  int32_t signal;
  int64_t token;
  int32_t num_arguments;
  int32_t num_environment;
  int32_t has_output;
  int32_t num_descriptors;
  int32_t numbers[kDescriptorsMax];
};

// A spawn command, unpacked. Texts lie in the frame's payload, descriptors are the frame's.
struct SpawnCommand {
  int64_t token = 0;
  char* program = nullptr;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int output = -1;
  std::vector<std::pair<int, int>> descriptors;  // {ours, the child's}
};

// The header of a frame. False: it is none; nothing of the frame may be used.
bool ReadCommand(const base::Frame& frame, KeeperCommand* command);

// How many descriptors a spawn travels with.
size_t NumDescriptors(const KeeperCommand& command);

// The rest of a frame whose header is a spawn. False: it has not the strings and descriptors that
// its header says.
bool ReadSpawn(base::Frame* frame, SpawnCommand* spawn);

// The answer to a spawn.
struct KeeperReply {
  int64_t token;
  int32_t pid;
  int32_t error;  // errno; 0: it runs
};

// On the socket of exits.
struct KeeperExit {
  int64_t token;
  int32_t pid;
  int32_t status;
  int32_t killed;
};

// What the helper process is made of, after the fork.
struct KeeperSetup {
  int parent_pid;
  int commands;  // its ends of the sockets
  int exits;
};

}  // namespace megascale::launch
