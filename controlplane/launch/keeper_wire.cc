#include "controlplane/launch/keeper_wire.h"

#include <algorithm>
#include <cstring>

namespace megascale::launch {
namespace {

// Takes one string after the other from a payload.
class Strings {
 public:
  Strings(char* begin, char* end) : next_(begin), end_(end) {}

  // Takes the next string; null: the payload has no more strings.
  char* Take() {
    char* const text = next_;
    auto* const zero = static_cast<char*>(std::memchr(text, 0, static_cast<size_t>(end_ - text)));
    if (zero == nullptr) return nullptr;
    next_ = zero + 1;
    return text;
  }

  bool Take(int count, std::vector<char*>* texts) {
    for (int i = 0; i < count; ++i) {
      char* const text = Take();
      if (text == nullptr) return false;
      texts->push_back(text);
    }
    return true;
  }

 private:
  char* next_;
  char* end_;
};

}  // namespace

bool ReadCommand(const base::Frame& frame, KeeperCommand* command) {
  if (frame.payload.size() < sizeof(KeeperCommand)) return false;
  std::memcpy(command, frame.payload.data(), sizeof(*command));
  return command->kind == KeeperCommand::kSpawn || command->kind == KeeperCommand::kKill ||
         command->kind == KeeperCommand::kPing;
}

size_t NumDescriptors(const KeeperCommand& command) {
  return (command.has_output != 0 ? 1 : 0) +
         static_cast<size_t>(std::max(command.num_descriptors, 0));
}

bool ReadSpawn(base::Frame* frame, SpawnCommand* spawn) {
  KeeperCommand command;
  if (!ReadCommand(*frame, &command)) return false;
  spawn->token = command.token;
  Strings strings(frame->payload.data() + sizeof(command),
                  frame->payload.data() + frame->payload.size());
  spawn->program = strings.Take();
  if (spawn->program == nullptr || !strings.Take(command.num_arguments, &spawn->arguments) ||
      !strings.Take(command.num_environment, &spawn->environment)) {
    return false;
  }
  if (command.num_descriptors < 0 || command.num_descriptors > kDescriptorsMax ||
      frame->fds.size() != NumDescriptors(command)) {
    return false;
  }
  const size_t num_output = command.has_output != 0 ? 1 : 0;
  if (num_output == 1) spawn->output = frame->fds[0].get();
  for (int i = 0; i < command.num_descriptors; ++i) {
    spawn->descriptors.push_back(
        {frame->fds[num_output + static_cast<size_t>(i)].get(), command.numbers[i]});
  }
  return true;
}

}  // namespace megascale::launch
