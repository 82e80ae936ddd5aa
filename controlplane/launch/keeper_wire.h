// What a ProcessKeeper and its helper process say to each other. Both are the same program, so
// plain structs do. Private to this folder.
#pragma once

#include <cstdint>

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
