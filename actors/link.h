// A process's end of the link to its agent: protocol-buffer messages as frames.
// Threads: Send from any thread; Receive from one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/termination.h"

namespace megascale::actors {

// How long a process waits for its assignment after its start.
inline constexpr absl::Duration kAssignmentTimeout = absl::Seconds(60);

// Checks the number of descriptors that came with an assignment. Errors: ResourceExhausted - too
// few: the kernel leaves out those for which this process has no room; Internal - too many.
absl::Status CheckDescriptors(size_t num_received, size_t num_expected);

class Link {
 public:
  explicit Link(base::UniqueFd socket) : socket_(std::move(socket)) {}

  // Sends a message. Blocking: at most 30 s, if the agent does not read. Errors: Unavailable - the
  // agent is gone; ResourceExhausted - the message is too large for the link.
  absl::Status Send(const google::protobuf::MessageLite& message);

  // Receives the next message into `message` and returns the descriptors that came with it. Errors:
  // Unavailable - the agent is gone; DeadlineExceeded - no message within `timeout`; DataLoss - the
  // bytes are not a message of this type.
  absl::StatusOr<std::vector<base::UniqueFd>> Receive(google::protobuf::MessageLite* message,
                                                      absl::Duration timeout);

  // Makes Receive in another thread return Unavailable, now and later. Threads: any.
  void StopReceiving();

 private:
  base::UniqueFd socket_;
  std::mutex send_mutex_;
};

// Reads a process's link in a thread of its own, so that the agent is heard while the process does
// something long: encodes a text, builds its engine, waits for storage. The answer to a SIGTERM
// (Termination) must not wait for that. Make it after the assignment came. `Message`: ToHost or
// ToWorker. Threads: Take from one.
template <typename Message>
class Mail {
 public:
  // Both must outlive it; nobody else may receive from `link`.
  Mail(Link* link, base::Termination* termination)
      : link_(*link), termination_(*termination), reader_([this] { Read(); }) {}
  // Ends the link: what the agent sends from now on is lost.
  ~Mail() {
    link_.StopReceiving();
    reader_.join();
  }
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  // Returns the next message that is not about draining. Errors: as Link::Receive.
  absl::StatusOr<Message> Take(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto has_any = [this] { return !messages_.empty() || !end_.ok(); };
    if (timeout == absl::InfiniteDuration()) {
      changed_.wait(lock, has_any);
    } else if (!changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), has_any)) {
      return absl::DeadlineExceededError("the agent did not answer");
    }
    if (messages_.empty()) return end_;
    Message first = std::move(messages_.front());
    messages_.pop_front();
    return first;
  }

 private:
  void Read() {
    for (;;) {
      Message message;
      const absl::Status received = link_.Receive(&message, absl::InfiniteDuration()).status();
      if (received.ok() && message.has_draining()) {
        termination_.OnDraining();
        continue;
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      if (received.ok()) messages_.push_back(std::move(message));
      end_ = received;
      changed_.notify_all();
      if (!received.ok()) return;
    }
  }

  Link& link_;
  base::Termination& termination_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  absl::Status end_;    // not OK: nothing more comes
  std::thread reader_;  // the last member: it uses the others
};

}  // namespace megascale::actors
