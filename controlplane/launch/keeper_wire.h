// The messages between a ProcessKeeper and its helper process. Both processes run the same program,
// so plain structs suffice; they are still checked before use. Private to this folder.
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
  enum Kind : int32_t { kSpawn = 1, kKill = 2, kPing = 3 };
  Kind kind;
  int32_t signal;
  int64_t token;
  int32_t num_arguments;
  int32_t num_environment;
  int32_t has_output;
  int32_t num_descriptors;
  int32_t numbers[kDescriptorsMax];
};

// A spawn command, unpacked. It borrows texts and descriptors from the frame.
struct SpawnCommand {
  int64_t token = 0;
  char* program = nullptr;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int output = -1;
  std::vector<std::pair<int, int>> descriptors;  // {ours, the child's}
};

// Reads the header of a frame. Returns false if the frame is malformed: do not use it.
bool ReadCommand(const base::Frame& frame, KeeperCommand* command);

// Returns the number of descriptors that travel with a spawn.
size_t NumDescriptors(const KeeperCommand& command);

// Reads the rest of a frame whose header is a spawn. Returns false if it does not have the strings
// and descriptors that its header announces.
bool ReadSpawn(base::Frame* frame, SpawnCommand* spawn);

// The answer to a spawn.
struct KeeperReply {
  int64_t token;
  int32_t pid;
  int32_t error;  // errno; 0: the process runs
};

// The exit of a process, on the socket of exits. With token 0: the answer to a ping.
struct KeeperExit {
  int64_t token;
  int32_t pid;
  int32_t status;
  int32_t killed;
};

// The helper process's inputs after the fork.
struct KeeperSetup {
  int parent_pid;
  int commands;  // the helper's end of each socket
  int exits;
};

}  // namespace megascale::launch
