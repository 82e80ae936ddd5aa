// Unix-domain sockets between processes of one user. Every program on the machine can make a folder
// in /tmp and listen there, so a path proves nothing. Both ends therefore check that the folder and
// the socket belong to this process's user (its effective uid) and are closed to others, and that
// the process at the other end runs as the same user. Root is no exception, in either direction: a
// process of root that joined a user's driver would run that user's jobs as root.
//
// `advice` ends each message of a refusal: what the reader can do, without a full stop. Errors of
// all functions: PermissionDenied - the path, what was found there, what was expected. Threads:
// any. Only ConnectOwnSocket with a timeout blocks.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"

namespace megascale::base {

// Checks that `folder` is a directory (not a symbolic link) of this user's that others cannot
// enter, and that only root can put another one in its place: each folder above it belongs to this
// user or to root, and either others cannot write to it or it is sticky, as /tmp is. Errors: also
// NotFound - no such folder.
absl::Status CheckOwnFolder(const std::string& folder, absl::string_view advice);

// Returns whether users other than the owner may write to what has this mode. A group that has the
// owner's name and no other member, as many systems give each user, is the owner.
bool OthersMayWrite(const struct stat& info);

// Checks a folder in which this process keeps files that it trusts, such as its state: as
// CheckOwnFolder, but others may read. Each file and folder in it, or to which a link in it leads,
// belongs to this user, too, and others cannot write to it; what lies deeper is not checked.
// Errors: also NotFound.
absl::Status CheckTrustedFolder(const std::string& folder, absl::string_view advice);

// Checks a file with a secret of this process's: a regular file of this user's that others can
// neither read nor write, in a folder for which CheckTrustedFolder holds. Errors: also NotFound.
absl::Status CheckSecretFile(const std::string& path, absl::string_view advice);

// Makes the folder and its missing parents with mode 0700, then calls CheckOwnFolder. Errors: also
// those of MakeDirectories.
absl::Status MakeOwnFolder(const std::string& folder, absl::string_view advice);

// Like MakeOwnFolder, but sets mode 0700 on a folder of this user's that already exists. For
// folders that nothing but the caller uses.
absl::Status TakeOwnFolder(const std::string& folder, absl::string_view advice);

// Checks the socket's folder with CheckOwnFolder, and that `path` is a socket of this user's that
// others cannot write to. Errors: also NotFound - no such socket.
absl::Status CheckOwnSocket(const std::string& path, absl::string_view advice);

// Checks that the process at the other end of a connection runs as this user (SO_PEERCRED: the
// process that connected, or the one that listens). `path`: the socket's path, for the message.
absl::Status CheckOwnPeer(int fd, absl::string_view path, absl::string_view advice);

// Listens at `path`, whose socket gets mode 0600 before any process can connect. Non-blocking.
// Requires: CheckOwnFolder of its folder; nothing exists at `path`. Errors: InvalidArgument - the
// path is longer than the 107 bytes that the system permits.
absl::StatusOr<UniqueFd> ListenOwnSocket(const std::string& path, int backlog);

// Connects after CheckOwnSocket, and returns a non-blocking socket after CheckOwnPeer; nothing has
// been sent by then. Blocking: at most `timeout`, while the listener's queue is full. Errors: also
// Unavailable - no listener there; ResourceExhausted - its queue stayed full.
absl::StatusOr<UniqueFd> ConnectOwnSocket(const std::string& path, absl::Duration timeout,
                                          absl::string_view advice);

// For a server that may have an account of its own, such as Redis at /run/redis/redis.sock. Checks
// that only this user, root or that account can have put the socket at `path`. The folder belongs
// to this user or to root; or the folder and the socket belong to one other account, in a place
// where only root and that account could have made the folder. If others can write to the folder,
// it is sticky, and the socket belongs to this user or to root. Also OK if nothing is at `path`.
absl::Status CheckServerSocket(const std::string& path, absl::string_view advice);

// Checks, after CheckServerSocket, that the listening process runs as the socket's owner, this user
// or root.
absl::Status CheckServerPeer(int fd, const std::string& path, absl::string_view advice);

// Returns "alice (uid 1000)".
std::string DescribeUser(unsigned uid);

}  // namespace megascale::base
