// Another user of the machine, for tests of what this user must not accept from it. Needs root: if
// tests do not run as root, the test fails and says so.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "runtime/base/fd.h"

namespace megascale::base {

inline constexpr uid_t kOtherUser = 65534;  // "nobody"

// Forks, becomes the other user, runs `body`, exits with its result, and returns that result. If
// this process is not root, returns -1 and fails the test. `body` must only make plain system
// calls: other threads of the test do not exist in the child.
int RunAsOtherUser(const std::function<int()>& body);

// As the other user, connects to the Unix socket at `path` and ends. Returns 0 if it could connect.
int ConnectAsOtherUser(const std::string& path);

// A process of the other user that listens at `path`, accepts connections and counts received
// bytes; it ends with the object. `as_root`: folder and socket belong to root, only the process to
// the other user. Otherwise it makes the folder, with mode 0700, and the socket itself.
class OtherUsersListener {
 public:
  OtherUsersListener(const std::string& path, bool as_root);
  ~OtherUsersListener();
  OtherUsersListener(const OtherUsersListener&) = delete;
  OtherUsersListener& operator=(const OtherUsersListener&) = delete;

  // Ends the process once all accepted connections are closed; returns how many bytes came.
  int Stop();

 private:
  pid_t pid_ = -1;
  UniqueFd stop_;  // closing it ends the process
};

}  // namespace megascale::base
